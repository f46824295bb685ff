"""The traffic of one connection: how much a server may ask, and why the connection ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from orchestrator.mcp.bounds import MESSAGES_A_MINUTE, OPEN_REQUESTS, REQUESTS_A_MINUTE
from orchestrator.mcp.faults import Misbehaved

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""The messages from a server, and the messages to it."""


class Traffic:
    """The account of one connection."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.server = server
        self.fault: str | None = None
        """Why the connection is over; the first reason counts."""
        self.over = asyncio.Event()
        self._clock = clock
        self._open = 0
        self._minute = clock()
        self._in_minute = 0
        self._messages = 0

    def received(self, message: JSONRPCMessage) -> None:
        """Counts a message of the server; raises `Misbehaved` when it asks too much.

        The SDK answers each request in a task of its own: a server that does not read would pile them up,
        and one that reads would keep the worker busy with answers.
        """
        now = self._clock()
        if now - self._minute >= 60:
            self._minute, self._in_minute, self._messages = now, 0, 0
        self._messages += 1
        if self._messages > MESSAGES_A_MINUTE:
            raise Misbehaved(f"the server sent more than {MESSAGES_A_MINUTE:,} messages within a minute")
        if isinstance(message, JSONRPCRequest):
            self._asked()

    def _asked(self) -> None:
        self._in_minute += 1
        self._open += 1
        if self._open > OPEN_REQUESTS:
            raise Misbehaved(f"the server asked more than {OPEN_REQUESTS} things at once")
        if self._in_minute > REQUESTS_A_MINUTE:
            raise Misbehaved(f"the server asked more than {REQUESTS_A_MINUTE} things within a minute")

    def sent(self, message: JSONRPCMessage) -> None:
        """Counts a message to the server."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._open -= 1

    def fail(self, why: str) -> None:
        """Records that the connection is over."""
        if self.fault is None:
            self.fault = why
        self.over.set()


@asynccontextmanager
async def counted(
    received: ReadStream[SessionMessage | Exception], sent: WriteStream[SessionMessage], traffic: Traffic
) -> AsyncIterator[Streams]:
    """The streams of a transport, each message of which is counted; too many of them end the connection."""
    inbound, to_session = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_session, outbound = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with inbound:
            try:
                async for message in received:
                    if isinstance(message, SessionMessage):
                        traffic.received(message.message)
                    await inbound.send(message)
            except Misbehaved as fault:
                traffic.fail(str(fault))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def write() -> None:
        async with outbound:
            async for message in outbound:
                traffic.sent(message.message)
                try:
                    await sent.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return

    async with inbound, to_session, from_session, outbound, anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield to_session, from_session
        finally:
            group.cancel_scope.cancel()
