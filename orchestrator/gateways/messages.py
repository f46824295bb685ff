"""Events that many connections of one process follow, each read once for all of them."""

from __future__ import annotations

from orchestrator.tables.base import KIB
from orchestrator.views.event import Message

MOST_BYTES = 512 * KIB
"""Payloads that are kept; read, they take some ten times as much."""


class Messages:
    """The messages of the payloads that were read last."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: dict[bytes, Message] = {}

    def of(self, payload: bytes) -> Message:
        """The message of a payload; what comes soon behind it finds the same one."""
        found = self._kept.get(payload)
        if found is None:
            found = Message(payload)
            self._keep(payload, found)
        return found

    def _keep(self, payload: bytes, message: Message) -> None:
        if len(payload) > self._most:
            return
        self._kept[payload] = message
        self._bytes += len(payload)
        while self._bytes > self._most:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._bytes -= len(oldest)
