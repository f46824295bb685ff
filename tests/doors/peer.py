"""A client of the app-server over a wire in memory, and the server beside it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.live_threads import Write
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.byte_wire import CloseCode

WITHIN_S = 20.0
ANN = Principal("ann")
GOLDEN = {"name": "golden", "title": "golden", "version": "0.1"}


class MemoryWire:
    """Both ends of a wire; `stalled` is cleared where the client does not read."""

    def __init__(self, principal: Principal = ANN) -> None:
        self.principal = principal
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.closed: CloseCode | None = None

    async def receive(self) -> bytes | None:
        return await self.incoming.get()

    async def send(self, *messages: bytes) -> None:
        await self.reads.wait()
        for message in messages:
            self.outgoing.put_nowait(orjson.loads(message))

    async def close(self, code: CloseCode = CloseCode.DONE, reason: str = "") -> None:
        self.closed = self.closed or code
        self.reads.set()
        self.incoming.put_nowait(None)


class Peer:
    """The client's side: requests with their answers, and all that came between."""

    def __init__(self, wire: MemoryWire, door: Door) -> None:
        self.wire = wire
        self.door = door
        """The server's side of the connection."""
        self.heard: list[dict[str, Any]] = []
        self._ids = itertools.count(1)

    def send(self, message: Any) -> None:
        """Sends any value as a message, bytes as they are."""
        self.wire.incoming.put_nowait(message if isinstance(message, bytes) else orjson.dumps(message))

    async def next(self) -> dict[str, Any]:
        """The next message of the server."""
        async with asyncio.timeout(WITHIN_S):
            message = await self.wire.outgoing.get()
        self.heard.append(message)
        return message

    async def answer(self, id: Any) -> dict[str, Any]:
        """The answer to a request; what comes before it is only heard."""
        while True:
            message = await self.next()
            if "method" not in message and message["id"] == id:
                return message

    async def ask(self, method: str, params: Any = None) -> dict[str, Any]:
        """A request and its answer."""
        id = next(self._ids)
        self.send({"id": id, "method": method, "params": {} if params is None else params})
        return await self.answer(id)

    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        """A request's result."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    async def refused(self, method: str, params: Any = None) -> tuple[int, str]:
        """A request's error: its code and text."""
        answer = await self.ask(method, params)
        assert "error" in answer, answer
        return answer["error"]["code"], answer["error"]["message"]

    async def until(self, method: str) -> dict[str, Any]:
        """The parameters of the next notification or request of the server's of this name."""
        while True:
            message = await self.next()
            if message.get("method") == method:
                found: dict[str, Any] = message["params"]
                return found

    async def greet(self, **capabilities: Any) -> dict[str, Any]:
        """The handshake."""
        return await self.call("initialize", {"clientInfo": GOLDEN, "capabilities": capabilities})

    def methods(self) -> list[str]:
        """The names of all that the server has sent of its own."""
        return [message["method"] for message in self.heard if "method" in message]

    def leave(self) -> None:
        """Ends the client's side."""
        self.wire.incoming.put_nowait(None)


@asynccontextmanager
async def connected(server: AppServer, principal: Principal = ANN) -> AsyncIterator[Peer]:
    """A client of a server, until the block ends."""
    wire = MemoryWire(principal)
    connection = server.connection(wire)
    serving = asyncio.create_task(connection.serve())
    try:
        yield Peer(wire, connection.door)
    finally:
        wire.incoming.put_nowait(None)
        await serving


@asynccontextmanager
async def served(ports: Ports, write: Write) -> AsyncIterator[AppServer]:
    """A server, until the block ends."""
    server = AppServer(ports, write)
    try:
        yield server
    finally:
        await server.close()
