"""Events that many connections of one process follow, each read and written once for all of them."""

from __future__ import annotations

from orchestrator.broker.records import StoredEvent
from orchestrator.gateways.bursts import Burst, bursts_of
from orchestrator.tables.base import KIB
from orchestrator.views.event import Message

MOST_BYTES = 512 * KIB
"""Payloads that are kept; read, they take some ten times as much."""


class Messages:
    """The messages of the payloads that were read last, and the bursts of the answers that they came in."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: dict[bytes, Message] = {}
        self._answered = 0
        self._answers: dict[int, tuple[tuple[StoredEvent, ...], tuple[Burst, ...]]] = {}
        """Bursts by the identity of their answer, which is kept beside them and so stays its own."""

    def bursts(self, answer: tuple[StoredEvent, ...]) -> tuple[Burst, ...]:
        """The bursts of a reader's answer; the same ones for all who share the answer, soon behind it."""
        found = self._answers.get(id(answer))
        if found is not None:
            return found[1]
        bursts = bursts_of(answer, self.of)
        self._keep_answer(answer, bursts)
        return bursts

    def _keep_answer(self, answer: tuple[StoredEvent, ...], bursts: tuple[Burst, ...]) -> None:
        size = _size(answer)
        if size > self._most:
            return
        self._answers[id(answer)] = (answer, bursts)
        self._answered += size
        while self._answered > self._most:
            oldest, _ = self._answers.pop(next(iter(self._answers)))
            self._answered -= _size(oldest)

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


def _size(answer: tuple[StoredEvent, ...]) -> int:
    return sum(len(event.payload) for event in answer)
