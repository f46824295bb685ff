"""A connection as a door sees it, and the bounds that hold on every one.

Knows no framing and no protocol: whole messages come in and go out.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from typing import Protocol

from orchestrator.config_keys import KIB, MIB
from orchestrator.core.frozen import record
from orchestrator.gateways.principals import Principal
from orchestrator.protocol.codec import Line, LineSplitter, OverlongLine

MESSAGE_LIMIT = 16 * MIB
"""The largest message that comes in. A WebSocket closes for more, with 1009; a longer line is skipped."""
OUTGOING_LIMIT = 8 * MIB
"""The most that may wait for one client to read. Its place is its last event: it comes back there."""
STALL_S = 15.0
"""A client that takes not a byte for so long, while as much waits as may, is dropped."""
HANDSHAKE_S = 10.0
"""From the connection to the end of its handshake, or of its first line."""
PING_S = 30.0
"""Between two pings of a silent WebSocket; a client that answers none for as long is gone."""


class CloseCode(IntEnum):
    """The reason of a wire's end, as RFC 6455 (section 7.4) and its registry number them."""

    DONE = 1000
    GOING_AWAY = 1001
    """The gateway leaves: the client comes back to another one."""
    NOT_PERMITTED = 1008
    """The token counts no more."""
    TOO_LARGE = 1009
    TOO_SLOW = 1013
    """The client did not read: it comes back, and goes on where it stopped."""


class WireClosed(Exception):
    """A message cannot be sent any more: the client left, or was dropped."""


class TooSlow(WireClosed):
    """The client was dropped, because it did not read."""


class Wire(Protocol):
    """A connection to a client, message by message."""

    @property
    def principal(self) -> Principal:
        """The one who speaks through it."""

    async def receive(self) -> bytes | None:
        """The next message; None when there will be none any more."""

    async def send(self, *messages: bytes) -> None:
        """Sends whole messages, in the order of the calls; waits while the client reads too slowly.

        Raises `WireClosed`, and `TooSlow` for a client that has not read for `STALL_S`.
        """

    async def close(self, code: CloseCode = CloseCode.DONE, reason: str = "") -> None:
        """Ends the connection; the reason is told where the framing can. A second call does nothing."""


# ── streams ───────────────────────────────────────────────────────────────────────────────────────
# Byte streams to clients: TCP and unix sockets, with bounds on what waits for the client.
#
# Knows no lines: an NDJSON connection cuts its own, and `LineWire` makes messages of them.


READ_BYTES = 64 * KIB
CLOSE_S = 5.0
"""The time for bytes that are left to send at the end."""
KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
"""A peer whose machine is gone is noticed after two minutes (tcp(7))."""


@record
class StreamBounds:
    """The bytes that a stream may hold for its client, and how long the client may take none of them."""

    outgoing: int = OUTGOING_LIMIT
    stall_s: float = STALL_S


class SocketStream:
    """A connected socket: bytes in, bytes out."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        bounds: StreamBounds = StreamBounds(),
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        # Half is kept for the message that is handed over while nothing waits.
        self._most = bounds.outgoing // 2
        writer.transport.set_write_buffer_limits(high=self._most)
        keep_alive(writer.get_extra_info("socket"))

    @property
    def socket(self) -> socket.socket | None:
        """The socket, for who asks about its peer."""
        found: socket.socket | None = self._writer.get_extra_info("socket")
        return found

    async def read(self, limit: int = READ_BYTES) -> bytes:
        """The next bytes, up to `limit`; empty at the end, and when the client is gone."""
        try:
            return await self._reader.read(limit)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        """Sends all of it; raises `WireClosed`, `TooSlow` for a client that takes nothing."""
        if self._writer.is_closing():
            raise WireClosed("the client has left")
        self._writer.write(data)
        transport = self._writer.transport
        while (waiting := transport.get_write_buffer_size()) > self._most:
            try:
                async with asyncio.timeout(self._bounds.stall_s):
                    await self._writer.drain()
                return
            except TimeoutError:
                if transport.get_write_buffer_size() < waiting:
                    continue
                transport.abort()
                raise TooSlow(f"the client has read nothing for {self._bounds.stall_s:g} s") from None
            except OSError as error:
                raise WireClosed("the client has left") from error

    async def close(self) -> None:
        """Sends what waits, for `CLOSE_S` at most, and ends the connection."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


def keep_alive(connected: socket.socket | None) -> None:
    """Makes the kernel look after a TCP connection that is silent."""
    if connected is None or connected.family == socket.AF_UNIX:
        return
    # A peer that left at once leaves a socket that takes no options.
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in KEEPALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────
# Messages as lines: a wire over standard input and output, or over any other byte stream.


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
