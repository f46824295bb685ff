"""Worker processes that are killed or stopped: what they ran does not outlive their right to run it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.sandbox.kernel import CLOCK_BOOTTIME

from .conftest import MakeCommand
from .witness import Witness

MARK = f"8{os.getpid()}"
ROOT = Path(__file__).resolve().parents[3]
RIGHT_S = 1.0
"""Counted from when everything is up: how long that takes is the machine's affair."""
StartWorker = Callable[[], subprocess.Popen[bytes]]

pytestmark = pytest.mark.sandbox


@pytest.fixture
def start_worker(mechanism: str, command: MakeCommand, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts a worker whose command, with all its grandchildren, is known to run."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        os.mkfifo(tmp_path / "fifo")
        argv = [sys.executable, "-m", "tests.tools.exec.doomed_worker"]
        worker = subprocess.Popen(
            [*argv, mechanism, str(tmp_path), f"mark:{MARK}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(worker)
        assert (tmp_path / "fifo").read_text() == "up\n"
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.communicate()


@pytest.fixture
def witness() -> Iterator[Callable[[], Witness]]:
    made: list[Witness] = []

    def make() -> Witness:
        made.append(Witness(MARK))
        return made[-1]

    yield make
    for it in made:
        it.close()


def tell_deadline(worker: subprocess.Popen[bytes], seconds: float) -> None:
    """The right to run ends so many seconds from now; returns when the worker has written it."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{seconds}\n".encode())
    worker.stdin.flush()
    assert worker.stdout.readline() == b"told\n"


def test_everything_dies_with_a_worker_that_is_killed(
    start_worker: StartWorker, witness: Callable[[], Witness]
) -> None:
    worker = start_worker()
    seen = witness()
    assert len(seen.pidfds) >= 3
    assert seen.all_alive()
    worker.kill()
    assert seen.all_dead_within(20)


def test_everything_dies_at_the_deadline_of_a_worker_that_is_stopped(
    start_worker: StartWorker, witness: Callable[[], Witness]
) -> None:
    worker = start_worker()
    seen = witness()
    assert seen.all_alive()
    began = time.clock_gettime(CLOCK_BOOTTIME)
    tell_deadline(worker, RIGHT_S)
    worker.send_signal(signal.SIGSTOP)
    assert seen.all_dead_within(20)
    assert time.clock_gettime(CLOCK_BOOTTIME) - began >= RIGHT_S, "not before its time"
    assert Path("/proc", str(worker.pid), "stat").read_text().rpartition(")")[2].split()[0] == "T"
    worker.send_signal(signal.SIGCONT)
    output, _ = worker.communicate(timeout=20)
    assert output == b"finished 137 True\n"
