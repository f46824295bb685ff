"""Listeners over real sockets: who gets in, what is bounded, and what one client does to another."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from orchestrator.gateways.principals import Principal, Scope, machine_user
from orchestrator.gateways.wires import byte_wire, listeners
from orchestrator.gateways.wires.addresses import Address, BadAddress, parse_address
from orchestrator.gateways.wires.authentication import Authentication, Crowded, Peer, TokenWatch
from orchestrator.gateways.wires.byte_wire import CloseCode, SocketStream, StreamBounds, Wire, WireClosed
from orchestrator.gateways.wires.listeners import Doors, ListenerConfig, listening, tls_context
from tests.certs import make_authority, make_certificate

BEN = Principal("ben", "ns", Scope.READ)
TOKEN: dict[str, Any] = {"additional_headers": {"Authorization": "Bearer good"}}


async def look_up(token: str) -> Principal | None:
    return BEN if token == "good" else None


CONFIG = ListenerConfig(Authentication(look_up))


async def echo(wire: Wire) -> None:
    """Says who speaks, then repeats what is said; a flood on request."""
    while (message := await wire.receive()) is not None:
        await wire.send(wire.principal.name.encode() + b":" + message[:50])


async def echo_lines(stream: SocketStream) -> None:
    while data := await stream.read():
        await stream.write(b"lines:" + data)


ECHO = Doors(echo, echo_lines)


@asynccontextmanager
async def gateway(
    text: str = "ws://127.0.0.1:0", doors: Doors = ECHO, config: ListenerConfig = CONFIG
) -> AsyncIterator[Address]:
    async with listening([parse_address(text)], doors, config) as (address,):
        yield address


async def http(address: Address, *lines: str) -> str:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write("\r\n".join((*lines, "", "")).encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_client_with_a_token_speaks_and_is_known_by_name() -> None:
    async with gateway() as address, connect(str(address), **TOKEN) as client:
        await client.send("hello")
        assert await client.recv() == "ben:hello"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer bad"}, {"Authorization": "Basic good"}])
async def test_client_without_a_known_token_is_refused(headers: dict[str, str]) -> None:
    strict = Authentication(look_up, loopback_needs_token=True)
    async with gateway(config=replace(CONFIG, authentication=strict)) as address:
        with pytest.raises(InvalidStatus) as refused:
            await connect(str(address), additional_headers=headers)
    assert refused.value.response.status_code == 401
    assert refused.value.response.headers["WWW-Authenticate"] == "Bearer"


async def test_page_of_a_foreign_origin_is_refused_before_its_token_counts() -> None:
    async with gateway() as address:
        with pytest.raises(InvalidStatus) as refused:
            await connect(str(address), origin="https://evil.example", **TOKEN)  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403


async def test_request_under_a_foreign_name_is_refused() -> None:
    async with gateway() as address:
        answer = await http(address, "GET / HTTP/1.1", "Host: evil.example")
    assert answer.startswith("HTTP/1.1 421 ")


async def test_health_is_told_on_the_same_port_without_a_token() -> None:
    ready = [False]
    async with gateway(config=replace(CONFIG, is_ready=lambda: ready[0])) as address:
        assert (await http(address, "GET /healthz HTTP/1.1", "Host: x")).startswith("HTTP/1.1 200 ")
        assert (await http(address, "GET /readyz HTTP/1.1", "Host: x")).startswith("HTTP/1.1 503 ")
        ready[0] = True
        assert (await http(address, "GET /readyz HTTP/1.1", "Host: x")).startswith("HTTP/1.1 200 ")


async def test_binary_frames_are_passed_over() -> None:
    async with gateway() as address, connect(str(address), **TOKEN) as client:
        await client.send(b"\x00\x01")
        await client.send("text")
        assert await client.recv() == "ben:text"


async def test_messages_that_are_sent_together_are_a_frame_each_and_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes: list[int] = []
    sent = listeners.DoorConnection.send_data

    def counted(connection: listeners.DoorConnection) -> None:
        frames = connection.protocol.writes
        with monkeypatch.context() as patched:
            spied = _Writes(connection.transport)
            patched.setattr(connection, "transport", spied)
            sent(connection)
        if len(frames) > 1 and all(frames):
            writes.append(spied.count)

    monkeypatch.setattr(listeners.DoorConnection, "send_data", counted)

    async def several(wire: Wire) -> None:
        while (message := await wire.receive()) is not None:
            await wire.send(message, b"", "größer".encode(), b"x" * 70_000)

    async with gateway(doors=Doors(several)) as address, connect(str(address), **TOKEN) as client:
        await client.send("first")
        assert [await client.recv() for _ in range(4)] == ["first", "", "größer", "x" * 70_000]
    assert writes == [1]


class _Writes:
    """A transport that counts what it is given to write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.count = 0

    def write(self, data: bytes) -> None:
        self.count += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_message_over_the_limit_ends_its_connection_with_1009_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert listeners.BOUNDS["max_size"] == 16 * 1024 * 1024
    monkeypatch.setitem(listeners.BOUNDS, "max_size", 1000)
    async with gateway() as address, connect(str(address), **TOKEN) as other:
        async with connect(str(address), **TOKEN) as client:
            await client.send("x" * 1000)
            assert await client.recv() == "ben:" + "x" * 50
            await client.send("x" * 1001)
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == CloseCode.TOO_LARGE
        await other.send("still here")
        assert await other.recv() == "ben:still here"


async def test_gateway_that_leaves_tells_its_clients_to_come_back() -> None:
    async with gateway() as address:
        client = await connect(str(address), **TOKEN)
    with pytest.raises(ConnectionClosed) as closed:
        await client.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.GOING_AWAY


async def test_websocket_client_that_reads_nothing_is_dropped_and_no_other_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_wire, "STALL_S", 0.2)
    monkeypatch.setattr(listeners, "CLOSE_S", 0.2)
    dropped = asyncio.get_running_loop().create_future()

    async def flood(wire: Wire) -> None:
        if await wire.receive() != b"flood":
            await echo(wire)
            return
        try:
            while True:
                await wire.send(b"x" * 100_000)
        except WireClosed as error:
            dropped.set_result(str(error))

    async with gateway(doors=Doors(flood)) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1000)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Authorization: Bearer good\r\n\r\n\x81\x85\0\0\0\0flood"
        )
        async with connect(str(address), **TOKEN) as other:
            await other.send("first")
            await other.send("second")
            assert await other.recv() == "ben:second"
        assert "has read nothing" in await dropped
        writer.transport.abort()
        del reader


async def test_client_of_lines_that_reads_nothing_is_dropped_at_its_bound() -> None:
    dropped = asyncio.get_running_loop().create_future()

    async def flood(stream: SocketStream) -> None:
        sent = 0
        try:
            while True:
                await stream.write(b"x" * 100_000)
                sent += 100_000
        except WireClosed:
            dropped.set_result(sent)

    config = replace(CONFIG, bounds=StreamBounds(outgoing=1_000_000, stall_s=0.2))
    async with gateway("tcp://127.0.0.1:0", Doors(lines=flood), config) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1000)
        # The kernel's buffers of both ends hold some megabytes beside ours.
        assert await dropped < 20_000_000
        writer.transport.abort()
        del reader


async def test_unix_socket_takes_lines_and_websockets_of_its_user_without_a_token(tmp_path: Path) -> None:
    path = tmp_path / "a" / "gateway.sock"
    async with gateway(f"unix://{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with unix_connect(str(path), "ws://anything/") as client:
            await client.send("hello")
            assert await client.recv() == f"{machine_user().name}:hello"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"{}\n")
        assert await reader.readline() == b"lines:{}\n"
        writer.close()
    assert not path.exists()


async def test_token_on_a_unix_socket_narrows_what_its_user_could_do(tmp_path: Path) -> None:
    async with (
        gateway(f"unix://{tmp_path}/g.sock"),
        unix_connect(f"{tmp_path}/g.sock", "ws://x/", **TOKEN) as client,
    ):
        await client.send("hello")
        assert await client.recv() == "ben:hello"


@pytest.mark.parametrize("peer", [Peer(os.geteuid() + 1, False), Peer(os.geteuid(), True), None])
async def test_another_user_and_a_process_in_a_sandbox_need_a_token(
    tmp_path: Path, peer: Peer | None
) -> None:
    config = replace(CONFIG, authentication=Authentication(look_up, peer_of=lambda connected: peer))
    for place in (f"unix://{tmp_path}/g.sock", "ws://127.0.0.1:0"):
        async with gateway(place, config=config) as address:
            with pytest.raises(InvalidStatus) as refused:
                if address.path:
                    await unix_connect(str(address.path), "ws://x/")
                await connect(str(address))
        assert refused.value.response.status_code == 401


async def test_process_of_this_user_needs_no_token_on_loopback() -> None:
    async with gateway() as address, connect(str(address)) as client:
        await client.send("hello")
        assert await client.recv() == f"{machine_user().name}:hello"


async def test_namespace_and_token_have_a_part_of_the_connections_alone() -> None:
    people = {
        "acme-1": replace(BEN, namespace="acme", token="a1"),
        "acme-2": replace(BEN, namespace="acme", token="a2"),
        "beta": replace(BEN, namespace="beta", token="b"),
        "ben": replace(BEN, namespace="", token="c"),
        "ben's other": replace(BEN, namespace="", token="d"),
    }

    async def named(token: str) -> Principal:
        return people[token]

    async def look() -> frozenset[str]:
        return frozenset(one.token for one in people.values())

    config = replace(CONFIG, authentication=Authentication(named), watch=TokenWatch(look, most=2))

    async def opened(token: str) -> ClientConnection:
        headers = {"Authorization": f"Bearer {token}"}
        return await stack.enter_async_context(connect(str(address), additional_headers=headers))

    async def is_served(token: str) -> None:
        wire = await opened(token)
        await wire.send("hello")
        assert "hello" in str(await wire.recv())

    async def is_one_too_many(token: str) -> None:
        with pytest.raises(ConnectionClosed) as closed:
            await (await opened(token)).recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == CloseCode.NOT_PERMITTED
        assert "2 connections are open" in closed.value.rcvd.reason

    async with gateway(config=config) as address:
        async with AsyncExitStack() as stack:
            for token in ("acme-1", "acme-2", "beta", "ben", "ben"):
                await is_served(token)
            for token in ("acme-1", "acme-2", "ben"):
                await is_one_too_many(token)
            for token in ("beta", "ben's other"):
                await is_served(token)
        async with AsyncExitStack() as stack:
            await is_served("acme-2")


async def test_every_connection_whose_token_is_revoked_ends_with_1008_and_no_other() -> None:
    in_force = [frozenset({"t"})]

    async def look() -> frozenset[str]:
        return in_force[0]

    async def named(token: str) -> Principal:
        return replace(BEN, token=token)

    watch = TokenWatch(look)
    config = replace(CONFIG, authentication=Authentication(named), watch=watch)
    async with gateway(config=config) as address, connect(str(address)) as other:
        bearer = {"Authorization": "Bearer t"}
        async with (
            connect(str(address), additional_headers=bearer) as first,
            connect(str(address), additional_headers=bearer) as second,
        ):
            for client in (first, second):
                await client.send("hello")
                assert await client.recv() == "ben:hello"
            await watch.look()
            in_force[0] = frozenset()
            await watch.look()
            for client in (first, second):
                with pytest.raises(ConnectionClosed) as closed:
                    await asyncio.wait_for(client.recv(), 10)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == CloseCode.NOT_PERMITTED
        await other.send("still here")
        assert "still here" in str(await other.recv())


async def test_file_that_a_dead_gateway_left_makes_way_and_a_living_gateway_does_not(tmp_path: Path) -> None:
    path = tmp_path / "g.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    async with gateway(f"unix://{path}"):
        with pytest.raises(BadAddress, match="cannot be listened on"):
            async with gateway(f"unix://{path}"):
                pass
        assert path.exists()


async def test_port_that_is_taken_is_a_clear_error() -> None:
    async with gateway() as address:
        with pytest.raises(BadAddress, match=r"cannot be listened on: .*take another port"):
            async with gateway(str(address)):
                pass


async def test_connection_too_many_is_closed_and_those_before_it_stay() -> None:
    async with gateway(config=replace(CONFIG, most_connections=2)) as address:
        kept = [await connect(str(address), **TOKEN) for _ in range(2)]
        with pytest.raises((OSError, EOFError, InvalidHandshake)):
            await connect(str(address), **TOKEN)
        for client in kept:
            await client.send("here")
            assert await client.recv() == "ben:here"
            await client.close()
        async with connect(str(address), **TOKEN) as again:
            await again.send("room")
            assert await again.recv() == "ben:room"


async def test_wss_is_encrypted_with_the_certificate_of_the_settings(tmp_path: Path) -> None:
    import ssl

    make_authority(tmp_path)
    make_certificate(tmp_path, "server")
    config = replace(CONFIG, tls=tls_context(tmp_path / "server.pem", tmp_path / "server.key"))
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with (
        gateway("wss://127.0.0.1:0", config=config) as address,
        connect(str(address), ssl=trust, **TOKEN) as client,
    ):
        await client.send("hello")
        assert await client.recv() == "ben:hello"


async def test_encrypted_address_without_a_certificate_is_refused_with_the_settings_named() -> None:
    with pytest.raises(BadAddress, match=r"gateway\.tls_certificate"):
        async with gateway("wss://127.0.0.1:0"):
            pass


def test_certificate_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    for name in ("c.pem", "missing.pem"):
        with pytest.raises(
            BadAddress, match=rf"tls_certificate \(.*{name}\).* cannot be used: .* two PEM files"
        ):
            tls_context(tmp_path / name, tmp_path / name)


async def test_file_in_the_place_of_a_socket_stays_and_another_path_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(BadAddress, match=r"a program, or a file, has it already: .*take another path"):
        async with gateway(f"unix://{tmp_path}/notes"):
            pass
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500,
        b"GET /" + b"a" * 20_000,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        b"\0" * 1000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_garbage_in_a_handshake_ends_its_connection_alone(garbage: bytes) -> None:
    async with gateway() as address, connect(str(address), **TOKEN) as other:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(garbage)
        writer.write_eof()
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        await other.send("still here")
        assert await other.recv() == "ben:still here"


async def test_connection_that_ends_makes_room_for_one_and_not_for_more() -> None:
    watch, ends = TokenWatch(AsyncMock(), most=2), [asyncio.Event() for _ in range(3)]
    who = Principal("ben", "ns", Scope.READ, "t")

    async def serving(number: int) -> None:
        await ends[number].wait()

    open_ones = [asyncio.ensure_future(watch.serve(who, serving(number))) for number in range(2)]
    await asyncio.sleep(0)
    ends[0].set()
    await open_ones[0]
    third = asyncio.ensure_future(watch.serve(who, serving(2)))
    await asyncio.sleep(0)
    with pytest.raises(Crowded):
        await watch.serve(who, serving(0))
    for end in ends:
        end.set()
    await asyncio.gather(open_ones[1], third)
