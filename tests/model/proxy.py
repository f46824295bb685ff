"""A forward proxy and a TLS end on loopback: the way from a company's machine to a provider outside."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Proxy:
    """Takes everybody who asks for anything to one server, whatever name they give it."""

    target: tuple[str, int]
    password: str = ""
    """The value that `Proxy-Authorization` must have; empty lets everybody through."""
    asked: list[str] = field(default_factory=list)
    """The first line of each request."""
    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        self.asked.append(line.decode())
        if self.password and f"proxy-authorization: {self.password}".lower() not in rest.decode().lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        there_reader, there = await asyncio.open_connection(*self.target)
        method, url, version = line.split()
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there.write(b" ".join((method, urlsplit(url).path, version)) + b"\r\n" + rest)
        await _both_ways((reader, writer), (there_reader, there))


async def _both_ways(
    here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    ways = [
        asyncio.create_task(_pass_on(here[0], there[1])),
        asyncio.create_task(_pass_on(there[0], here[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # A cancel may arrive here, too: nothing is awaited before the end is certain.
        here[1].close()
        there[1].close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def _listening(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A port whose visitors are handled; all of them have left when the block ends."""
    visits: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        visits.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for task in visits:
            task.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxy(
    target: tuple[str, int], password: str = "", context: ssl.SSLContext | None = None
) -> AsyncIterator[Proxy]:
    """A proxy that leads to `target`; with a context it is itself reached by TLS."""
    serving = Proxy(target, password)
    async with _listening(serving.serve, context) as port:
        serving.address = f"127.0.0.1:{port}"
        yield serving


@contextlib.asynccontextmanager
async def tls_end(target: tuple[str, int], context: ssl.SSLContext) -> AsyncIterator[tuple[str, int]]:
    """Speaks TLS in front of a server that does not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _both_ways((reader, writer), await asyncio.open_connection(*target))

    async with _listening(serve, context) as port:
        yield "127.0.0.1", port
