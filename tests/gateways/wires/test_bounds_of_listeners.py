"""Bounds of a listener: so many connections of whatever kind, and what goes on where one is too many."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse

from orchestrator.gateways.principals import Principal, Scope, machine_user
from orchestrator.gateways.wires.addresses import Address
from orchestrator.gateways.wires.authentication import (
    Authentication,
    Peer,
    Revoked,
    TokenWatch,
    Unauthenticated,
)
from orchestrator.gateways.wires.listeners import Doors, tls_context
from tests.certs import make_authority, make_certificate
from tests.gateways.wires.test_listeners import CONFIG, ECHO, gateway

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Authorization: Bearer good\r\n\r\n"
)
HELLO = b"\x81\x85\0\0\0\0hello"


class Page:
    """A door of requests that says one word."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("hello")(scope, receive, send)

    def leave(self) -> None: ...


class Connection:
    """A connection of one kind, spoken by hand."""

    def __init__(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.kind = kind
        self._reader = reader
        self.writer = writer
        self._upgraded = False

    async def answer(self) -> bytes:
        """The gateway's word to a word; empty where it has closed the connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.timeout(20):
                if self.kind == "lines":
                    self.writer.write(b"hello\n")
                    return await self._reader.readline()
                if self.kind == "request":
                    self.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    head = await self._reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    await self._reader.readexactly(length)
                    return head.split(b"\r\n")[0]
                if not self._upgraded:
                    self.writer.write(UPGRADE)
                    await self._reader.readuntil(b"\r\n\r\n")
                    self._upgraded = True
                self.writer.write(HELLO)
                frame = await self._reader.readexactly(2)
                return await self._reader.readexactly(frame[1])
        return b""

    async def is_closed(self) -> bool:
        with suppress(ConnectionError):
            async with asyncio.timeout(20):
                return not await self._reader.read()
        return True


ANSWERS = {"lines": b"lines:hello\n", "websocket": b"ben:hello", "request": b"HTTP/1.1 200 OK"}


async def connected(address: Address, kind: str) -> Connection:
    opening = (
        asyncio.open_unix_connection(address.path)
        if address.path
        else asyncio.open_connection(address.host, address.port)
    )
    return Connection(kind, *await opening)


async def served(address: Address, kind: str) -> Connection:
    """A connection that is served, or has at least been opened where it says nothing."""
    one = await connected(address, kind)
    if kind in ANSWERS:
        assert await one.answer() == ANSWERS[kind]
    return one


@asynccontextmanager
async def bounded(text: str) -> AsyncIterator[Address]:
    doors = Doors(ECHO.messages, ECHO.lines, cast(Any, Page()))
    async with gateway(text, doors, replace(CONFIG, most_connections=2)) as address:
        yield address


async def has_room(address: Address, kind: str) -> None:
    """Comes again and again until it is served: the gateway has to hear first that another one has left."""
    async with asyncio.timeout(20):
        while True:
            one = await connected(address, kind)
            if await one.answer() == ANSWERS[kind]:
                break
            one.writer.close()
    one.writer.close()


@pytest.mark.parametrize(
    "open_ones", list(combinations_with_replacement(("websocket", "lines", "silent"), 2))
)
@pytest.mark.parametrize("further", ["websocket", "lines", "silent"])
async def test_unix_socket_serves_so_many_connections_whatever_they_speak(
    open_ones: tuple[str, str], further: str, tmp_path: Path
) -> None:
    async with bounded(f"unix://{tmp_path}/g.sock") as address:
        kept = [await served(address, kind) for kind in open_ones]
        one_too_many = await connected(address, further)
        if further == "silent":
            assert await one_too_many.is_closed()
        else:
            assert await one_too_many.answer() == b""
        one_too_many.writer.close()
        for one in kept:
            if one.kind in ANSWERS:
                assert await one.answer() == ANSWERS[one.kind]
        kept[0].writer.close()
        await has_room(address, "lines" if further == "silent" else further)
        kept[1].writer.close()


@pytest.mark.parametrize(("text", "kind"), [("ws", "websocket"), ("tcp", "lines"), ("http", "request")])
async def test_address_serves_as_many_connections_as_it_may_while_further_ones_come(
    text: str, kind: str
) -> None:
    async with bounded(f"{text}://127.0.0.1:0") as address:
        kept = [await served(address, kind) for _ in range(2)]
        further = [await connected(address, kind) for _ in range(3)]
        for one in further:
            assert await one.answer() in (b"", b"HTTP/1.1 503 Service Unavailable")
        for one in kept:
            assert await one.answer() == ANSWERS[kind]
        kept[0].writer.close()
        await has_room(address, kind)
        assert await kept[1].answer() == ANSWERS[kind]
        for one in (*kept, *further):
            one.writer.close()


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(("text", "kind"), [("ws", "websocket"), ("tcp", "lines"), ("http", "request")])
async def test_connections_that_come_together_get_no_more_places_than_there_are(
    text: str, kind: str, encrypted: bool, tmp_path: Path
) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, "server")
    tls = tls_context(tmp_path / "server.pem", tmp_path / "server.key")
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem")) if encrypted else None
    doors = Doors(ECHO.messages, ECHO.lines, cast(Any, Page()))
    config = replace(CONFIG, most_connections=2, tls=tls)
    async with gateway(f"{text}{'s' if encrypted else ''}://127.0.0.1:0", doors, config) as address:
        # The kernel takes them all before the gateway is told of the first.
        waiting = [socket.create_connection((address.host, address.port)) for _ in range(6)]

        async def answer(one: socket.socket) -> bytes:
            with suppress(ConnectionError):
                name = address.host if encrypted else None
                opening = asyncio.open_connection(sock=one, ssl=trust, server_hostname=name)
                opened.append(Connection(kind, *await opening))
                return await opened[-1].answer()
            return b""

        opened: list[Connection] = []
        answers = await asyncio.gather(*map(answer, waiting))
        assert answers.count(ANSWERS[kind]) == 2
        for connection in opened:
            connection.writer.close()
        closing = (connection.writer.wait_closed() for connection in opened)
        await asyncio.gather(*closing, return_exceptions=True)
        for one in waiting:
            one.close()


@pytest.mark.parametrize(("text", "kind"), [("wss", "websocket"), ("tcps", "lines"), ("https", "request")])
async def test_encrypted_address_serves_whoever_speaks_tls_and_nobody_else(
    text: str, kind: str, tmp_path: Path
) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, "server")
    config = replace(CONFIG, tls=tls_context(tmp_path / "server.pem", tmp_path / "server.key"))
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    doors = Doors(ECHO.messages, ECHO.lines, cast(Any, Page()))
    async with gateway(f"{text}://127.0.0.1:0", doors, config) as address:
        plain = await connected(address, kind)
        assert await plain.answer() == b""
        plain.writer.close()
        opening = asyncio.open_connection(address.host, address.port, ssl=trust)
        encrypted = Connection(kind, *await opening)
        assert await encrypted.answer() == ANSWERS[kind]
        encrypted.writer.close()


async def test_look_at_tokens_that_fails_is_made_up_for_by_the_next_one() -> None:
    looks: list[Any] = [OSError("Redis is away"), frozenset({"t"}), ValueError("no record"), frozenset()]

    async def look() -> frozenset[str]:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, Exception):
            raise found
        return cast(frozenset[str], found)

    watch = TokenWatch(look, every_s=0)
    running = asyncio.ensure_future(watch.run())
    with pytest.raises(Revoked):
        async with asyncio.timeout(20):
            await watch.serve(Principal("ci", scope=Scope.READ, token="t"), asyncio.Future())  # type: ignore[arg-type]
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("user", [os.geteuid(), 0])
@pytest.mark.parametrize(("family", "needs"), [(socket.AF_UNIX, False), (socket.AF_INET, True)])
async def test_loopback_that_needs_a_token_leaves_unix_sockets_to_their_user(
    family: socket.AddressFamily, needs: bool, user: int
) -> None:
    gate = Authentication(loopback_needs_token=True, peer_of=lambda _: Peer(user, False))
    with socket.socket(family) as one:
        if not needs:
            assert await gate.principal(None, one) == machine_user()
            return
        with pytest.raises(Unauthenticated, match="a token is needed"):
            await gate.principal(None, one)
