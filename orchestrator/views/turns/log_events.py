"""Entries of a log as the events that a projector takes: what was published, and what stands there alone.

A log tells of two things that clients are told by events without a place in it: answers of people, and the
conversation's items of calls about agents.
"""

from __future__ import annotations

from typing import Final

import orjson

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import TOLD_BY_ITEMS
from orchestrator.protocol.events import RawResponseItem, RequestResolved
from orchestrator.protocol.items import FunctionCall, FunctionCallOutput
from orchestrator.protocol.wire import JsonObject, tag_of, written
from orchestrator.views.event import Event

_ALONE: Final[frozenset[e.Kind]] = frozenset({FunctionCall, FunctionCallOutput, f.Answered})
"""Kinds that may tell something, though they are no events."""
_ITEM_TOLD: Final = {"type": tag_of(RawResponseItem)}


def may_tell(kind: e.Kind) -> bool:
    """Whether an entry of this kind may be of use to a projector; looked at before it is decoded."""
    return e.is_event(kind) or kind in _ALONE


def told_by(stored: StoredEntry, *, facts: bool = True) -> Event | None:
    """The event of a stored entry, with its time and its place; None if it is nothing to a projector.

    References to large texts in it are the reader's to resolve. Without `facts` no person's answer is told.
    """
    kind = e.stored_kind(stored.payload)
    return event_of(stored) if may_tell(kind) and (facts or kind is not f.Answered) else None


def event_of(stored: StoredEntry) -> Event | None:
    """The same for an entry that may tell something."""
    line = orjson.loads(stored.payload)
    at_ms = e.milliseconds(line["timestamp"])
    if line["type"] == e.EVENT_MSG:
        return Event(line.get("id", ""), line["payload"], None, at_ms, stored.seq)
    return event_in(e.Entry(line["type"], line["payload"], line.get("id", "")), at_ms, stored.seq)


def event_in(entry: e.Entry, at_ms: int, seq: int) -> Event | None:
    """The event that an entry is, or stands for."""
    if entry.type == e.EVENT_MSG:
        return Event(entry.id, dict(entry.payload), None, at_ms, seq)
    if entry.type == e.RESPONSE_ITEM:
        kind, name = entry.payload.get("type"), entry.payload.get("name")
        if kind == "function_call_output" or (kind == "function_call" and name in TOLD_BY_ITEMS):
            told: JsonObject = {"item": dict(entry.payload), **_ITEM_TOLD}
            return Event("", told, None, at_ms, seq)
    return _answer(entry, at_ms, seq) if entry.type == e.DENDRO else None


def _answer(entry: e.Entry, at_ms: int, seq: int) -> Event | None:
    """A decision on a request of the session's own; one that was sent on names its agent."""
    if not f.states(entry.payload, f.Answered):
        return None
    fact = f.decode(entry.payload)
    if not isinstance(fact, f.Answered) or fact.agent_id is not None:
        return None
    told = RequestResolved(
        call_id=fact.call_id,
        turn_id=fact.turn,
        decision=fact.decision,
        who=fact.who,
        resolved_at_ms=fact.answered_ms,
    )
    return Event(fact.turn, written(told), None, at_ms, seq)
