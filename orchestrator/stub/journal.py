"""Journal of the requests that the stub received and how each ended, for tests and curious users.

Bounded in entries and in bytes; the oldest entry is dropped first. Holds the bodies as received and
decodes a body only on demand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024

Outcome = Literal["open", "answered", "refused", "cut", "left"]
"""`left`: the client closed the connection before the answer was complete."""


@dataclass(slots=True)
class Exchange:
    """A request and its exchange; `outcome` changes once, when the exchange is over."""

    number: int
    session: str
    raw: bytes
    outcome: Outcome = "open"

    @property
    def body(self) -> dict[str, Any]:
        """The request's body, decoded anew at each call."""
        decoded: dict[str, Any] = orjson.loads(self.raw)
        return decoded

    def to_wire(self) -> dict[str, Any]:
        """The entry as `GET /requests` shows it."""
        return {"number": self.number, "session": self.session, "outcome": self.outcome, "body": self.body}


class RequestJournal:
    """The received requests in order; one per server."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self.received = 0
        self._exchanges: deque[Exchange] = deque()
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._changed = asyncio.Event()

    def open(self, session: str, raw: bytes) -> Exchange:
        """Notes a request."""
        self.received += 1
        exchange = Exchange(self.received, session, raw)
        self._exchanges.append(exchange)
        self._bytes += len(raw)
        while len(self._exchanges) > self._max_entries or self._bytes > self._max_bytes > len(raw):
            self._bytes -= len(self._exchanges.popleft().raw)
        self._changed.set()
        return exchange

    def close(self, exchange: Exchange, outcome: Outcome) -> None:
        """Notes how a request ended."""
        exchange.outcome = outcome
        self._changed.set()

    def exchanges(self, session: str | None = None) -> Iterator[Exchange]:
        """The kept requests, oldest first, of one session or of all."""
        return (kept for kept in tuple(self._exchanges) if session is None or kept.session == session)

    async def until(self, holds: Callable[[RequestJournal], bool]) -> None:
        """Waits for a change after which `holds(journal)` is true."""
        while not holds(self):
            self._changed.clear()
            await self._changed.wait()
