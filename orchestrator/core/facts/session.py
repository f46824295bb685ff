"""Facts about a session: what it runs under, what waits for it, its conversation, its close."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias, TypedDict

from orchestrator.core.frozen import record
from orchestrator.core.history import Item
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.record_json import ALWAYS, EMPTY, LIST, TEXT, form
from orchestrator.core.sender import Sender
from orchestrator.core.settings import SENDER, SessionFacts, SettingsChanges, TurnSettings
from orchestrator.core.user_turns import UserTurn
from orchestrator.protocol.ids import CallId, ResponseId, SubmissionId
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import JsonMapping, JsonObject


@record
class Configured:
    """The session's first settings, and what stays with it for life (pool, instructions, lineage)."""

    kind: ClassVar[str] = "configured"
    of: ClassVar[Literal["session"]] = "session"
    settings: TurnSettings = field(metadata=form(read=TurnSettings.of, write=TurnSettings.wire))
    session: SessionFacts = field(metadata=form(read=SessionFacts.of, write=SessionFacts.wire))
    export_mac: bool = False
    """Whether every full export of the log bears a code on its first line; older logs do not say so."""
    by: Sender | None = field(default=None, metadata=SENDER)
    """The one who made a root; on whose behalf an agent works is among its facts."""


@record
class SettingsChanged:
    """New defaults for later tasks: only the fields named; `effort: null` clears."""

    kind: ClassVar[str] = "settings"
    of: ClassVar[Literal["session"]] = "session"
    changes: SettingsChanges
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class Instructed:
    """The system prompt is replaced, from the next request on."""

    kind: ClassVar[str] = "instructed"
    of: ClassVar[Literal["session"]] = "session"
    base_instructions: str
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class Named:
    """The session's name for people."""

    kind: ClassVar[str] = "named"
    of: ClassVar[Literal["session"]] = "session"
    name: str
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class InputQueued:
    """A user-turn op accepted while another task holds the session; it waits in the state."""

    kind: ClassVar[str] = "queued"
    of: ClassVar[Literal["session"]] = "session"
    id: SubmissionId
    turn: UserTurn = field(metadata=form("op", read=UserTurn.of, write=UserTurn.wire))
    client: str | None = field(metadata=EMPTY)
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class QueueOrdered:
    """The inputs that wait, in this order; one that is not named was taken out."""

    kind: ClassVar[str] = "queue_ordered"
    of: ClassVar[Literal["session"]] = "session"
    ids: tuple[SubmissionId, ...] = field(metadata=LIST)
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class QueuedEdited:
    """An input that waits says something else; it keeps its place and its settings."""

    kind: ClassVar[str] = "queue_edited"
    of: ClassVar[Literal["session"]] = "session"
    id: SubmissionId
    items: tuple[Item, ...] = field(metadata=LIST)
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class Closing:
    """The session closes as soon as nothing runs; `by` is the shutdown's submission id."""

    kind: ClassVar[str] = "closing"
    of: ClassVar[Literal["session"]] = "session"
    by: SubmissionId
    sender: Sender | None = field(default=None, metadata=SENDER)
    keeps_lookups: bool = False
    """Whether the closed session answers the look-ups that are open; earlier versions dropped them."""


@record
class Closed:
    """The session is over until somebody resumes it."""

    kind: ClassVar[str] = "closed"
    of: ClassVar[Literal["session"]] = "session"


@record
class RateLimitsReported:
    """The provider's rate limits, as its last answer told them."""

    kind: ClassVar[str] = "rate_limits"
    of: ClassVar[Literal["session"]] = "session"
    snapshot: JsonMapping


@record
class TimerTaken:
    """A timer's generation is taken: a session never uses one twice."""

    kind: ClassVar[str] = "timer"
    of: ClassVar[Literal["session"]] = "session"
    generation: int


@record
class Answered:
    """A decision on a request of the task `turn`: by whom, what, and when (milliseconds).

    An answer that is sent on names the `agent_id` that has asked: it decides nothing here.
    """

    kind: ClassVar[str] = "answer"
    of: ClassVar[Literal["session"]] = "session"
    call_id: CallId
    turn: SubmissionId
    decision: str
    who: str
    answered_ms: int = field(default=0, metadata=ALWAYS)
    agent_id: AgentId | None = None
    digest: str = ""
    """The identity of the response to questions, whose words the call's output has; approvals have none, nor
    have responses with a secret text, which could be guessed by it."""
    secret: str = ""
    """The name of a response with a secret text, beside the log."""
    shown: LargeText = field(default="", metadata=TEXT)
    """Exactly what the person had before them, as their client states it; empty where it states nothing."""
    surface: str = ""
    """Where they had it: a terminal, a client of a door."""
    opened_ms: int = 0
    """Since when, in Unix milliseconds."""
    by: Sender | None = field(default=None, metadata=SENDER)
    """The door's word for `who`; None where a timer decided, or an older version wrote."""
    sig: str = ""
    """A person's signature under it, in base64, as docs/protocol/bundle.md has it."""
    key: str = ""
    """The verifier key that it names, or the beginning of it."""
    request: str = ""
    """The digest of the request that was signed with it; a signature of before has none."""


@record
class ApprovedForSession:
    """Commands and folders that are not asked about again in this session."""

    kind: ClassVar[str] = "approved_for_session"
    of: ClassVar[Literal["session"]] = "session"
    keys: tuple[str, ...] = field(metadata=LIST)
    roots: tuple[str, ...] = field(metadata=LIST)
    signed: bool = False
    """Whether a person whom the worker knows has signed it: then it counts where signatures are asked for."""


@record
class Rewound:
    """The conversation goes on from the end of an earlier turn.

    Of one before a compaction the conversation stands here, as it stands in `Forked`.
    """

    kind: ClassVar[str] = "rewound"
    of: ClassVar[Literal["session"]] = "session"
    response_id: ResponseId
    length: int
    content: str | JsonObject | None = None
    user_texts: tuple[str, ...] = field(default=(), metadata=LIST)
    instructions: tuple[JsonMapping, ...] = field(default=(), metadata=LIST)
    by: Sender | None = field(default=None, metadata=SENDER)


class ForkedAt(TypedDict):
    """The place in another log at which a fork begins: its session, the entry, the chain's value in hex."""

    session: SessionId
    seq: int
    chain: str


@record
class Forked:
    """The conversation that a fork begins with, as JSON text, or the reference to it.

    What a compaction keeps of the conversation, which it cannot open, stands beside it.
    """

    kind: ClassVar[str] = "forked"
    of: ClassVar[Literal["session"]] = "session"
    parent: ForkedAt
    content: str | JsonObject
    user_texts: tuple[str, ...] = field(default=(), metadata=LIST)
    """The newest texts of people in it."""
    instructions: tuple[JsonMapping, ...] = field(default=(), metadata=LIST)
    """The instructions in it that hold, as items."""


@record
class LookUpAsked:
    """An op whose answer lies outside of the log was accepted; it is owed beside whatever runs."""

    kind: ClassVar[str] = "lookup"
    of: ClassVar[Literal["session"]] = "session"
    id: SubmissionId
    op: JsonMapping
    client: str | None = field(metadata=EMPTY)
    who: str
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class LookUpEnded:
    """A look-up was answered, or has failed; the event beside it says which."""

    kind: ClassVar[str] = "looked_up"
    of: ClassVar[Literal["session"]] = "session"
    id: SubmissionId
    client: str | None = field(metadata=EMPTY)


@record
class FoldersTold:
    """The folders whose instructions the conversation holds; it replaces what was known before."""

    kind: ClassVar[str] = "folders_told"
    of: ClassVar[Literal["session"]] = "session"
    folders: tuple[str, ...] = field(metadata=LIST)


@record
class Claimed:
    """The first entry of an epoch that has any: which worker writes it, and by what settings and rules.

    `settings`, `rules` and `trust` are SHA-256 of texts, each of which a `text` of the log has.
    """

    kind: ClassVar[str] = "claimed"
    of: ClassVar[Literal["nothing"]] = "nothing"
    worker: str
    machine: str
    user: str
    version: str
    commit: str = ""
    """The commit of the program, where it runs from a check-out or was installed from one."""
    python: str = ""
    sandbox: JsonMapping = field(default_factory=dict, metadata=ALWAYS)
    """`kind` (`bubblewrap`, `landlock` or `none`) and `version`."""
    settings: str = ""
    """Of all settings in force, without secrets."""
    rules: str = ""
    """Of the rules about commands that hold in the session's folder."""
    trust: str = ""
    """Of the list of files that the person trusts."""
    mcp: tuple[JsonMapping, ...] = field(default=(), metadata=LIST)
    """The servers of the session's folder: `name`, `version`, and `tools`, the SHA-256 of their list; both
    empty for one that has not started yet."""


@record
class TextKept:
    """A text that facts name by its SHA-256, where the log has it for the first time."""

    kind: ClassVar[str] = "text"
    of: ClassVar[Literal["session"]] = "session"
    sha256: str
    content: str | JsonObject


@record
class Redacted:
    """The text of an entry was taken away by a person: of this log, whose name says whose.

    The chain goes on by `digest`. `instead` is what the fold takes in the entry's place: its line with the
    words in it replaced.
    """

    kind: ClassVar[str] = "redacted"
    of: ClassVar[Literal["nothing"]] = "nothing"
    log: str
    seq: int
    digest: str
    who: str
    why: str
    instead: JsonObject
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class Bundled:
    """A bundle of the tree was made, which has this log up to the entry `seq`; stated by whoever made it."""

    kind: ClassVar[str] = "bundled"
    of: ClassVar[Literal["nothing"]] = "nothing"
    digest: str
    """SHA-256 of its manifest, in hex, which its note signs."""
    seq: int
    sessions: int
    """Sessions whose logs are in it."""
    withheld: int
    """Entries that were kept back."""
    key: str
    """The verifier key that signed it."""
    who: str
    by: Sender | None = field(default=None, metadata=SENDER)


@record
class PlanPinned:
    """A plan was approved: the next task of a person is shown it. It replaces an earlier one."""

    kind: ClassVar[str] = "plan_pinned"
    of: ClassVar[Literal["session"]] = "session"
    plan: JsonMapping


SessionFact: TypeAlias = (
    Configured
    | SettingsChanged
    | Instructed
    | Named
    | InputQueued
    | QueueOrdered
    | QueuedEdited
    | Closing
    | Closed
    | RateLimitsReported
    | TimerTaken
    | Answered
    | ApprovedForSession
    | Rewound
    | Forked
    | LookUpAsked
    | LookUpEnded
    | FoldersTold
    | PlanPinned
    | TextKept
)
