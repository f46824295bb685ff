"""Facts about one tool call."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from orchestrator.core.calls import CallWork, spec_of, work_of
from orchestrator.core.facts.agent import SentMessage
from orchestrator.core.forms import LIST, form
from orchestrator.core.frozen import record
from orchestrator.core.turn_calls import Phase
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonObject


@record
class CallMoved:
    """A tool call reaches `phase`, with what any worker needs to carry the phase on."""

    kind: ClassVar[str] = "call"
    of: ClassVar[Literal["call"]] = "call"
    call_id: CallId
    phase: Phase = field(metadata=form(read=Phase))
    epoch: int | None = None
    """The claim under which it runs."""
    work: CallWork | None = field(default=None, metadata=form("spec", read=work_of, write=spec_of))
    """The work or the wait of the call, as assessed."""
    baselines: JsonObject | None = None
    """`set` and `drop`: what an applied patch leaves for the task's diff to count from."""
    sent: SentMessage | None = None
    """The message that the call wrote, for readers of the log."""


# ── process ───────────────────────────────────────────────────────────────────────────────────────
# Facts about processes: commands that go on behind the call that started them.


@record
class ProcessNumbered:
    """A process's number is taken: a session never uses one twice."""

    kind: ClassVar[str] = "process_numbered"
    of: ClassVar[Literal["process"]] = "process"
    number: int


@record
class ProcessKept:
    """The call's time to wait is over, and its command goes on as a process of the session."""

    kind: ClassVar[str] = "process"
    of: ClassVar[Literal["process"]] = "process"
    number: int
    call_id: CallId
    turn: SubmissionId
    command: str
    cwd: str
    epoch: int
    rights: str
    tty: bool = False
    sandboxed: bool = True


@record
class ProcessesStopping:
    """These processes are to be killed; each is over when its end is recorded."""

    kind: ClassVar[str] = "processes_stopping"
    of: ClassVar[Literal["process"]] = "process"
    numbers: tuple[int, ...] = field(metadata=LIST)


@record
class ProcessOver:
    """A process has ended; `exit_code` and what it said last are kept where the model has not read them."""

    kind: ClassVar[str] = "process_over"
    of: ClassVar[Literal["process"]] = "process"
    number: int
    exit_code: int | None = None
    """None where nothing is to be read: the model knows of the end, or is told of it in a message."""
    unread: str = ""


@record
class ProcessRead:
    """The model has read what an ended process said last."""

    kind: ClassVar[str] = "process_read"
    of: ClassVar[Literal["process"]] = "process"
    number: int


ProcessFact: TypeAlias = ProcessNumbered | ProcessKept | ProcessesStopping | ProcessOver | ProcessRead
