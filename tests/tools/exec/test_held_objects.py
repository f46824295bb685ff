"""Shims remove what they hold for their commands, unless others need it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.tools.exec.held_objects import enter_cgroup, remove_cgroup


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


@pytest.mark.parametrize(("version", "file"), [(1, "tasks"), (2, "cgroup.procs")])
def test_command_enters_a_cgroup_as_the_one_thread_that_it_is(cgroup: Path, version: int, file: str) -> None:
    if version == 1:
        (cgroup / "tasks").touch()
    enter_cgroup(str(cgroup))
    assert [it.name for it in cgroup.iterdir() if it.read_text() == "0"] == [file]
