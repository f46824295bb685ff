"""A client of the SQ/EQ over a socket, and a gateway in this process for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.sq_eq import SqEqDoor
from orchestrator.gateways.wires.addresses import Address, parse_address
from orchestrator.gateways.wires.authentication import Authentication, TokenWatch
from orchestrator.gateways.wires.listeners import Doors, ListenerConfig, listening

WITHIN_S = 20.0
LINE_LIMIT = 1 << 20


@dataclass
class LineClient:
    """The client's side: lines out, events in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: list[dict[str, Any]] = field(default_factory=list)

    def send(self, id: str, op: Any, **more: Any) -> None:
        """Sends a submission; `more` stands beside its op."""
        given = op if isinstance(op, dict) else {"type": op}
        self.raw(orjson.dumps({"id": id, "op": given, **more}) + b"\n")

    def say(self, id: str, text: str = "go") -> None:
        self.send(id, {"type": "user_input", "items": [{"type": "text", "text": text}]})

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def next(self) -> dict[str, Any] | None:
        """The next line; None at the end."""
        async with asyncio.timeout(WITHIN_S):
            line = await self.reader.readline()
        if not line:
            return None
        event: dict[str, Any] = orjson.loads(line)
        self.heard.append(event)
        return event

    async def until(self, type: str) -> dict[str, Any]:
        """The next event of this type."""
        while (event := await self.next()) is not None:
            if event["msg"]["type"] == type:
                return event
        raise AssertionError(f"the connection ended before {type}: {self.heard}")

    async def rest(self) -> list[dict[str, Any]]:
        """All that comes up to the end."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    @property
    def types(self) -> list[str]:
        return [event["msg"]["type"] for event in self.heard]

    def cut(self) -> None:
        """Breaks the connection, without a word."""
        self.writer.transport.abort()


TOKENS = {
    scope.word: Principal(scope.word, scope=scope, token=scope.word) for scope in (Scope.READ, Scope.SUBMIT)
}


async def look_up(token: str) -> Principal | None:
    return TOKENS.get(token)


async def all_count() -> frozenset[str]:
    return frozenset(TOKENS)


@asynccontextmanager
async def gateway(ports: Ports, text: str = "tcp://127.0.0.1:0") -> AsyncIterator[Address]:
    """A gateway of lines, until the block ends."""
    gate = Authentication(look_up)
    door = SqEqDoor(ports, gate, TokenWatch(all_count), LINE_LIMIT)
    async with listening([parse_address(text)], Doors(lines=door.serve), ListenerConfig(gate)) as (address,):
        yield address


async def connect(address: Address) -> LineClient:
    """A connection that has said nothing yet."""
    if address.path is not None:
        return LineClient(*await asyncio.open_unix_connection(address.path, limit=1 << 24))
    return LineClient(*await asyncio.open_connection(address.host, address.port, limit=1 << 24))


async def opened(address: Address, session: str | None = None, **more: Any) -> LineClient:
    """A connection to a new session, or to one that is there; its first event is heard."""
    client = await connect(address)
    op = {"type": "configure_session", **({"session_id": session} if session else {})}
    client.send("first", op, with_seq=True, **more)
    await client.until("session_configured")
    return client
