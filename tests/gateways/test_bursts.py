"""Events that come together on a connection of lines: few writes, and never very large ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.ndjson import BURST_BYTES, Ending, NdjsonConnection, Streams
from orchestrator.gateways.wires.wire import WireClosed
from orchestrator.views.event import Event

SESSION = SessionId("01a1f8a1-c5d0-7001-97bc-c80be6a60f79")


@dataclass
class Told:
    """A client of a session whose events are all there at once."""

    count: int
    text: str = ""

    async def follow(self, session: SessionId, cursor: EqCursor = BEGINNING) -> AsyncIterator[Event]:
        for number in range(self.count):
            yield Event("t", {"type": "agent_message", "message": f"{number} {self.text}"})
        yield Event("", {"type": "shutdown_complete"})


@dataclass
class Wire:
    """A client's end that keeps what it was sent; it is gone after so many writes."""

    writes: list[bytes] = field(default_factory=list)
    most: int = 1_000

    async def read(self, limit: int) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        if len(self.writes) == self.most:
            raise WireClosed("the client has left")
        self.writes.append(data)


def connection(told: Told, wire: Wire) -> NdjsonConnection:
    return NdjsonConnection(cast(Client, told), SESSION, Streams(wire.read, wire.write), 1 << 20)


def said(wire: Wire) -> list[Any]:
    return [orjson.loads(line)["msg"] for line in b"".join(wire.writes).splitlines()]


async def test_events_that_come_together_leave_in_one_write_and_in_their_order() -> None:
    wire = Wire()
    assert await connection(Told(5), wire).serve() is Ending.SHUT_DOWN
    assert [message.get("message") for message in said(wire)] == ["0 ", "1 ", "2 ", "3 ", "4 ", None]
    assert len(wire.writes) == 1


async def test_client_that_missed_much_is_sent_it_in_pieces() -> None:
    wire = Wire()
    assert await connection(Told(500, "x" * 1_000), wire).serve() is Ending.SHUT_DOWN
    assert len(said(wire)) == 501
    assert max(map(len, wire.writes)) < BURST_BYTES + 2_000


async def test_connection_ends_with_a_client_that_leaves_in_the_middle() -> None:
    with pytest.raises(WireClosed):
        await connection(Told(500, "x" * 1_000), Wire(most=1)).serve()
