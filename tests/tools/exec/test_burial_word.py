"""A supervisor says that its worker is dead: when it is, when nothing of it runs, and at no other time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 20.0


@dataclass
class Worker:
    """A worker whose command runs, the descriptor of that one's process, and the pipe for the word."""

    process: subprocess.Popen[bytes]
    command: int
    word: int

    def does(self, what: str) -> bytes:
        """Has it do something, and waits until it has."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def heard(self) -> bytes:
        """The word, or nothing where its pipe ended without one."""
        assert _readable(self.word), "neither a word nor the end of whoever could say it"
        return os.read(self.word, 8)


def _readable(descriptor: int, seconds: float = PATIENCE_S) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    os.mkfifo(tmp_path / "fifo")
    word, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.exec.buried_worker", str(tmp_path), str(theirs)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[theirs],
    )
    os.close(theirs)
    command = os.pidfd_open(int((tmp_path / "fifo").read_text()))
    yield Worker(process, command, word)
    process.kill()
    process.communicate()
    os.close(command)
    os.close(word)


def test_word_comes_when_the_worker_was_killed_and_its_command_is_dead(worker: Worker) -> None:
    worker.process.kill()
    assert worker.heard() == b"b"
    assert _readable(worker.command, 0.0), "its command runs behind the word"
    assert worker.heard() == b"", "it is said once"


def test_no_word_comes_of_a_worker_that_lives_and_has_closed_its_socket(worker: Worker) -> None:
    assert worker.does("close") == b"done"
    assert _readable(worker.command), "its commands die all the same"
    assert not select.select([worker.word], [], [], 0.5)[0]
    worker.process.kill()
    assert worker.heard() == b"b"


def test_no_word_comes_of_a_worker_that_leaves_in_good_order(worker: Worker) -> None:
    assert worker.does("leave") == b"done"
    assert worker.heard() == b""


def test_no_word_comes_while_a_child_of_the_worker_writes(worker: Worker) -> None:
    child = int(worker.does("child"))
    worker.process.kill()
    assert _readable(worker.command)
    assert not select.select([worker.word], [], [], 0.5)[0], "what it writes into its lifeline is no end"
    os.kill(child, signal.SIGKILL)
    assert worker.heard() == b"b"


def test_worker_whose_supervisor_is_lost_with_a_command_forbids_the_burial(worker: Worker) -> None:
    assert worker.does("kill") == b"done"
    assert worker.process.stdout is not None
    assert worker.process.stdout.readline() == b"forbidden\n"
    assert worker.heard() == b""
