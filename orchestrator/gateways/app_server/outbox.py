"""Messages that wait for one client to read them: bounded, in order, deltas of one item merged."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from orchestrator.config_keys import KIB, MIB
from orchestrator.gateways.app_server.messages import notification, versioned
from orchestrator.gateways.wires.byte_wire import OUTGOING_LIMIT, Wire
from orchestrator.protocol.wire import JsonObject


@dataclass(slots=True)
class _Waiting:
    """A message that was not sent yet; `params` are those of a delta that may grow."""

    data: bytes
    key: tuple[object, ...] | None = None
    method: str = ""
    params: JsonObject | None = None
    at_ms: int = 0
    large: bool = False


BURST_BYTES = 64 * KIB
"""Bytes of messages that are handed to the wire at once; deltas that wait behind them may still grow."""


LARGE_BYTES = MIB
"""A message above this goes out however long it is, and is no part of the bytes that may wait."""
LARGE_MOST = 4
"""Such messages that may wait: a long text comes with the end of its item, and again with its turn's."""


class Outbox:
    """The messages for one connection. `put` never waits: a client that does not read is dropped."""

    def __init__(self, limit: int = OUTGOING_LIMIT) -> None:
        self._limit = limit
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        """Of all that waits but large messages."""
        self._large = 0
        self._news = asyncio.Event()
        self._growing: dict[tuple[object, ...], _Waiting] = {}
        """Deltas that wait, by item: text that follows is added to them."""
        self._closed = False
        self.overflowed = asyncio.Event()
        """Set when more waits than may: what was put since is lost, and the connection has to end."""
        self.versioned = False
        """Whether each message carries `jsonrpc`, because the client's do."""

    def put(self, data: bytes) -> None:
        """Adds a message; what came before it is sent before it."""
        self._growing.clear()
        self._add(_Waiting(data))

    def put_delta(
        self, data: bytes, key: tuple[object, ...], method: str, params: JsonObject, at_ms: int
    ) -> None:
        """Adds a piece of a text, to the last piece of the same text if only deltas were put since."""
        merged = self._growing.get(key)
        if merged is None or merged.params is None:
            waiting = _Waiting(data, key, method, params, at_ms)
            self._growing[key] = waiting
            self._add(waiting)
            return
        # The params are shared with other connections: only a copy may change.
        merged.params = {**merged.params, "delta": merged.params["delta"] + params["delta"]}
        merged.data = b""
        self._count(len(params["delta"].encode("utf-8", "surrogatepass")))

    def _add(self, waiting: _Waiting) -> None:
        if self._closed or self.overflowed.is_set():
            return
        self._waiting.append(waiting)
        waiting.large = len(waiting.data) > LARGE_BYTES
        self._large += waiting.large
        self._count(0 if waiting.large else len(waiting.data))

    def _count(self, added: int) -> None:
        self._bytes += added
        self._news.set()
        if self._bytes > self._limit or self._large > LARGE_MOST:
            self.overflowed.set()

    async def send_to(self, wire: Wire) -> None:
        """Sends what is put until the outbox is closed and empty; raises `WireClosed`."""
        while True:
            while self._waiting:
                await wire.send(*self._burst())
            if self._closed:
                return
            self._news.clear()
            await self._news.wait()

    def _burst(self) -> list[bytes]:
        taken = [self._take()]
        size = len(taken[0])
        while self._waiting and size < BURST_BYTES:
            taken.append(self._take())
            size += len(taken[-1])
        return taken

    def _take(self) -> bytes:
        waiting = self._waiting.popleft()
        if waiting.key is not None:
            self._growing.pop(waiting.key, None)
        data = waiting.data
        if not data and waiting.params is not None:
            data = notification(waiting.method, waiting.params, waiting.at_ms)
        if waiting.large:
            self._large -= 1
        else:
            self._bytes = max(0, self._bytes - len(data)) if self._waiting else 0
        return versioned(data) if self.versioned else data

    def close(self) -> None:
        """Lets `send_to` end when all is sent; what is put later is dropped."""
        self._closed = True
        self._news.set()
