"""The traffic of one connection: what a server may have open at once, and why the connection ended."""

from __future__ import annotations

import asyncio

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from orchestrator.mcp.bounds import OPEN_REQUESTS
from orchestrator.mcp.faults import Misbehaved

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""The messages from a server, and the messages to it."""


class Traffic:
    """The account of one connection."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.fault: str | None = None
        """Why the connection is over; the first reason counts."""
        self.over = asyncio.Event()
        self._open = 0

    def received(self, message: JSONRPCMessage) -> None:
        """Counts a message of the server; raises `Misbehaved` when too many requests wait for an answer.

        The SDK answers each in a task of its own; a server that does not read would pile them up.
        """
        if isinstance(message, JSONRPCRequest):
            self._open += 1
            if self._open > OPEN_REQUESTS:
                raise Misbehaved(f"the server asked more than {OPEN_REQUESTS} things at once")

    def sent(self, message: JSONRPCMessage) -> None:
        """Counts a message to the server."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._open -= 1

    def fail(self, why: str) -> None:
        """Records that the connection is over."""
        if self.fault is None:
            self.fault = why
        self.over.set()
