"""The records of what a supervisor runs: a command and what became of it, and what became of a patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.frozen import record
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy import Confinement

Stream = Literal["stdout", "stderr"]
OutputSink = Callable[[Stream, bytes], None]
"""Gets every chunk as it is read, on the event loop; must not block."""


@record
class Command:
    """A command under a claim; it runs only while the claim's deadline is ahead."""

    claim: str
    call_id: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    confinement: Confinement
    timeout_s: float | None = 10.0
    """None: until it ends by itself or the claim does."""
    limits: Limits = field(default_factory=Limits)
    tty: bool = False
    """Whether it gets a terminal of its own, for its input and its outputs."""


@record
class Finished:
    """A command that is over, with every process that it had started."""

    exit_code: int
    """The main process's; 124 after a timeout, 128 + n after signal n, -1 if it never started."""
    stdout: bytes = b""
    stderr: bytes = b""
    aggregated: bytes = b""
    """Both streams in the order in which they were read."""
    duration_s: float = 0.0
    timed_out: bool = False
    killed: bool = False
    """Ended on request or because its claim's deadline had passed."""
    memory_limit: int | None = None
    """The bytes that it may use, if it wanted more and was killed or refused for it."""
    error: str | None = None
    """Why it could not be started, or which processes could not be proved dead."""


@record
class Written:
    """A patch's job that is over, with the process that wrote."""

    outcome: tuple[Any, ...] | None
    """The writer's last message; None if the writer ended without one."""
    begun: bool = True
    """Whether it may have written anything."""
    why: str = ""
    """Why there is no outcome."""


class Grip:
    """The hold on a command that runs: to type to it, and to end it; given to `Supervisor.run`."""

    def __init__(self) -> None:
        self._kill: Callable[[], None] | None = None
        self._write: Callable[[bytes], bool] | None = None
        self._killed = False

    def bind(self, kill: Callable[[], None], write: Callable[[bytes], bool] | None) -> None:
        """Gets hold of the command; `write` is None for one without a terminal."""
        self._kill, self._write = kill, write
        if self._killed:
            kill()

    def kill(self) -> None:
        """Kills the command with everything that it has started; `run` returns when that is proved."""
        self._killed = True
        if self._kill is not None:
            self._kill()

    def write(self, data: bytes) -> bool:
        """Types to the command's terminal; False, and nothing is typed, if too much of before waits."""
        return self._write is not None and self._write(data)
