"""Sockets of the running loop, for httpcore's connections.

httpcore's own lead through another library, which passes cancel scopes, gives the loop back, and tells the
kernel to begin and to end reading, at each read and write. Here bytes are read as they come and kept until
they are asked for, up to a bound, and nothing is awaited to write: uvloop sends a request's head and its body
in one piece. Knows neither HTTP nor proxies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any, cast

import httpcore

MOST_UNREAD = 256 << 10
"""Bytes that are kept for a slow reader before the server has to wait."""
HEAD_START_S = 0.25
"""The time that an address of a host has before the next one is tried beside it (RFC 8305)."""

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class LoopSockets(httpcore.AsyncNetworkBackend):
    """Opens TCP connections on the running loop."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the first of the host's addresses that answers; raises httpcore's connect errors."""
        local = None if local_address is None else (local_address, 0)
        try:
            async with asyncio.timeout(timeout):
                wire = await _reached(await _addresses(host, port), port, local)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        for option in socket_options or ():
            wire.transport.get_extra_info("socket").setsockopt(*option)
        return LoopStream(wire)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LoopStream(httpcore.AsyncNetworkStream):
    """A connection, which one task reads and one writes."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The bytes that came since the last read; empty at the end of the stream."""
        wire = self._wire
        if not wire.unread and not wire.over:
            try:
                async with asyncio.timeout(timeout):
                    await wire.news()
            except TimeoutError as error:
                raise httpcore.ReadTimeout(str(error)) from error
        if wire.unread:
            return wire.taken(max_bytes)
        if wire.error is not None:
            raise httpcore.ReadError(str(wire.error)) from wire.error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        wire = self._wire
        if wire.lost:
            raise httpcore.WriteError("the connection is closed") from wire.error
        wire.transport.write(buffer)
        if wire.full is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await wire.full
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        if wire.lost:
            raise httpcore.WriteError("the connection is closed") from wire.error

    async def aclose(self) -> None:
        """Closes the connection at once, whatever was not sent yet."""
        self._wire.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """The same connection under TLS; a handshake that fails closes it."""
        wire, loop = self._wire, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                secured = await loop.start_tls(
                    wire.transport, wire, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            await self.aclose()
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            await self.aclose()
            raise httpcore.ConnectError(str(error)) from error
        except BaseException:
            await self.aclose()
            raise
        if secured is None:
            raise httpcore.ConnectError("the connection was closed during the TLS handshake")
        wire.transport = secured
        return self

    def get_extra_info(self, info: str) -> Any:
        """Answers httpcore's question about a connection; an idle one `is_readable` when it was closed."""
        if info == "is_readable":
            return bool(self._wire.unread) or self._wire.over
        name = _NAMES.get(info)
        return None if name is None else self._wire.transport.get_extra_info(name)


_NAMES = {
    "ssl_object": "ssl_object",
    "socket": "socket",
    "client_addr": "sockname",
    "server_addr": "peername",
}


class _Wire(asyncio.Protocol):
    """The loop's side of a connection: what came and was not read, and whether more may be written."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.unread: deque[bytes] = deque()
        self.over = False
        """Whether nothing more will come."""
        self.lost = False
        self.error: Exception | None = None
        self.full: asyncio.Future[None] | None = None
        """Done when what was written has left, as far as it has to."""
        self._size = 0
        self._held = False
        self._reader: asyncio.Future[None] | None = None

    async def news(self) -> None:
        """Returns when bytes, or the end of the stream, have come."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def taken(self, most: int) -> bytes:
        """The next bytes, no longer kept."""
        piece = self.unread.popleft()
        if len(piece) > most:
            self.unread.appendleft(piece[most:])
            piece = piece[:most]
        self._size -= len(piece)
        if self._held and self._size <= MOST_UNREAD:
            self._held = False
            self.transport.resume_reading()
        return piece

    # ── what the loop calls ───────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is of no class of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.unread.append(data)
        self._size += len(data)
        if self._size > MOST_UNREAD and not self._held:
            self._held = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> None:
        self.over = True
        _wake(self._reader)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = self.lost = True
        self.error, self._held = exc, False
        _wake(self._reader)
        self.resume_writing()

    def pause_writing(self) -> None:
        self.full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self.full)
        self.full = None


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


# ── the addresses of a host ───────────────────────────────────────────────────────────────────


async def _addresses(host: str, port: int) -> list[str]:
    """The host's addresses, those of the two families by turns, the family of the first one first."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = found[0][0]
    pairs = zip_longest(
        [str(info[4][0]) for info in found if info[0] == first],
        [str(info[4][0]) for info in found if info[0] != first],
    )
    return list(dict.fromkeys(address for address in chain.from_iterable(pairs) if address is not None))


async def _reached(addresses: list[str], port: int, local: tuple[str, int] | None) -> _Wire:
    """The first connection that stands; an address that is silent does not keep the next from being tried."""
    left, errors = deque(addresses), list[BaseException]()
    trying: set[asyncio.Task[_Wire]] = set()
    try:
        while left or trying:
            if left:
                trying.add(asyncio.create_task(_opened(left.popleft(), port, local)))
            done, trying = await asyncio.wait(
                trying, timeout=HEAD_START_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            stand = [task.result() for task in done if task.exception() is None]
            for second in stand[1:]:
                second.transport.abort()
            if stand:
                return stand[0]
            errors += [error for task in done if (error := task.exception()) is not None]
    finally:
        for task in trying:
            task.cancel()
    raise errors[0]


async def _opened(address: str, port: int, local: tuple[str, int] | None) -> _Wire:
    _, wire = await asyncio.get_running_loop().create_connection(_Wire, address, port, local_addr=local)
    return wire
