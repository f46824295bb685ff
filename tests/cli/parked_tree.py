"""A tree that stands still: its root waits for an agent that waits for a person; the others are done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from tests.cli.machine import Machine, dendro
from tests.started import Started

FILES = {
    "hello/main.py": "print('hello')\n" * 3,
    "hello/words.py": "GREETING = 'hello'\n",
    "tests/test_words.py": "def test_greets():\n    assert True\n",
    "README.md": "# Small\n",
}
HELLO, TESTS, ASKER, WAITER, FAILING, HISTORIAN, READER = range(1, 8)
"""The agents of the stub's tree in this repository, in the order in which they are made."""
PROMPT = "Survey this repository with agents, and merge what they find into REPORT.md."


@dataclass(frozen=True)
class ParkedTree:
    """A machine with a model, a worker, and one tree."""

    machine: Machine
    root: str
    worker: subprocess.Popen[bytes]

    def run(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return self.machine.run(*words, input=input)

    def says(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str) -> tuple[int, str]:
        """The exit code and the words of a command that fails."""
        done = self.run(*words)
        return done.returncode, done.stderr

    def tree(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.says("tree", self.root, "--json"))
        return found

    def agent(self, number: int) -> dict[str, Any]:
        return next(agent for agent in self.tree()["agents"] if agent["agent_id"] == number)

    def until(self, number: int, **wanted: Any) -> dict[str, Any]:
        """The agent, once these of its fields are so; each look takes a process's start."""
        for _ in range(100):
            found = self.agent(number)
            if wanted.items() <= found.items():
                return found
        raise AssertionError(f"agent {number} never is {wanted}: {found}")

    def lose_worker(self) -> None:
        """The worker's machine is gone, and its leases have run out: nobody waits six seconds for that.

        So the process goes first that would give its sessions back at once.
        """
        self.worker.send_signal(signal.SIGSTOP)
        for task in Path(f"/proc/{self.worker.pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                if "burial" in Path(f"/proc/{child}/cmdline").read_text():
                    os.kill(child, signal.SIGKILL)
        self.worker.kill()
        self.worker.wait()
        with Redis.from_url(self.machine.environ["DENDRO_REDIS_URL"]) as server:
            now_s, _ = server.time()
            for key in server.scan_iter("dendro:{s*}:leases:*"):
                for session in server.zrange(key, 0, -1):
                    server.zadd(key, {session: now_s * 1000}, xx=True)

    def follow(self) -> list[dict[str, Any]]:
        """Watches the root until its task is over; answers what it saw."""
        done = self.run("run", "--resume", self.root, "--no-worker", "--json")
        return [json.loads(line)["msg"] for line in done.stdout.splitlines()]


def repository(folder: Path) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "First stone"]):
        subprocess.run([*git, *words], check=True, capture_output=True)


@contextmanager
def parked_tree(machine: Machine, *settings: str) -> Iterator[ParkedTree]:
    """Grows the tree until it stands still."""
    repository(machine.folder)
    with machine.behaving("tree") as user, worker(user) as process:
        began = user.run("run", PROMPT, "--no-worker", *settings)
        assert began.returncode == 3, f"nobody was asked: {began.stdout}{began.stderr}"
        found = ParkedTree(user, user.sessions()[0]["tree_id"], process)
        yield _still(found)


def _still(found: ParkedTree) -> ParkedTree:
    """Each look takes a process's start: that is pause enough."""
    for _ in range(100):
        agents = found.tree()["agents"]
        busy = [agent["agent_id"] for agent in agents if agent.get("status") in ("queued", "running")]
        if busy == [ASKER] and agents[0]["session_status"] == "waiting":
            return found
    raise AssertionError(f"the tree does not come to rest: {found.tree()}")


@contextmanager
def deaf_worker(machine: Machine) -> Iterator[None]:
    """A worker that does not act; it does not leave when it is told to, either."""
    program = [sys.executable, "-m", "tests.cli.deaf_worker"]
    environ = {**machine.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(program, cwd=machine.folder, env=environ, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def worker(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process; it is told to leave at the end."""
    with Started(
        dendro("worker"), cwd=machine.folder, env=machine.environ, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
