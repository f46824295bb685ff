"""Shims remove what they hold for their commands, unless others need it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from pathlib import Path

import pytest

from orchestrator.tools.exec.held_objects import (
    NO_PLACE,
    Cgroup,
    hold_placeholder,
    release_placeholder,
    remove_cgroup,
)


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


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_guard_goes_with_the_last_of_its_holders(tmp_path: Path, order: tuple[int, ...]) -> None:
    guard = str(tmp_path / ".git")
    held = [hold_placeholder(guard) for _ in range(3)]
    assert all(path == guard and descriptor >= 0 for path, descriptor in held)
    for number in order:
        assert (tmp_path / ".git").is_dir()
        release_placeholder(*held[number])
    assert not (tmp_path / ".git").exists()


def test_guard_that_holds_something_by_now_stays(tmp_path: Path) -> None:
    guard = str(tmp_path / ".git")
    held = [hold_placeholder(guard) for _ in range(2)]
    (tmp_path / ".git/HEAD").write_text("x")
    for each in held:
        release_placeholder(*each)
    assert (tmp_path / ".git/HEAD").read_text() == "x"


def test_what_stands_in_the_place_of_a_guard_is_left_to_the_mount(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("gitdir: elsewhere")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        held = hold_placeholder(str(tmp_path / name))
        assert held == (str(tmp_path / name), -1)
        release_placeholder(*held)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize("place", ["gone/.git", "gone/deep/.git", "file/.git"])
def test_guard_whose_folder_has_gone_is_told_as_such(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    held = hold_placeholder(str(tmp_path / place))
    assert held == (str(tmp_path / place), NO_PLACE)
    release_placeholder(*held)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_guard_that_another_end_takes_away_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, lock, taken = tmp_path / ".git", fcntl.flock, list[int]()

    def take_away(descriptor: int, kind: int) -> None:
        lock(descriptor, kind)
        if len(taken) < 2:
            taken.append(descriptor)
            guard.rmdir()

    monkeypatch.setattr(fcntl, "flock", take_away)
    _, descriptor = hold_placeholder(str(guard))
    assert os.path.samestat(guard.stat(), os.fstat(descriptor))
    release_placeholder(str(guard), descriptor)
    assert not guard.exists()


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("room", [64 << 20, 1 << 40])
def test_cgroup_is_fit_up_to_what_may_be_left_in_it(kernel: Path, room: int, more: int) -> None:
    settings = [("memory.max", str(room))]
    made = Cgroup(f"{kernel}/dendro-1-2", settings)
    usage = next((kernel / "dendro-1-2").glob("memory.*[ts]"))
    usage.write_text(f"{min(room // 16, 16 << 20) + more}\n")
    assert made.is_fit(settings) is not bool(more)
