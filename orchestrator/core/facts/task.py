"""Facts about the task that holds a session."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from orchestrator.core.forms import ALWAYS, EMPTY, LIST, form
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.core.settings import TurnSettings
from orchestrator.core.task_kinds import Outcome, StopReason, TaskKind
from orchestrator.protocol.faults import CodexErrorInfo
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonMapping, JsonObject


@record
class TaskBegun:
    """A task holds the session from here to its `task_ended`; `settings` are its own."""

    kind: ClassVar[str] = "task"
    of: ClassVar[Literal["task"]] = "task"
    id: SubmissionId
    task: TaskKind
    settings: TurnSettings = field(metadata=form(read=TurnSettings.of, write=TurnSettings.wire))
    output_schema: JsonMapping | None = None
    client: str | None = None
    """The client that submitted the task; None if none did."""
    opening: tuple[JsonMapping, ...] = field(default=(), metadata=LIST)
    """The first items of a task with a conversation of its own."""
    command: str | None = None
    """The command that a person runs, where that is all of the task."""
    takes_plan: bool = False
    """Whether the plan that was approved last is shown to the task: it is gone with it."""


@record
class TaskEnded:
    """No task holds the session any more."""

    kind: ClassVar[str] = "task_ended"
    of: ClassVar[Literal["task"]] = "task"
    outcome: Outcome


@record
class Stopping:
    """The task's work is to be stopped; the task ends when all of it is proved stopped."""

    kind: ClassVar[str] = "stopping"
    of: ClassVar[Literal["task"]] = "task"
    reason: StopReason
    by: str | None = field(default=None, metadata=EMPTY)
    """The submission, the call or the message that asked for the stop."""


@record
class Failing:
    """The task will fail with this error once its running work is stopped."""

    kind: ClassVar[str] = "failing"
    of: ClassVar[Literal["task"]] = "task"
    message: str
    info: CodexErrorInfo = field(default=None, metadata=ALWAYS)
    """The protocol's kind of error (`codex_error_info`)."""


@record
class Ending:
    """Nothing of the stopping task runs any more; its open calls get this output, in several commits."""

    kind: ClassVar[str] = "ending"
    of: ClassVar[Literal["task"]] = "task"
    output: str


@record
class CallsClosed:
    """Calls of an ending task are over, and got their outputs: some of its open calls."""

    kind: ClassVar[str] = "calls_closed"
    of: ClassVar[Literal["task"]] = "task"
    call_ids: tuple[CallId, ...] = field(metadata=LIST)


@record
class Steered:
    """Input that joins the running task at its next request."""

    kind: ClassVar[str] = "steered"
    of: ClassVar[Literal["task"]] = "task"
    id: SubmissionId
    item: JsonMapping


@record
class SteeredJoined:
    """The first `count` of the steered inputs stand in the conversation now."""

    kind: ClassVar[str] = "steered_joined"
    of: ClassVar[Literal["task"]] = "task"
    count: int


@record
class VariantDrafted:
    """A helper's variant of a plan is there; its call waits for those that lack."""

    kind: ClassVar[str] = "variant_drafted"
    of: ClassVar[Literal["task"]] = "task"
    call_id: CallId
    agent_id: AgentId
    variant: JsonObject


@record
class PlanDecided:
    """A person has approved the plan of a planning session, or rejected it: the session is over."""

    kind: ClassVar[str] = "plan_decided"
    of: ClassVar[Literal["task"]] = "task"
    call_id: CallId
    plan: JsonMapping | None = None
    """None: it was rejected."""


@record
class ElicitationOpened:
    """An MCP server asks a person something in the middle of a call."""

    kind: ClassVar[str] = "elicitation"
    of: ClassVar[Literal["task"]] = "task"
    call_id: CallId
    id: str
    server: str
    timer: int | None = None
    """The generation of the timer that ends the wait."""


@record
class ElicitationClosed:
    """The question is decided, or nobody waits for a decision any more."""

    kind: ClassVar[str] = "elicitation_closed"
    of: ClassVar[Literal["task"]] = "task"
    id: str
    decision: str


TaskFact: TypeAlias = (
    TaskBegun
    | TaskEnded
    | Stopping
    | Failing
    | Ending
    | CallsClosed
    | Steered
    | SteeredJoined
    | VariantDrafted
    | PlanDecided
    | ElicitationOpened
    | ElicitationClosed
)
