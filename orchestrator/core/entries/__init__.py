"""Rollout entries: the only things that change a state.

An entry is one RolloutItem (`type`, `payload`) with, for an `event_msg`, the Event's id.
Every `event_msg` entry is also an event on the EQ. Facts that the protocol has no line
for are entries of the one own type `dendro`; the records of `core.facts` are their catalogue.
`evolve` reads nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from orchestrator.core.facts import Fact, encode
from orchestrator.core.frozen import record
from orchestrator.core.lines import CompactedLine, ContextLine, Line, MetaLine, encode_line
from orchestrator.protocol import events as ev
from orchestrator.protocol.faults import CodexErrorInfo
from orchestrator.protocol.wire import EventModel, ItemModel, JsonMapping, JsonObject, written

Json = JsonObject

SESSION_META = MetaLine.type
RESPONSE_ITEM = "response_item"
COMPACTED = CompactedLine.type
TURN_CONTEXT = ContextLine.type


@record
class Entry:
    """A line of the rollout, before it has a `seq`."""

    type: str
    payload: JsonMapping
    id: str = ""
    at_ms: int = 0


@lru_cache(maxsize=64)  # all entries of a step are written at one moment
def timestamp(at_ms: int) -> str:
    """UTC with milliseconds, as Codex writes it: `2025-09-20T10:00:00.123Z`."""
    # Every step says its time, and `strftime` takes three times as long.
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()
    return f"{moment[:19]}.{at_ms % 1000:03d}Z"


def item(item: ItemModel | JsonMapping) -> Entry:
    """A ResponseItem that joins the conversation: one of our own, or one that a model sent as it came."""
    return Entry(RESPONSE_ITEM, written(item) if isinstance(item, ItemModel) else item)


def event(id: str, message: EventModel | JsonMapping) -> Entry:
    """An event under the id of the task (or submission) that it belongs to; a mapping is one as written."""
    return Entry(EVENT_MSG, written(message) if isinstance(message, EventModel) else message, id)


def error(id: str, message: str, codex_error_info: CodexErrorInfo = None) -> Entry:
    """An `error` event. Its kind of error is written also when it is null (September 2025)."""
    return event(id, ev.Error(message=message, codex_error_info=codex_error_info))


def line(said: Line) -> Entry:
    """A line that is no item, no event and no fact."""
    return Entry(said.type, encode_line(said))


def fact(stated: Fact) -> Entry:
    """A fact, as the entry that records it."""
    return Entry(DENDRO, encode(stated))


# ── line types ────────────────────────────────────────────────────────────────────────────────────
# Types and times of stored lines, for who reads a log by its JSON and imports neither facts nor events.


EVENT_MSG = "event_msg"
DENDRO = "dendro"


@lru_cache(maxsize=64)
def milliseconds(timestamp: str) -> int:
    """The moment that a line's `timestamp` says."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
