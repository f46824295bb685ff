"""The client's messages as the SDK's streams: one JSON-RPC message a line, each of a bounded length.

In the place of the SDK's own transport, which reads a line of any length.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

from orchestrator.core.frozen import record
from orchestrator.gateways.ndjson import READ_BYTES, Streams
from orchestrator.protocol.framing import HEAD_BYTES, Frame, LineSplitter, OverlongLine
from orchestrator.protocol.wire import JsonValue

log = logging.getLogger("dendro.mcp_server")

MOST_OPEN: Final = 256
"""Requests of one client that were not answered yet."""
CANCELLED: Final = "notifications/cancelled"
NO_MESSAGE: Final = (
    'this is no message of JSON-RPC 2.0: one has "jsonrpc": "2.0", a text as `method`, an object as `params` '
    "if any, and as `id` a text or a whole number of 64 bits"
)
_FIRST_ID = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*'
    rb'(0|-?[1-9][0-9]{0,17}|"[ !#-\[\]-~]{0,200}")[\s,}]'
)
_Inbound = MemoryObjectSendStream[SessionMessage | Exception]
_Outbound = MemoryObjectReceiveStream[SessionMessage]
Messages = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def messages(streams: Streams, line_limit: int) -> AsyncIterator[Messages]:
    """The messages from the client, which end when it leaves, and those to it."""
    inbound, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outbound = anyio.create_memory_object_stream[SessionMessage](0)
    async with inbound, received, sent, outbound, anyio.create_task_group() as group:
        calls = Calls()
        group.start_soon(_Reader(streams, inbound, calls).read, line_limit)
        group.start_soon(_write, streams, outbound, inbound, calls)
        try:
            yield received, sent
        finally:
            group.cancel_scope.cancel()


class Calls:
    """The client's requests that were not answered yet, each under an id of its own."""

    def __init__(self) -> None:
        self._open: set[RequestId] = set()

    def fault(self, id: RequestId) -> str | None:
        """The reason why a request cannot be taken under this id; else it is open from now on."""
        key = coerce_request_id(id)
        if key in self._open:
            return "a request with this id was not answered yet: give each request an id of its own"
        if len(self._open) >= MOST_OPEN:
            return f"{MOST_OPEN} requests of this client were not answered yet: wait until one is"
        self._open.add(key)
        return None

    def over(self, id: object) -> None:
        """Forgets a request that was answered or cancelled."""
        if (known := as_request_id(id)) is not None:
            self._open.discard(coerce_request_id(known))


@record
class _Reader:
    """The client's lines as messages; one that is none is answered, under its id if it shows one."""

    streams: Streams
    inbound: _Inbound
    calls: Calls

    async def read(self, line_limit: int) -> None:
        splitter = LineSplitter(line_limit)
        async with self.inbound:
            try:
                while data := await self.streams.read(READ_BYTES):
                    for line in splitter.feed(data):
                        await self._received(line)
                for line in splitter.close():
                    await self._received(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def _received(self, line: Frame) -> None:
        if isinstance(line, OverlongLine):
            fault = f"line {line.number}: longer than {line.limit} bytes; it was skipped"
            await self._refuse(_id_in(line.head), INVALID_REQUEST, fault)
            return
        try:
            value = orjson.loads(line.content)
        except orjson.JSONDecodeError as error:
            fault = f"line {line.number}: this is no JSON: {error}"
            await self._refuse(_id_in(line.content[:HEAD_BYTES]), PARSE_ERROR, fault)
            return
        await self._parsed(line.number, value)

    async def _parsed(self, number: int, value: JsonValue) -> None:
        given = value.get("id") if isinstance(value, dict) else None
        id = as_request_id(given)
        try:
            message = jsonrpc_message_adapter.validate_python(value, by_name=False)
        except ValueError:
            message = None
        if message is None or (id is None and isinstance(value, dict) and "id" in value):
            await self._refuse(id, INVALID_REQUEST, f"line {number}: {NO_MESSAGE}")
        elif isinstance(message, JSONRPCRequest) and (fault := self.calls.fault(message.id)) is not None:
            await self._refuse(id, INVALID_REQUEST, fault)
        else:
            if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
                self.calls.over((message.params or {}).get("requestId"))
            await self.inbound.send(SessionMessage(message))

    async def _refuse(self, id: RequestId | None, code: int, fault: str) -> None:
        answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": fault}}
        with suppress(OSError):
            await self.streams.write(orjson.dumps(answer) + b"\n")


def _id_in(head: bytes) -> RequestId | None:
    """The id of a message by its beginning, if it stands before all that the message says."""
    found = _FIRST_ID.match(head)
    return None if found is None else as_request_id(orjson.loads(found[1]))


async def _write(streams: Streams, outbound: _Outbound, inbound: _Inbound, calls: Calls) -> None:
    async with outbound:
        async for message in outbound:
            if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                calls.over(message.message.id)
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await streams.write(line.encode() + b"\n")
            except OSError as error:
                log.info("the client does not read any more: %s", error)
                # Else the server would go on reading a client that it cannot answer.
                await inbound.aclose()
                return
