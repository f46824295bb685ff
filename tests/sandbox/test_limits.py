"""Limits on the number of processes."""

import errno
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.sandbox import limits
from orchestrator.sandbox.limits import Limits, ProcessAllowance, find_pids_cgroup, tasks_of


def test_allowance_is_what_the_user_runs_plus_what_the_command_may() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE):
        counted = tasks_of(os.getuid())
        assert counted >= 2
    allowance = ProcessAllowance(uid=65533, _counted=40, _counted_at=float("inf"))
    ceiling = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    assert allowance.rlimit(Limits(processes=10)) == (50 if ceiling < 0 else min(50, ceiling))


def test_allowance_sets_nothing_for_root_or_without_a_limit() -> None:
    assert ProcessAllowance(uid=0).rlimit(Limits(1024)) is None
    assert ProcessAllowance(uid=65533).rlimit(Limits(processes=None)) is None


def test_cgroup_is_of_use_though_the_kernel_counts_its_ended_process_for_a_moment_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = tmp_path / f"dendro-probe-{os.getpid()}-{threading.get_native_id()}"
    trial.mkdir()
    (trial / "pids.max").touch()
    (trial / "cgroup.procs").touch()
    refusals = [errno.EBUSY, errno.EBUSY]

    def rmdir(folder: str, real: Callable[[str], None] = os.rmdir) -> None:
        if refusals:
            raise OSError(refusals.pop(), "still counted")
        for file in Path(folder).iterdir():
            file.unlink()
        real(folder)

    monkeypatch.setattr(os, "rmdir", rmdir)
    limits._try_out(tmp_path, (("pids.max", "16"),))
    assert not trial.exists()


def test_pids_cgroup_is_found_or_the_reason_is_named() -> None:
    folder, why = find_pids_cgroup()
    if folder is None:
        assert "pids cgroup" in why
        pytest.skip(why)
    # Others may probe at the same time, or have been killed while they did.
    assert not list(folder.glob(f"dendro-probe-{os.getpid()}-*"))


def test_two_threads_probe_at_once_in_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, tried = threading.Barrier(2), list[str]()

    def moved(place: Path) -> None:
        tried.append(place.parent.name)
        both.wait(10)

    monkeypatch.setattr(limits, "_move_a_process", moved)
    monkeypatch.setattr(limits, "remove_cgroup", lambda path, patience_s: shutil.rmtree(path))
    real = Path.mkdir

    def made(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        real(path, mode, parents, exist_ok)
        (path / "pids.max").touch()

    monkeypatch.setattr(Path, "mkdir", made)
    with ThreadPoolExecutor(2) as pool:
        for trial in [pool.submit(limits._try_out, tmp_path, (("pids.max", "16"),)) for _ in range(2)]:
            trial.result(10)
    assert len(set(tried)) == 2
