"""Shims remove what they hold for their commands, unless others need it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.tools.exec.held_objects import Cgroup, remove_cgroup


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    """A folder that stands for a cgroup: its only process has ended."""
    made = tmp_path / "dendro-1-1"
    made.mkdir()
    (made / "cgroup.procs").write_text("")
    return made


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """The kernel refuses to remove a cgroup so many times; what it was asked to remove."""
    asked: list[str] = []
    real = os.rmdir

    def rmdir(path: str) -> None:
        asked.append(path)
        if len(asked) <= times:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        (Path(path) / "cgroup.procs").unlink()
        real(path)

    monkeypatch.setattr(os, "rmdir", rmdir)
    return asked


def test_cgroup_goes_although_the_kernel_counts_its_last_process_for_a_moment_more(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, 3)
    remove_cgroup(str(cgroup), patience_s=60.0)
    assert not cgroup.exists()


def test_cgroup_with_a_survivor_is_left_at_once(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cgroup / "cgroup.procs").write_text("4711\n")
    asked = refusing(monkeypatch, 1_000_000)
    remove_cgroup(str(cgroup), patience_s=60.0)
    assert asked == [str(cgroup)]
    assert cgroup.exists()


def test_worker_asks_once_for_a_cgroup_that_a_lost_shim_left(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = refusing(monkeypatch, 1_000_000)
    remove_cgroup(str(cgroup))
    assert len(asked) == 1


@pytest.fixture(params=[1, 2])
def kernel(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which cgroups are made, as the kernel makes them in each of its versions."""
    version: int = request.param
    entry, usage, kills = (
        ("tasks", "memory.usage_in_bytes", "memory.oom_control")
        if version == 1
        else ("cgroup.procs", "memory.current", "memory.events")
    )
    real = os.mkdir

    def mkdir(path: str) -> None:
        real(path)
        for name in (entry, "cgroup.procs", "pids.max"):
            (Path(path) / name).touch()
        (Path(path) / usage).write_text("4096\n")
        (Path(path) / kills).write_text("oom 0\noom_kill 0\n")

    monkeypatch.setattr(os, "mkdir", mkdir)
    (tmp_path / entry).touch()
    (tmp_path / "entry").symlink_to(entry)
    return tmp_path


SETTINGS = [("pids.max", "100"), ("memory.max", str(64 << 20))]


def test_shim_enters_a_cgroup_as_the_one_thread_that_it_is_and_goes_back(kernel: Path) -> None:
    entry = (kernel / "entry").readlink()
    made = Cgroup(f"{kernel}/dendro-1-2", SETTINGS)
    made.enter()
    assert (kernel / "dendro-1-2" / entry).read_text() == "0"
    assert (kernel / "dendro-1-2" / "pids.max").read_text() == "100"
    assert made.has_way_back
    asked = (kernel / entry).read_text()
    made.leave()
    assert (kernel / entry).read_text() == f"{asked}0"


def test_cgroup_in_which_memory_is_left_is_not_for_another_command(kernel: Path) -> None:
    made = Cgroup(f"{kernel}/dendro-1-2", SETTINGS)
    assert made.is_fit(SETTINGS)
    assert not made.is_fit([("pids.max", "50")])
    usage = next((kernel / "dendro-1-2").glob("memory.*[ts]"))
    usage.write_text(f"{(4 << 20) + 1}\n")
    assert not made.is_fit(SETTINGS), "a sixteenth of what the command is allowed"


def test_command_is_told_of_its_own_memory_alone(kernel: Path) -> None:
    made = Cgroup(f"{kernel}/dendro-1-2", SETTINGS)
    assert not made.ran_out_of_memory()
    for kills in (kernel / "dendro-1-2").glob("memory.[eo]*"):
        kills.write_text("oom 3\noom_kill 2\noom_kill_disable 0\n")
    assert made.ran_out_of_memory()
    assert not made.ran_out_of_memory()


def test_cgroup_of_a_dead_shim_of_the_same_number_is_made_anew(kernel: Path) -> None:
    left = kernel / "dendro-1-2"
    Cgroup(str(left), SETTINGS)
    for file in left.iterdir():
        file.unlink()
    Cgroup(str(left), SETTINGS).enter()
    assert (left / "pids.max").read_text() == "100"
