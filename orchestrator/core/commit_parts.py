"""Parts of a commit in the form that is stored: rules make them, and the broker takes them as they are.

What only a worker knows is added on the way: the salts and chain values of a child's log, and how many of
the commit's own events stand before an event of the tree.

The functions import the codec when they are called: a program that only lists sessions needs the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, TypedDict

import orjson

from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.protocol.ids import SubmissionId

if TYPE_CHECKING:
    from orchestrator.core.entries import Encoded
    from orchestrator.core.settings import SessionFacts, TurnSettings
    from orchestrator.core.tree import AgentRecord
    from orchestrator.protocol.wire import EventModel, JsonMapping, JsonObject

SLOTS = "slots"
SPAWNED = "spawned"
COUNTED = frozenset({"message", "completion"})
WITHDRAWN = "withdrawn"
"""The decision on a request whose turn ended first."""
DECIDED = "was already decided"
"""The words of the error that tells a second answer of the first: its decision, and who gave it, follow."""
_DEPTHS = b'"pending_messages":0,"pending_interrupts":0'


@record
class OpenRequest:
    """A request in the fleet's queue, as its agent has put it there; older versions left fields out."""

    event: JsonMapping
    kind: str = ""
    """The kind of the call's work, which says what op answers it; empty: it was not said."""
    turn: SubmissionId = SubmissionId("")
    sandboxed: bool | None = None
    """How the call runs if it is approved; None: nothing is run, or it was not said."""
    tree: str = ""
    agent_id: AgentId = AgentId(0)
    agent_path: str = "0"
    digest: str = ""
    """The digest of the event that a signature under an answer is bound to (`request_digest`)."""

    @staticmethod
    def stated(payload: bytes) -> JsonObject | None:
        """The value that the queue has of a request; None for what no version has put there."""
        try:
            found = orjson.loads(payload)
        except ValueError:
            return None
        event = found.get("event") if isinstance(found, dict) else None
        return found if isinstance(event, dict) and isinstance(event.get("type"), str) else None

    @classmethod
    def read(cls, value: JsonMapping) -> OpenRequest:
        """The request of a queue's value; members that newer versions add are passed over."""
        return cls(**{each.name: value[each.name] for each in fields(cls) if each.name in value})

    def value(self) -> JsonObject:
        """As the queue has it."""
        said = {} if self.sandboxed is None else {"sandboxed": self.sandboxed}
        return {
            "kind": self.kind,
            "turn": self.turn,
            "event": self.event,
            **said,
            "tree": self.tree,
            "agent_id": self.agent_id,
            "agent_path": self.agent_path,
            "digest": self.digest,
        }


@record
class NewEntry:
    """A rollout entry to append; its seq follows from its place."""

    payload: bytes
    salt: bytes
    chain: bytes


@record
class NewEvent:
    """An event for the EQ, and the rollout entry that it belongs to."""

    payload: bytes
    seq: int
    hash8: str
    at_ms: int = 0
    """The time that its entry says; 0 for an event without an entry, which gets the time of the commit."""


@record
class Timer:
    """A deadline that becomes an SQ entry when it has passed, unless it was cleared.

    Set again under its id, it replaces the one before.
    """

    id: str
    generation: int
    at_ms: int


@record
class Approval:
    """A request for approval that the fleet's queue shows until its key, the call's id, is closed."""

    key: str
    payload: bytes


def approval(call_id: str, request: JsonMapping, blobs: dict[str, bytes]) -> Approval:
    """The approval that shows `request`, the event that asks; large changes go to `blobs`."""
    from orchestrator.core.blobs import externalise
    from orchestrator.core.entries import encode_value

    return Approval(call_id, encode_value(externalise(request, blobs), blobs))


@record
class OutboundMessage:
    """A message from one session of a tree to another, in the commit that makes it true."""

    to: SessionId
    kind: str
    """`message`, `completion`, `status`, `interrupt`, `cancel`, `ended`, `gone` or `answer`."""
    payload: bytes
    """The kind is in it too."""
    key: str
    """Stays the same however often the message is written."""
    interrupt: bool = False

    @property
    def counted(self) -> bool:
        """Whether the message waits in the inbox for a model; other messages are obeyed when they arrive."""
        return self.kind in COUNTED

    @property
    def bounded(self) -> bool:
        """Whether a full queue refuses it: a `message` can wait, an end or a cancel must arrive.

        Two agents whose queues are full would else wait for each other's room for ever.
        """
        return self.kind == "message"


class TreeNote(TypedDict, total=False):
    """Data for the fold of a tree log, beside an event's message."""

    record: AgentRecord
    """The agent's record from here on; the others are about `agent_id`, which has no new record."""
    agent_id: AgentId
    read: int
    """The number of the turn whose result the parent has read."""
    marked: bool
    """Whether the agent was cancelled."""
    takeover: int
    """The epoch of the claim that took the agent over from a lost worker."""
    response: str
    """The identity of the response that settled an agent's questions."""
    limits: Mapping[str, tuple[int | None, int]]
    """Limits before (None: there was none) and behind a change; the script that raises them adds it."""


@record
class TreeEvent:
    """An entry of the tree log, which its targets' event queues get as well, all under one order."""

    parts: tuple[bytes, ...]
    """The payload: one part, or several. Between parts the commit writes depths of `inbox`, in turn
    the messages and the interrupts, as they are when the commit is visible: only it knows them."""
    targets: tuple[SessionId, ...] = ()
    """Sessions of the tree; the committing one may be among them. One that is gone is left out."""
    inbox: SessionId | None = None
    about: bytes = b""
    """Data for the tree log alone: a `TreeNote`."""
    after: int = 0
    """How many of the commit's own events stand before it where the committing session is a target."""
    once: str = ""
    """With a name, the event is dropped if one of that name was written before (`said:<name>`)."""


def tree_event(
    id: str | None,
    message: EventModel | JsonMapping,
    targets: Iterable[str],
    blobs: dict[str, bytes],
    *,
    inbox: str = "",
    about: TreeNote | None = None,
    once: str = "",
) -> TreeEvent:
    """The event of a message, whose large texts go to `blobs`; a mapping is a message as it is written.

    With `inbox` it tells that inbox's depths.
    """
    from orchestrator.core.entries import encode_json, encode_value, event

    payload = encode_value({"id": id or "", "msg": event("", message).payload}, blobs)
    targeted = tuple(SessionId(target) for target in targets)
    note = encode_json(about) if about else b""
    if not inbox:
        return TreeEvent((payload,), targeted, about=note, once=once)
    # The last such place: texts of people come before it.
    head, _, tail = payload.rpartition(_DEPTHS)
    parts = (head + b'"pending_messages":', b',"pending_interrupts":', tail)
    return TreeEvent(parts, targeted, SessionId(inbox), note, once=once)


@record
class NewSubmission:
    """A submission that a session is born with."""

    client: str
    submission: str
    payload: bytes
    kind: str = "submission"
    sender: str = ""


@record
class NewSession:
    """A session to create, root or child; its entries are chained under epoch 0."""

    session: SessionId
    tree: TreeId
    pool: str
    agent_id: AgentId
    parent: SessionId | None = None
    entries: tuple[NewEntry, ...] = ()
    events: tuple[NewEvent, ...] = ()
    meta: bytes = b""
    submissions: tuple[NewSubmission, ...] = ()
    status: str = "idle"
    portable: bool = False
    """Whether any machine may make its folder: those without room leave the session to others."""
    unsealed: tuple[Encoded, ...] = ()
    """The log of a child that was decided: sealed, it becomes `entries` and `events`."""


def new_session(
    facts: SessionFacts, settings: TurnSettings, title: str = "", forked_from: str | None = None
) -> NewSession:
    """The session with these facts, without a log yet; lists show the title until it rests."""
    from orchestrator.core.entries import encode_json

    shown = {
        "cwd": settings.cwd,
        "model": settings.model,
        "model_provider": settings.model_provider,
        "title": title,
    }
    if forked_from is not None:
        shown["forked_from"] = forked_from
    return NewSession(
        session=facts.session_id,
        tree=facts.tree_id,
        pool=facts.pool,
        agent_id=facts.agent_id,
        parent=facts.parent_session,
        meta=encode_json(shown),
        portable=facts.portable is not None,
    )


@record
class Debit:
    """Takes `amount` from a counter of the tree, refused if it would pass the field `limit`.

    A negative amount gives back and is never refused. An empty limit only counts.
    """

    counter: str
    amount: int
    limit: str = ""


@record
class TreePart:
    """The part of a commit that concerns other sessions, and the tree's counters."""

    outbox: tuple[OutboundMessage, ...] = ()
    children: tuple[NewSession, ...] = ()
    events: tuple[TreeEvent, ...] = ()
    summary: Mapping[str, bytes] = field(default_factory=dict)
    """Flat fields of `agents:<tree>`, the registry's projection."""
    debits: tuple[Debit, ...] = ()
    unless_flagged: tuple[str, ...] = ()
    """Fields of `agents:<tree>` (cancel flags) that must not exist: the commit is refused if one does."""
    taken: tuple[int, int] = (0, 0)
    """Regular and interrupting messages that left the inbox."""
    secrets_dropped: tuple[str, ...] = ()
    """The names of answers whose texts, which stand beside the log, go with this commit."""

    def and_then(self, later: TreePart) -> TreePart:
        """The part of both in one commit."""
        return TreePart(
            self.outbox + later.outbox,
            self.children + later.children,
            self.events + later.events,
            {**self.summary, **later.summary},
            self.debits + later.debits,
            later.unless_flagged or self.unless_flagged,
            (self.taken[0] + later.taken[0], self.taken[1] + later.taken[1]),
            self.secrets_dropped + later.secrets_dropped,
        )

    def behind(self, events: int) -> TreePart:
        """The part where this many more of the session's own events stand before those of the tree."""
        moved = (replace(event, after=event.after + events) for event in self.events)
        return replace(self, events=tuple(moved))

    @property
    def entries(self) -> int:
        """The number of entries that it writes to the logs of new sessions."""
        return sum(len(child.entries) for child in self.children)

    @property
    def size(self) -> int:
        """The bytes that it adds to a commit."""
        told = (piece for event in self.events for piece in (*event.parts, event.about))
        payloads = (outbound.payload for outbound in self.outbox)
        return sum(map(len, (*told, *payloads, *self.summary.values()))) + sum(map(_size, self.children))


def _size(child: NewSession) -> int:
    logged = sum(len(entry.payload) for entry in child.entries) + sum(len(ev.payload) for ev in child.events)
    return logged + sum(len(submission.payload) for submission in child.submissions) + len(child.meta)


# ── timers ────────────────────────────────────────────────────────────────────────────────────────
# The names of a session's timers; each becomes an SQ entry when its time has passed.


RETRY_TIMER = "retry"
"""A model request is to be tried again."""
BUDGET_TIMER = "budget"
"""The timer that a commit makes due when it makes room in the tree's budget."""
REAP_TIMER = "reap"
REAP_BELOW_TIMER = "reap-below"
"""The reap timer for agents further below, whose end is told to their own parents alone."""
REAP_MS = 30_000
"""Milliseconds until the claim of a cancelled agent that has not reported its end is taken from its
worker."""
FOLDER_TIMER = "folder"
"""A folder's changes that the store has not got are to be tried again."""
FOLDER_MS = 600_000
"""Milliseconds until then."""
STANDING_TIMERS: Mapping[str, int] = {REAP_TIMER: REAP_MS, REAP_BELOW_TIMER: REAP_MS}
"""Timers that fire again, after so many milliseconds, until they are cleared: the worker that one woke may be
lost before it has read why, and another must then be woken."""


def approval_timer(call_id: str) -> str:
    return f"approval:{call_id}"


def wait_timer(call_id: str) -> str:
    """The deadline of a call that waits for agents."""
    return f"wait:{call_id}"


def watchdog_timer(agent_id: int) -> str:
    return f"watchdog:{agent_id}"
