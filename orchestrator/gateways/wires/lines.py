"""Messages as lines: a wire over standard input and output, or over any other byte stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.wire import MESSAGE_LIMIT, CloseCode, WireClosed
from orchestrator.protocol.framing import Line, LineSplitter, OverlongLine
from orchestrator.tables.base import KIB

READ_BYTES = 64 * KIB


class ByteStream(Protocol):
    """The two directions of a connection of bytes."""

    async def read(self, limit: int) -> bytes:
        """Up to `limit` bytes; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Sends all of it; raises `WireClosed`."""

    async def close(self) -> None:
        """Ends the connection."""


class LineWire:
    """A wire on which a message is a line; a line over the limit is skipped, and reported."""

    def __init__(
        self,
        stream: ByteStream,
        principal: Principal,
        limit: int = MESSAGE_LIMIT,
        overlong: Callable[[OverlongLine], Awaitable[None]] | None = None,
    ) -> None:
        self.principal = principal
        self._stream = stream
        self._splitter = LineSplitter(limit)
        self._overlong = overlong
        self._ready: deque[bytes] = deque()
        self._writing = asyncio.Lock()
        self._closed = False

    async def receive(self) -> bytes | None:
        """The next line that says something; None at the end of input."""
        while not self._ready and not self._closed:
            data = await self._stream.read(READ_BYTES)
            for frame in self._splitter.feed(data) if data else self._splitter.close():
                if isinstance(frame, Line):
                    self._ready.append(frame.content)
                elif self._overlong is not None:
                    await self._overlong(frame)
            self._closed = self._closed or not data
        return self._ready.popleft() if self._ready else None

    async def send(self, *messages: bytes) -> None:
        """Writes a line for each; raises `WireClosed`."""
        async with self._writing:
            await self._stream.write(b"\n".join((*messages, b"")))

    async def close(self, code: CloseCode = CloseCode.DONE, reason: str = "") -> None:
        """Ends the connection; lines have no place for a reason."""
        self._closed = True
        self._ready.clear()
        await self._stream.close()


class StandardStreams:
    """The process's own standard input and output as a byte stream."""

    def __init__(
        self, read: Callable[[int], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._read = read
        self._write = write

    async def read(self, limit: int) -> bytes:
        """Up to `limit` bytes of standard input."""
        return await self._read(limit)

    async def write(self, data: bytes) -> None:
        """Writes to standard output; raises `WireClosed` when nobody reads it any more."""
        try:
            await self._write(data)
        except BrokenPipeError as error:
            raise WireClosed("the client has left") from error

    async def close(self) -> None:
        """Nothing: the process's end closes them."""
