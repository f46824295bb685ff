"""Facts: what only Dendro records, one frozen record for each kind.

The protocol has no line for them: in a rollout they are the entries of the one own type `dendro`. This file
is the only place that knows their JSON; `evolve` says what each of them does to a state.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, TypeAlias, get_args

from orchestrator.core.facts.agent import (
    AgentChanged,
    AgentFact,
    ChildChanged,
    ChildMade,
    ChildrenChanged,
    MailReceived,
    MailTaken,
    SentMessage,
    ToEnd,
    ToldToEnd,
    WatchdogEnded,
    WatchdogSet,
)
from orchestrator.core.facts.call import (
    CallMoved,
    ProcessesStopping,
    ProcessFact,
    ProcessKept,
    ProcessNumbered,
    ProcessOver,
    ProcessRead,
)
from orchestrator.core.facts.request import (
    RequestBegun,
    RequestCompleted,
    RequestDelayed,
    RequestEnded,
    RequestFact,
    RequestFailed,
    RequestRetried,
    RequestStopped,
    RetryDue,
    SummaryReceived,
)
from orchestrator.core.facts.session import (
    Answered,
    ApprovedForSession,
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
    Rewound,
    SessionFact,
    SettingsChanged,
    TimerTaken,
)
from orchestrator.core.facts.task import (
    CallsClosed,
    ElicitationClosed,
    ElicitationOpened,
    Ending,
    Failing,
    PlanDecided,
    Steered,
    SteeredJoined,
    Stopping,
    TaskBegun,
    TaskEnded,
    TaskFact,
    VariantDrafted,
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
from orchestrator.core.forms import reader_of, writer_of
from orchestrator.core.frozen import record
from orchestrator.protocol.wire import JsonMapping, JsonObject

__all__ = [
    "AgentChanged",
    "AgentFact",
    "Answered",
    "ApprovedForSession",
    "CallMoved",
    "CallsClosed",
    "ChildChanged",
    "ChildMade",
    "ChildrenChanged",
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
    "RequestBegun",
    "RequestCompleted",
    "RequestDelayed",
    "RequestEnded",
    "RequestFact",
    "RequestFailed",
    "RequestRetried",
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


Fact: TypeAlias = CallMoved | RequestFact | TaskFact | SessionFact | AgentFact | ProcessFact | WorkspaceFact
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
