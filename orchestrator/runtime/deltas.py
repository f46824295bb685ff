"""Deltas on their way to the EQ: coalesced, and never overtaken by what they lead up to.

Pending deltas ride in the next commit. If none comes soon they are emitted by themselves,
after 20 ms or 4 KB, whichever is first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from orchestrator.core.chain import GENESIS
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.frozen import record

COALESCE_S = 0.020
COALESCE_BYTES = 4096
PIECE_CHARS = 4096
"""Characters of one event: a server may send megabytes as one delta, and an event queue is bounded by its
number of events. With this it is bounded by bytes, too."""
TAKEN_BYTES = 256 << 10
"""Bytes of deltas that one commit, or one emit, carries; older deltas are emitted before it."""

_OF_THE_WORKER = frozenset({"mcp_startup_update", "mcp_startup_complete"})
"""Events that belong to no task: they tell of the worker's own servers (January 2026)."""

_JOINED: Mapping[str, str] = {
    "agent_message_delta": "agent_message_content_delta",
    "agent_message_content_delta": "agent_message_delta",
    "agent_reasoning_delta": "reasoning_content_delta",
    "reasoning_content_delta": "agent_reasoning_delta",
    "agent_reasoning_raw_content_delta": "reasoning_raw_content_delta",
    "reasoning_raw_content_delta": "agent_reasoning_raw_content_delta",
    "plan_delta": "",
}
"""Kinds of text that are joined, each with the other event that tells of the same text."""


_PLACE = ("item_id", "summary_index", "content_index")


@record
class Delta:
    """An event message that belongs to no entry."""

    task_id: str
    message: Mapping[str, Any]
    lasting: bool = False
    """Whether it is shown behind the end of its task, too."""

    def event(self, seq: int, head: bytes) -> NewEvent:
        """The event, as one that belongs to entry `seq`."""
        id = event_id(self.task_id, self.message)
        return NewEvent(orjson.dumps({"id": id, "msg": self.message}), seq, head[:4].hex())


class Deltas:
    """Event messages of one session that belong to no entry."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._taken: list[tuple[str, dict[str, Any]]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def full(self) -> bool:
        return self._bytes >= COALESCE_BYTES

    def add(self, task_id: str, message: Mapping[str, Any]) -> None:
        """Queues one delta; text that continues the last one of its kind is joined to it."""
        text = message.get("delta")
        if (last := self._continued(task_id, message)) is not None:
            last["delta"] += text
            self._bytes += len(text or "")
            return
        self._pending.append((task_id, dict(message)))
        self._bytes += _size(self._pending[-1])

    def _continued(self, task_id: str, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The pending text that this one continues: the last, or the one before it if both tell one text."""
        kind = message["type"]
        if kind not in _JOINED:
            return None
        for last_id, last in reversed(self._pending[-2:]):
            if last_id == task_id and last["type"] == kind:
                room = len(last.get("delta") or "") < PIECE_CHARS
                return last if room and all(last.get(name) == message.get(name) for name in _PLACE) else None
            if last["type"] != _JOINED[kind]:
                return None
        return None

    @property
    def many(self) -> bool:
        """Whether the pending deltas are more than one commit should carry beside its entries."""
        return self._bytes > TAKEN_BYTES

    def take(self, seq: int, head: bytes = GENESIS) -> list[NewEvent]:
        """The oldest pending deltas, as events that belong to entry `seq`: all unless they are `many`."""
        events, size, taken = [], 0, 0
        for task_id, message in self._pending:
            if size > TAKEN_BYTES:
                break
            taken += 1
            text = message.get("delta") or ""
            for piece in pieces(text):
                told = message if piece is text else {**message, "delta": piece}
                id = event_id(task_id, message)
                event = NewEvent(orjson.dumps({"id": id, "msg": told}), seq, head[:4].hex())
                events.append(event)
                size += len(event.payload)
        self._taken, self._pending = self._pending[:taken], self._pending[taken:]
        self._bytes = sum(map(_size, self._pending))
        return events

    def give_back(self) -> None:
        """Takes back those that were taken last, of which nothing was written."""
        self._pending[:0], self._taken = self._taken, []
        self._bytes = sum(map(_size, self._pending))


def event_id(task_id: str, message: Mapping[str, Any]) -> str:
    """The id under which an event is shown that came up while a task ran."""
    return "" if message["type"] in _OF_THE_WORKER else task_id


def pieces(text: str) -> Sequence[str]:
    """The text, in several pieces if it is longer than one event should have."""
    if len(text) <= PIECE_CHARS:
        return (text,)
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _size(pending: tuple[str, Mapping[str, Any]]) -> int:
    message = pending[1]
    return len(message.get("delta") or message.get("chunk") or "") + 64
