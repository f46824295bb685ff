"""Lines of a hostile or broken client at the MCP server: each is answered where its id can be told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, JSONRPCRequest, JSONRPCResponse

from orchestrator.gateways import mcp_server
from orchestrator.gateways.mcp_server import messages
from orchestrator.gateways.ndjson import Streams

LIMIT = 4_096


@dataclass
class Line:
    """The client's side of a wire in memory, and the server's streams."""

    said: asyncio.Queue[bytes]
    answers: asyncio.Queue[bytes]
    received: MemoryObjectReceiveStream[SessionMessage | Exception]
    sent: MemoryObjectSendStream[SessionMessage]

    def say(self, message: Any) -> None:
        line = message if isinstance(message, bytes) else orjson.dumps(message)
        self.said.put_nowait(line + b"\n")

    async def fault(self) -> tuple[Any, int, str]:
        """The next answer that the wire itself gives."""
        answer = orjson.loads(await self.answers.get())
        return answer["id"], answer["error"]["code"], answer["error"]["message"]

    async def taken(self) -> Any:
        """The next message that the server is given."""
        found = await self.received.receive()
        assert isinstance(found, SessionMessage)
        return found.message

    async def answer(self, id: Any) -> None:
        await self.sent.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=id, result={})))
        assert orjson.loads(await self.answers.get())["id"] == id


@asynccontextmanager
async def line() -> AsyncIterator[Line]:
    said, answers = asyncio.Queue[bytes](), asyncio.Queue[bytes]()

    async def read(most: int) -> bytes:
        return await said.get()

    async def write(data: bytes) -> None:
        answers.put_nowait(data)

    async with messages(Streams(read, write), LIMIT) as (received, sent), asyncio.timeout(20):
        yield Line(said, answers, received, sent)


def ping(id: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping", **more}


DEEP = b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":' + b"[" * 3_000


@pytest.mark.parametrize(
    ("said", "id", "code", "told"),
    [
        ({"id": 7, "method": "ping"}, 7, INVALID_REQUEST, "no message of JSON-RPC 2.0"),
        (ping("7", jsonrpc="1.0"), "7", INVALID_REQUEST, 'one has "jsonrpc": "2.0"'),
        (ping(7, params=[1]), 7, INVALID_REQUEST, "an object as `params`"),
        (ping(7, method=3), 7, INVALID_REQUEST, "a text as `method`"),
        (ping([7]), None, INVALID_REQUEST, "a whole number of 64 bits"),
        (ping(True), None, INVALID_REQUEST, "line 1:"),
        (ping(1.5), None, INVALID_REQUEST, "line 1:"),
        (ping(None), None, INVALID_REQUEST, "line 1:"),
        ([ping(1)], None, INVALID_REQUEST, "line 1:"),
        (b"\x00\xff", None, PARSE_ERROR, "this is no JSON"),
        (DEEP, 7, PARSE_ERROR, "line 1: this is no JSON"),
        (b'{"jsonrpc":"2.0","id":7,"method":"\\ud800"}', 7, PARSE_ERROR, "surrogate"),
        (b'{"id":"a","x":"' + b"x" * LIMIT, "a", INVALID_REQUEST, "longer than 4096 bytes; it was skipped"),
        (b'{"method":"x","params":{"id":8},"x":"' + b"x" * LIMIT, None, INVALID_REQUEST, "longer than"),
        (b'{"id":007,"x":"' + b"x" * LIMIT, None, INVALID_REQUEST, "longer than"),
    ],
    ids=[
        *("no-version", "version-1", "list", "method", "id-list", "id-flag", "id-fraction", "id-null"),
        *("batch", "binary", "deep", "surrogate", "huge", "huge-without-id", "huge-with-no-id"),
    ],
)
async def test_line_that_is_no_message_is_answered_under_its_id_and_the_next_one_is_served(
    said: Any, id: Any, code: int, told: str
) -> None:
    async with line() as client:
        client.say(said)
        client.say(ping(9))
        found = await client.fault()
        assert found[:2] == (id, code)
        assert told in found[2]
        assert (await client.taken()).id == 9


async def test_id_of_a_request_that_is_open_is_refused_and_free_again_with_its_answer() -> None:
    async with line() as client:
        client.say(ping(7))
        assert isinstance(await client.taken(), JSONRPCRequest)
        # The protocol's libraries take a number and its text for one.
        client.say(ping("7"))
        id, code, told = await client.fault()
        assert (id, code) == ("7", INVALID_REQUEST)
        assert "give each request an id of its own" in told
        await client.answer(7)
        client.say(ping("7"))
        assert (await client.taken()).id == "7"


async def test_request_that_is_cancelled_frees_its_id_and_a_cancel_of_nothing_does_nothing() -> None:
    async with line() as client:
        client.say(ping(7))
        await client.taken()
        for id in ([1], 99, None, 7):
            cancel = {"jsonrpc": "2.0", "method": mcp_server.CANCELLED, "params": {"requestId": id}}
            client.say(cancel)
            assert (await client.taken()).method == mcp_server.CANCELLED
        client.say(ping(7))
        assert (await client.taken()).id == 7


async def test_client_that_leaves_too_many_requests_open_is_told_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_server, "MOST_OPEN", 2)
    async with line() as client:
        for id in (1, 2):
            client.say(ping(id))
            await client.taken()
        client.say(ping(3))
        id, _, told = await client.fault()
        assert (id, told) == (3, "2 requests of this client were not answered yet: wait until one is")
        await client.answer(1)
        client.say(ping(3))
        assert (await client.taken()).id == 3
