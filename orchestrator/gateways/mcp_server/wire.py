"""The client's messages as the SDK's streams: one JSON-RPC message a line, each of a bounded length.

In the place of the SDK's own transport, which reads a line of any length.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter

from orchestrator.gateways.ndjson import READ_BYTES, Streams
from orchestrator.protocol.framing import Frame, LineSplitter, OverlongLine

log = logging.getLogger("dendro.mcp_server")

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
        group.start_soon(_read, streams, inbound, line_limit)
        group.start_soon(_write, streams, outbound, inbound)
        try:
            yield received, sent
        finally:
            group.cancel_scope.cancel()


async def _read(streams: Streams, inbound: _Inbound, line_limit: int) -> None:
    splitter = LineSplitter(line_limit)
    async with inbound:
        try:
            while data := await streams.read(READ_BYTES):
                for line in splitter.feed(data):
                    await _received(line, streams, inbound)
            for line in splitter.close():
                await _received(line, streams, inbound)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


async def _received(line: Frame, streams: Streams, inbound: _Inbound) -> None:
    """Hands a line on as a message; one that is none is answered without an id, which nobody knows."""
    code, fault = PARSE_ERROR, f"line {line.number}: this is no message of JSON-RPC 2.0"
    if isinstance(line, OverlongLine):
        code, fault = INVALID_REQUEST, f"line {line.number}: longer than {line.limit} bytes; it was skipped"
    else:
        try:
            message = jsonrpc_message_adapter.validate_json(line.content, by_name=False)
        except ValueError:
            pass
        else:
            await inbound.send(SessionMessage(message))
            return
    answer = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": fault}}
    with suppress(OSError):
        await streams.write(orjson.dumps(answer) + b"\n")


async def _write(streams: Streams, outbound: _Outbound, inbound: _Inbound) -> None:
    async with outbound:
        async for message in outbound:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await streams.write(line.encode() + b"\n")
            except OSError as error:
                log.info("the client does not read any more: %s", error)
                # Else the server would go on reading a client that it cannot answer.
                await inbound.aclose()
                return
