"""Deltas on their way to the EQ: coalesced, and never overtaken by what they lead up to.

Pending deltas ride in the next commit. If none comes soon they are emitted by themselves,
after 20 ms or 4 KB, whichever is first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.broker.records import NewEvent
from orchestrator.core.chain import GENESIS

COALESCE_S = 0.020
COALESCE_BYTES = 4096

_JOINED = frozenset({"agent_message_delta", "agent_reasoning_delta", "agent_reasoning_raw_content_delta"})


@dataclass(frozen=True, slots=True)
class Delta:
    """One event message that belongs to no entry."""

    task_id: str
    message: Mapping[str, Any]

    def event(self, seq: int, head: bytes) -> NewEvent:
        """The event, as one that belongs to entry `seq`."""
        return NewEvent(orjson.dumps({"id": self.task_id, "msg": self.message}), seq, head[:4].hex())


class Deltas:
    """Event messages of one session that belong to no entry."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def full(self) -> bool:
        return self._bytes >= COALESCE_BYTES

    def add(self, task_id: str, message: Mapping[str, Any]) -> None:
        """Queues one delta; text that continues the last one of its kind is joined to it."""
        text = message.get("delta")
        if self._pending and message["type"] in _JOINED:
            last_id, last = self._pending[-1]
            if last_id == task_id and last["type"] == message["type"]:
                last["delta"] += text
                self._bytes += len(text or "")
                return
        self._pending.append((task_id, dict(message)))
        self._bytes += len(text or message.get("chunk") or "") + 64

    def take(self, seq: int, head: bytes = GENESIS) -> list[NewEvent]:
        """All pending deltas as events that belong to entry `seq`."""
        events = [
            NewEvent(orjson.dumps({"id": task_id, "msg": message}), seq, head[:4].hex())
            for task_id, message in self._pending
        ]
        self._pending.clear()
        self._bytes = 0
        return events
