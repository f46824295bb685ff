"""The part of a step that concerns other sessions, in the broker's terms.

A child's log is chained here as its parent's commit will write it: under epoch 0, which is
no claim's. Depths of inboxes are left open in the events, for the commit to fill in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from orchestrator.broker.records import Mail, NewSession, NewSubmission
from orchestrator.broker.seal import LogWriter, seal_first
from orchestrator.broker.tree_records import BudgetWait, Reservation, Settlement, TreeEvent
from orchestrator.core.decide.agent_status import cancel_flags
from orchestrator.core.draft import Debit, NewChild, OutboundMessage, TreePart
from orchestrator.core.draft import TreeEvent as CoreEvent
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.settings import SessionFacts
from orchestrator.core.stored import encode_value
from orchestrator.protocol.wire import written

_DEPTHS = b'"pending_messages":0,"pending_interrupts":0'
CLIENT = "tree"
"""The client of the submission that an agent begins with."""


@dataclass(frozen=True, slots=True)
class TreeSite:
    """The session for which a part is encoded, and the inputs of its chain."""

    facts: SessionFacts
    random_bytes: Callable[[int], bytes]
    secret: bytes
    blobs: dict[str, bytes]
    at_ms: int


@dataclass(slots=True)
class TreeStep:
    """The part of one step that concerns the tree."""

    mail: list[Mail] = field(default_factory=list)
    children: list[NewSession] = field(default_factory=list)
    events: list[TreeEvent] = field(default_factory=list)
    summary: dict[str, bytes] = field(default_factory=dict)
    debits: list[Debit] = field(default_factory=list)
    unless_flagged: tuple[str, ...] = ()
    taken: tuple[int, int] = (0, 0)
    entries: int = 0
    settlements: list[Settlement] = field(default_factory=list)
    reservation: Reservation | None = None
    budget_wait: BudgetWait | None = None

    def take(self, part: TreePart, site: TreeSite, events_before: int) -> int:
        """Adds a decision's part; answers how many bytes it adds to the commit."""
        children = [_born(child, site) for child in part.children]
        mail = [_mail(outbound) for outbound in part.outbox]
        events = [_event(event, events_before, site.blobs) for event in part.events]
        summary = {name: _bytes(value) for name, value in part.summary.items()}
        self.children += children
        self.mail += mail
        self.events += events
        self.summary |= summary
        self.debits += part.debits
        if part.guarded:
            self.unless_flagged = cancel_flags(site.facts.ancestors, site.facts.agent_id)
        self.taken = (self.taken[0] + part.taken[0], self.taken[1] + part.taken[1])
        self.entries += sum(len(child.entries) for child in children)
        told = (piece for event in events for piece in (*event.parts, event.about))
        payloads = (outbound.payload for outbound in mail)
        return sum(map(len, (*told, *payloads, *summary.values()))) + sum(map(_size, children))

    def events_after(self, earlier: int) -> tuple[TreeEvent, ...]:
        """The events, where `earlier` more of the session's own go before all of them."""
        return tuple(replace(event, after=event.after + earlier) for event in self.events)


def _size(child: NewSession) -> int:
    logged = sum(len(entry.payload) for entry in child.entries) + sum(len(ev.payload) for ev in child.events)
    return logged + sum(len(submission.payload) for submission in child.submissions) + len(child.meta)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else dumps(value)


def dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _mail(outbound: OutboundMessage) -> Mail:
    payload = dumps({"kind": outbound.kind, **outbound.payload})
    return Mail(
        SessionId(outbound.to),
        payload,
        outbound.interrupt,
        outbound.key,
        counted=outbound.counted,
        bounded=outbound.bounded,
    )


def _event(event: CoreEvent, after: int, blobs: dict[str, bytes]) -> TreeEvent:
    payload = encode_value({"id": event.id or "", "msg": written(event.message)}, blobs)
    targets = tuple(SessionId(target) for target in event.targets)
    about = dumps(event.about) if event.about else b""
    if not event.inbox:
        return TreeEvent((payload,), targets, about=about, after=after, once=event.once)
    # The last such place: texts of people come before it.
    head, _, tail = payload.rpartition(_DEPTHS)
    parts = (head + b'"pending_messages":', b',"pending_interrupts":', tail)
    return TreeEvent(parts, targets, SessionId(event.inbox), about, after, event.once)


def _born(child: NewChild, site: TreeSite) -> NewSession:
    facts = child.facts
    first = seal_first(child.entries, site.at_ms, site.blobs, LogWriter(site.random_bytes, site.secret))
    return NewSession(
        session=SessionId(facts.session_id),
        tree=TreeId(facts.tree_id),
        pool=facts.pool,
        agent_id=AgentId(facts.agent_id),
        parent=facts.parent_session,
        entries=first.entries,
        events=first.events,
        meta=dumps({"cwd": child.settings.cwd, "model": child.settings.model, "title": child.title}),
        submissions=() if child.first is None else (_first(child.first),),
    )


def _first(submission: Mapping[str, Any]) -> NewSubmission:
    return NewSubmission(CLIENT, str(submission["id"]), dumps(submission))
