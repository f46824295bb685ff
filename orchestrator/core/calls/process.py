"""Processes: commands that may go on behind their call (`exec_command`), and what is typed to them.

`exec_command` is a command as any other until its time to wait is over: `Lasting` says what differs. A call
of `write_stdin` runs no command, so nobody is asked about it: the start of its process was judged.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from orchestrator.core.forms import TEXT, reader_of, whole, writer_of
from orchestrator.core.frozen import record
from orchestrator.protocol.events import TerminalInteraction
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import JsonMapping, JsonObject


@record
class Lasting:
    """A command of `exec_command`: its properties beside its words."""

    kind: ClassVar[Literal["lasting"]] = "lasting"
    tty: bool
    """Whether it gets a terminal of its own; without one it has no input."""
    yield_ms: int
    """The time that the call waits for its end."""
    max_tokens: int
    """The length of the output that the model reads, at four bytes a token."""
    number: int = 0
    """The process's number, which models call its session id; taken when it starts."""


_READ, _WRITE = reader_of(Lasting), writer_of(Lasting, Lasting.kind)


def read_lasting(stated: JsonMapping | None) -> Lasting | None:
    return _READ(stated) if stated is not None else None


def write_lasting(lasting: Lasting) -> JsonObject:
    return _WRITE(lasting)


@record
class WriteStdin:
    """A call of `write_stdin`: `chars` go to a process, then its output is read; without any it is read."""

    number: int
    chars: str
    yield_ms: int
    max_tokens: int


@record
class StdinWork:
    """A call of `write_stdin` that runs."""

    kind: ClassVar[Literal["stdin"]] = "stdin"
    number: int
    started_by: CallId
    """The call that started the process: events about it bear this id."""
    chars: LargeText = field(metadata=TEXT)
    yield_ms: int
    max_tokens: int

    def begin(self) -> TerminalInteraction | None:
        """The event of what is typed; None where nothing is."""
        typed = whole(self.chars)
        if not typed:
            return None
        return TerminalInteraction(call_id=self.started_by, process_id=str(self.number), stdin=typed)


def look_output(output: str, seconds: float, *, running: int | None = None, exit_code: int = 0) -> str:
    """The text that a model reads of a look at a process: `running` is its number, None once it has ended."""
    state = (
        f"Process exited with code {exit_code}"
        if running is None
        else f"Process running with session ID {running}"
    )
    return f"Wall time: {seconds:.1f} seconds\n{state}\nOutput:\n{output}"


BYTES_PER_TOKEN = 4


def cut_output(text: str, max_tokens: int) -> str:
    """The beginning and the end of a text, with what was left out said between them."""
    data, most = text.encode("utf-8", "replace"), max_tokens * BYTES_PER_TOKEN
    if len(data) <= most:
        return text
    head = data[: most // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (most - most // 2) :].decode("utf-8", "ignore")
    return f"{head}\n[... omitted {len(data) - most} of {len(data)} bytes ...]\n{tail}"
