"""Facts: what only Dendro records, one frozen record for each kind.

The protocol has no line for them: in a rollout they are the entries of the one own type `dendro`. This file
is the only place that knows their JSON; `evolve` says what each of them does to a state.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import ClassVar, Literal, TypeAlias, TypedDict, get_args

from orchestrator.core.calls import CallWork, Phase, spec_of, work_of
from orchestrator.core.facts.session import (
    Answered,
    ApprovedForSession,
    Bundled,
    Claimed,
    Closed,
    Closing,
    Configured,
    FoldersTold,
    Forked,
    ForkedAt,
    InputQueued,
    Instructed,
    LookUpAsked,
    LookUpEnded,
    Named,
    PlanPinned,
    QueuedEdited,
    QueueOrdered,
    RateLimitsReported,
    Redacted,
    Rewound,
    SessionFact,
    SettingsChanged,
    TextKept,
    TimerTaken,
)
from orchestrator.core.facts.workspace import (
    WorkspaceBegun,
    WorkspaceCopied,
    WorkspaceFact,
    WorkspaceGiven,
    WorkspaceMade,
    WorkspaceMerged,
    WorkspaceNotMade,
    WorkspaceOffered,
    WorkspaceRolledBack,
    WorkspaceSaved,
    WorkspaceSettled,
    WorkspaceSetupBegun,
    WorkspaceSetupEnded,
    WorkspaceTried,
    WorkspaceUnsaved,
)
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.core.record_json import ALWAYS, EMPTY, LIST, form, reader_of, writer_of
from orchestrator.core.sender import Sender
from orchestrator.core.settings import SENDER, TurnSettings
from orchestrator.core.tokens import Price, Served
from orchestrator.core.tree import Child, ChildChanges, Mail, TreeChanges, Watchdog
from orchestrator.core.user_turns import Outcome, Purpose, StopReason, TaskKind
from orchestrator.protocol.events import CodexErrorInfo
from orchestrator.protocol.ids import CallId, ResponseId, SubmissionId
from orchestrator.protocol.wire import JsonMapping, JsonObject

# ── request ───────────────────────────────────────────────────────────────────────────────────────
# Facts about the model requests of a task; an end tells what the next attempt has to know.

PRICE = form(read=Price.read, write=Price.wire)
SERVED = form(read=Served.read, write=Served.wire)


@record
class RequestBegun:
    """Model request `n` starts after this is committed, under the claim `epoch`."""

    kind: ClassVar[str] = "request_begun"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    purpose: Purpose
    epoch: int


@record
class RequestSent:
    """Request `n` has shown the model this: SHA-256 of its canonical form (`model.canonical`).

    It stands before the first entry of the answer, or before the request's end; where the worker was lost
    before, it is missing. `instructions` and `tools` are SHA-256 of texts of the log.
    """

    kind: ClassVar[str] = "request_sent"
    of: ClassVar[Literal["nothing"]] = "nothing"
    n: int
    sent: str
    instructions: str
    tools: str


@record
class RequestCompleted:
    """The response ended as it should."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["completed"] = field(default="completed", metadata=ALWAYS)
    response_id: ResponseId | None = None
    usage: JsonMapping | None = None
    price: Price | None = field(default=None, metadata=PRICE)
    end_turn: bool | None = None
    """False: the model asks for another request although it made no call."""
    served_by: Served | None = field(default=None, metadata=SERVED)


@record
class RequestRetried:
    """The stream broke: the request is sent again, at `not_before_ms`."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["retry"] = field(default="retry", metadata=ALWAYS)
    http_used: int = field(default=0, metadata=ALWAYS)
    served: bool = True
    """False: no provider worked on it."""
    usage: JsonMapping | None = None
    price: Price | None = field(default=None, metadata=PRICE)
    not_before_ms: int = field(default=0, metadata=ALWAYS)
    wait: int = field(default=0, metadata=ALWAYS)
    """Generation of the timer that wakes the session then; 0: its worker holds it until then."""


@record
class RequestDelayed:
    """The provider or the fleet's own limit asked for patience: no stream broke."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["waiting"] = field(default="waiting", metadata=ALWAYS)
    http_used: int = field(default=0, metadata=ALWAYS)
    not_before_ms: int = field(default=0, metadata=ALWAYS)
    wait: int = field(default=0, metadata=ALWAYS)
    """Generation of the timer that wakes the session, as in `RequestRetried`."""
    usage: JsonMapping | None = None
    price: Price | None = field(default=None, metadata=PRICE)


@record
class RequestFailed:
    """The request failed and is not sent again."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["failed"] = field(default="failed", metadata=ALWAYS)
    served: bool = True
    """False: no provider worked on it."""
    usage: JsonMapping | None = None
    price: Price | None = field(default=None, metadata=PRICE)
    overflow: bool = False
    """The conversation did not fit the model's window: a compaction of less of it follows."""


@record
class RequestStopped:
    """The request ended because its task was being stopped."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["stopped"] = field(default="stopped", metadata=ALWAYS)
    served: bool = True
    """False: no provider worked on it."""
    usage: JsonMapping | None = None
    price: Price | None = field(default=None, metadata=PRICE)


@record
class RetryDue:
    """A long delay is over: the request may be sent."""

    kind: ClassVar[str] = "retry_due"
    of: ClassVar[Literal["request"]] = "request"


@record
class SummaryReceived:
    """The text of a compaction's answer; it joins no conversation by itself."""

    kind: ClassVar[str] = "summary"
    of: ClassVar[Literal["request"]] = "request"
    text: str


RequestEnded: TypeAlias = RequestCompleted | RequestRetried | RequestDelayed | RequestFailed | RequestStopped
RequestFact: TypeAlias = RequestBegun | RequestEnded | RetryDue | SummaryReceived


# ── task ──────────────────────────────────────────────────────────────────────────────────────────
# Facts about the task that holds a session.


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
    by: Sender | None = field(default=None, metadata=SENDER)
    """The one who gave the task; None if no submission did, or an older version wrote."""


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
    sender: Sender | None = field(default=None, metadata=SENDER)


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
    by: Sender | None = field(default=None, metadata=SENDER)


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
    request: str = ""
    """The digest of the request to people (`request_digest`)."""


@record
class ElicitationClosed:
    """The question is decided, or nobody waits for a decision any more."""

    kind: ClassVar[str] = "elicitation_closed"
    of: ClassVar[Literal["task"]] = "task"
    id: str
    decision: str


@record
class AnswerBegins:
    """The beginning of an agent's answer that is too long for its parent; all of it stands beside the log."""

    kind: ClassVar[str] = "answer_begins"
    of: ClassVar[Literal["task"]] = "task"
    text: str


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
    | AnswerBegins
)


# ── agent ─────────────────────────────────────────────────────────────────────────────────────────
# Facts about a session's place in its tree: its own status, its children, its inbox, its watchdogs.


class SentMessage(TypedDict):
    """A message as its sender's log records it, beside its cause; the recipient's log has all of it."""

    agent_id: AgentId
    text: str | None
    interrupt: bool


def _child(wire: JsonMapping) -> Child:
    return Child(**wire)


def _mail(wire: JsonMapping) -> Mail:
    return Mail(**wire)


def _watchdog(wire: JsonMapping) -> Watchdog:
    return Watchdog(**wire)


def _tree_changes(wire: TreeChanges) -> TreeChanges:
    return {**wire, "paused": wire["paused"] or None} if "paused" in wire else wire


def _tree_changes_wire(changes: TreeChanges) -> TreeChanges:
    return {**changes, "paused": changes["paused"] or ""} if "paused" in changes else changes


def _wire(made: Child | Mail | Watchdog) -> JsonObject:
    return {spec.name: getattr(made, spec.name) for spec in fields(made)}


@record
class AgentChanged:
    """The session's own place in its tree: `status`, `slot`, `turns`, `label` and the like."""

    kind: ClassVar[str] = "agent"
    of: ClassVar[Literal["agent"]] = "agent"
    changes: TreeChanges = field(metadata=form(read=_tree_changes, write=_tree_changes_wire))


@record
class ChildMade:
    """This session made an agent; `child` is what this session knows of the agent."""

    kind: ClassVar[str] = "child"
    of: ClassVar[Literal["agent"]] = "agent"
    child: Child = field(metadata=form(read=_child, write=_wire))


@record
class ChildChanged:
    """A child has changed, as its message says or by an act of this session."""

    kind: ClassVar[str] = "child_changed"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_id: AgentId
    changes: ChildChanges


@record
class ChildrenChanged:
    """Several children have changed alike, in one entry: a commit carries only so many."""

    kind: ClassVar[str] = "children_changed"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_ids: tuple[AgentId, ...] = field(metadata=LIST)
    changes: ChildChanges


@record
class ToEnd:
    """Children are to be told to end, in this order, in as many commits as it takes."""

    kind: ClassVar[str] = "to_end"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_ids: tuple[AgentId, ...] = field(metadata=LIST)
    reason: str | None = field(metadata=EMPTY)
    by: Sender | None = field(default=None, metadata=SENDER)
    """The person who asked for it."""


@record
class ToldToEnd:
    """The first `count` of the children that are to end have been told."""

    kind: ClassVar[str] = "told_to_end"
    of: ClassVar[Literal["agent"]] = "agent"
    count: int


@record
class MailReceived:
    """A message that waits until the model can be given it."""

    kind: ClassVar[str] = "mail"
    of: ClassVar[Literal["agent"]] = "agent"
    mail: Mail = field(metadata=form(read=_mail, write=_wire))


@record
class MailTaken:
    """Messages are in the conversation now, or will never be."""

    kind: ClassVar[str] = "mail_taken"
    of: ClassVar[Literal["agent"]] = "agent"
    keys: tuple[str, ...] = field(metadata=LIST)


@record
class WatchdogSet:
    """A watchdog is armed; `sent` is the message that it has just written."""

    kind: ClassVar[str] = "watchdog"
    of: ClassVar[Literal["agent"]] = "agent"
    watchdog: Watchdog = field(metadata=form(read=_watchdog, write=_wire))
    sent: SentMessage | None = None


@record
class WatchdogEnded:
    """The regular message to `agent_id` is not sent any more."""

    kind: ClassVar[str] = "watchdog_ended"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_id: AgentId


AgentFact: TypeAlias = (
    AgentChanged
    | ChildMade
    | ChildChanged
    | ChildrenChanged
    | ToEnd
    | ToldToEnd
    | MailReceived
    | MailTaken
    | WatchdogSet
    | WatchdogEnded
)


# ── call ──────────────────────────────────────────────────────────────────────────────────────────
# Facts about one tool call.


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
    request: str = ""
    """Of one that waits for people: the digest of the request to them (`request_digest`)."""


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


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────


__all__ = [
    "AgentChanged",
    "AgentFact",
    "AnswerBegins",
    "Answered",
    "ApprovedForSession",
    "Bundled",
    "CallMoved",
    "CallsClosed",
    "ChildChanged",
    "ChildMade",
    "ChildrenChanged",
    "Claimed",
    "Closed",
    "Closing",
    "Configured",
    "ElicitationClosed",
    "ElicitationOpened",
    "Ending",
    "Fact",
    "Failing",
    "FoldersTold",
    "Forked",
    "ForkedAt",
    "InputQueued",
    "Instructed",
    "LookUpAsked",
    "LookUpEnded",
    "MailReceived",
    "MailTaken",
    "Named",
    "PlanDecided",
    "PlanPinned",
    "ProcessFact",
    "ProcessKept",
    "ProcessNumbered",
    "ProcessOver",
    "ProcessRead",
    "ProcessesStopping",
    "QueueOrdered",
    "QueuedEdited",
    "RateLimitsReported",
    "Redacted",
    "RequestBegun",
    "RequestCompleted",
    "RequestDelayed",
    "RequestEnded",
    "RequestFact",
    "RequestFailed",
    "RequestRetried",
    "RequestSent",
    "RequestStopped",
    "RetryDue",
    "Rewound",
    "SentMessage",
    "SessionFact",
    "SettingsChanged",
    "Steered",
    "SteeredJoined",
    "Stopping",
    "SummaryReceived",
    "TaskBegun",
    "TaskEnded",
    "TaskFact",
    "TextKept",
    "TimerTaken",
    "ToEnd",
    "ToldToEnd",
    "UnknownFact",
    "VariantDrafted",
    "WatchdogEnded",
    "WatchdogSet",
    "WorkspaceBegun",
    "WorkspaceCopied",
    "WorkspaceFact",
    "WorkspaceGiven",
    "WorkspaceMade",
    "WorkspaceMerged",
    "WorkspaceNotMade",
    "WorkspaceOffered",
    "WorkspaceRolledBack",
    "WorkspaceSaved",
    "WorkspaceSettled",
    "WorkspaceSetupBegun",
    "WorkspaceSetupEnded",
    "WorkspaceTried",
    "WorkspaceUnsaved",
    "decode",
    "encode",
    "states",
]


# ── codec ─────────────────────────────────────────────────────────────────────────────────────────
# A fact as the payload of its entry, and back; the only place that knows how facts are told apart.
#
#     {"kind": "request_begun", "n": 3, "purpose": "turn", "epoch": 7}
#
# What a log holds is copied, exported, sealed and redacted as the payload that it is, which nobody makes
# anew from a fact: so a kind, or a field, of a newer version passes whole. A fact is a reading of it.


Fact: TypeAlias = (
    Claimed
    | Redacted
    | Bundled
    | RequestSent
    | CallMoved
    | RequestFact
    | TaskFact
    | SessionFact
    | AgentFact
    | ProcessFact
    | WorkspaceFact
)
Payload: TypeAlias = JsonMapping
_Read = Callable[[Payload], Fact]
_Write = Callable[[Fact], JsonObject]


@record
class UnknownFact:
    """A fact of a kind that this version does not know: it changes no state."""

    of: ClassVar[Literal["nothing"]] = "nothing"
    payload: Payload


def encode(fact: Fact) -> JsonObject:
    """The payload of the fact's entry, its fields in the order of the record."""
    return _WRITERS[type(fact)](fact)


def decode(payload: Payload) -> Fact | UnknownFact:
    """The fact that a payload states.

    Raises `KeyError`, `TypeError` or `ValueError` for a known kind that lacks a field, or has a wrong one.
    """
    read = _READERS.get(payload.get("kind", ""))
    return UnknownFact(payload) if read is None else read(payload)


def kind_of(payload: Payload) -> type[Fact | UnknownFact]:
    """The record that a payload is read as; it may still be no sound one."""
    match payload:
        case {"kind": RequestCompleted.kind, "outcome": str(outcome)}:
            return _END_OF.get(outcome, UnknownFact)
        case {"kind": str(kind)}:
            return KINDS.get(kind, UnknownFact)
        case _:
            return UnknownFact


def states(payload: Payload, cls: type[Fact]) -> bool:
    """Whether a payload is of this record's kind; it may still be no sound one."""
    return bool(payload.get("kind") == cls.kind)


def _request_ended(payload: Payload) -> Fact:
    return _REQUEST_ENDS[payload["outcome"]](payload)


_ALL: tuple[type[Fact], ...] = get_args(Fact)
_ENDS: tuple[type[RequestEnded], ...] = get_args(RequestEnded)
_WRITERS: Mapping[type[Fact], _Write] = {cls: writer_of(cls, cls.kind) for cls in _ALL}
_END_OF: Mapping[str, type[RequestEnded]] = {
    cls.__dataclass_fields__["outcome"].default: cls for cls in _ENDS
}
_REQUEST_ENDS: Mapping[str, _Read] = {outcome: reader_of(cls) for outcome, cls in _END_OF.items()}
KINDS: Mapping[str, type[Fact]] = {cls.kind: cls for cls in _ALL if cls not in _ENDS}
"""Records of facts by their `kind`, but for those that share one."""
_READERS: Mapping[str, _Read] = {
    **{kind: reader_of(cls) for kind, cls in KINDS.items()},
    _ENDS[0].kind: _request_ended,
}
