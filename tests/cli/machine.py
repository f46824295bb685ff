"""A user's machine for tests of the command line: a folder, a home, a Redis, a scripted model.

Commands run in processes of their own (`tests.started`); a terminal is a real one (`pty`).
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.started import COMMAND, Started, own_terminal

PATIENCE_S = 40.0
BURIAL = "DENDRO_WORKER_BURIAL"

TOUCH = {"items": [{"call": "shell", "args": {"command": ["touch", "made.txt"]}}]}
SLEEP = {"items": [{"call": "shell", "args": {"command": ["sleep", "60"], "timeout_ms": 90_000}}]}


def says(text: str) -> dict[str, Any]:
    """A model's answer that is only text."""
    return {"items": [{"text": text}]}


def dendro(*words: str) -> list[str]:
    return [*COMMAND, *words]


@dataclass(frozen=True)
class Machine:
    """Where commands run, and under which environment."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    start: Callable[..., subprocess.Popen[Any]] = Started
    """Starts its commands; another class starts them in namespaces of their own."""

    @classmethod
    def at(cls, root: Path, redis_url: str | None = None) -> Machine:
        """A workspace without a repository, an own home, no model."""
        folder = root / "workspace"
        folder.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        environ = {**kept, "HOME": str(root), "DENDRO_HOME": str(root / "home"), "TERM": "xterm"}
        # A worker that nobody kills needs nobody who waits for its death: a new Python each.
        environ[BURIAL] = "false"
        if redis_url is not None:
            environ["DENDRO_REDIS_URL"] = redis_url
        return cls(folder, environ)

    def under(self, **more: str) -> Machine:
        """The same machine with more environment variables."""
        return replace(self, environ={**self.environ, **more})

    @property
    def buried(self) -> Machine:
        """The same machine, whose killed workers' sessions go on with others at once."""
        return replace(self, environ={name: value for name, value in self.environ.items() if name != BURIAL})

    def run(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        with self.start(
            dendro(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environ,
        ) as process:
            try:
                stdout, stderr = process.communicate(input, PATIENCE_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def session_ids(self) -> list[str]:
        """Ids of all sessions, newest change first."""
        return [row["session_id"] for row in self.sessions()]

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("sessions", "--json", "--all").stdout)
        return found

    @contextmanager
    def model(self, *steps: dict[str, Any]) -> Iterator[Machine]:
        """The same machine with a scripted model."""
        with self.playing(json.dumps(steps)) as user:
            yield user

    @contextmanager
    def playing(self, text: str) -> Iterator[Machine]:
        """The same machine with a model that a scenario file scripts."""
        scenario = self.folder.parent / "scenario.json"
        scenario.write_text(text)
        with self._stub("--scenario", str(scenario)) as user:
            yield user

    @contextmanager
    def behaving(self, name: str) -> Iterator[Machine]:
        """The same machine with a model of a built-in behaviour."""
        with self._stub("--behaviour", name) as user:
            yield user

    @contextmanager
    def _stub(self, *words: str) -> Iterator[Machine]:
        with self.start(
            dendro("model-stub", *words),
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environ,
        ) as stub:
            assert stub.stdout is not None
            try:
                yield self.under(OPENAI_BASE_URL=stub.stdout.readline().strip(), OPENAI_API_KEY="none")
            finally:
                stub.terminate()

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Terminal]:
        """Runs a command at a terminal."""
        ours, theirs = pty.openpty()
        process = self.start(
            dendro(*words),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.folder,
            env=self.environ,
            preexec_fn=own_terminal,
        )
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(ours)


@dataclass
class Terminal:
    """A person before a terminal: reads until something stands there, types, presses Ctrl-C."""

    process: subprocess.Popen[bytes]
    _fd: int
    seen: str = ""

    def wait_for(self, pattern: str) -> str:
        """Everything seen up to `pattern`, which counts once."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.seen)) is None:
            if not self._read(deadline):
                raise AssertionError(f"{pattern!r} did not come; the terminal shows:\n{self.seen}")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def _read(self, deadline: float) -> bool:
        if not select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._fd, 65_536)
        except OSError:
            # Linux: the last process with the other end has gone.
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def exit_code(self) -> int:
        """Waits for the end of the command."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE_S)


def events(text: str) -> list[dict[str, Any]]:
    """The messages of NDJSON events."""
    return [json.loads(line)["msg"] for line in text.splitlines()]


def kinds(text: str) -> Sequence[str]:
    return [message["type"] for message in events(text)]
