"""Byte streams to clients: TCP and unix sockets, with bounds on what waits for the client.

Knows no lines: an NDJSON connection cuts its own, and `LineWire` makes messages of them.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from orchestrator.core.frozen import record
from orchestrator.gateways.wires.wire import OUTGOING_LIMIT, STALL_S, TooSlow, WireClosed
from orchestrator.tables.base import KIB

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
