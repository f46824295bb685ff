"""Limits on the number of processes."""

import os
import resource
import subprocess

import pytest

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


def test_pids_cgroup_is_found_or_the_reason_is_named() -> None:
    folder, why = find_pids_cgroup()
    if folder is None:
        assert "pids cgroup" in why
        pytest.skip(why)
    # Others may probe at the same time, or have been killed while they did.
    assert not (folder / f"dendro-probe-{os.getpid()}").exists()
