"""Connections of the loop itself: what is read, written and refused, on both loops that Dendro runs on."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore
import pytest
import uvloop

from orchestrator.model import sockets
from orchestrator.model.client import HttpBudget, ModelClient
from orchestrator.model.connections import Connections
from orchestrator.model.errors import FatalModelError
from orchestrator.model.sockets import MOST_UNREAD, LoopSockets
from orchestrator.tables import ProviderSettings
from tests.certs import make_authority, make_certificate
from tests.model.stubbed_client import prompt, provider

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)
HERE = "127.0.0.1"


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine to its end on a loop of one kind."""

    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await work

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return on_loop


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder)
    make_certificate(folder, "server")
    return folder


@asynccontextmanager
async def serving(serve: Serve, secured: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server's port; its ends of connections are closed with it."""
    ends: list[asyncio.StreamWriter] = []

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(kept, HERE, 0, ssl=secured)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for end in ends:
            end.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[httpcore.AsyncNetworkStream]:
    stream = await LoopSockets().connect_tcp(HERE, port, timeout=20)
    try:
        yield stream
    finally:
        await stream.aclose()
        await asyncio.sleep(0)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers nothing, and takes everything."""
    await reader.read()


async def all_of(stream: httpcore.AsyncNetworkStream) -> bytes:
    return b"".join([piece async for piece in pieces(stream)])


async def pieces(stream: httpcore.AsyncNetworkStream, most: int = 1 << 16) -> AsyncIterator[bytes]:
    while piece := await stream.read(most):
        assert len(piece) <= most
        yield piece


def test_stream_is_read_to_its_end_in_pieces_of_the_size_that_was_asked_for(run: Any) -> None:
    said = bytes(range(256)) * 400

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            assert b"".join([piece async for piece in pieces(stream, 1000)]) == said
            assert await stream.read(10) == b"", "the end stays the end"

    run(work())


def test_server_waits_for_a_slow_reader_who_still_reads_everything(run: Any) -> None:
    size, sent = 16 << 20, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"x" * size)
        await writer.drain()
        sent.set()
        writer.close()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            wire = stream._wire  # type: ignore[attr-defined]
            paused = asyncio.Event()
            wire.transport = Paused(wire.transport, paused)
            await stream.write(b"go")
            await paused.wait()
            kept = sum(map(len, wire.unread))
            assert MOST_UNREAD < kept <= MOST_UNREAD + (1 << 20)
            assert not sent.is_set()
            assert len(await all_of(stream)) == size

    run(work())


class Paused:
    """A transport that says when it was told to wait."""

    def __init__(self, of: Any, paused: asyncio.Event) -> None:
        self._of = of
        self._paused = paused

    def pause_reading(self) -> None:
        self._of.pause_reading()
        self._paused.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def test_head_and_body_leave_in_one_piece(run: Any) -> None:
    first: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first.append(await reader.read(100))
        writer.close()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            await stream.write(b"head")
            await stream.write(b"body")
            assert await stream.read(1) == b""

    run(work())
    assert first == [b"headbody"]


def test_writer_waits_until_a_large_request_has_left(run: Any) -> None:
    size, got = 16 << 20, list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(len(await reader.readexactly(size)))
        writer.close()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            await stream.write(b"x" * size)
            assert stream._wire.transport.get_write_buffer_size() < size  # type: ignore[attr-defined]
            assert await stream.read(1) == b""

    run(work())
    assert got == [size]


def test_server_that_takes_nothing_ends_a_write_in_time(run: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            with pytest.raises(httpcore.WriteTimeout):
                await stream.write(b"x" * (16 << 20), timeout=0.05)

    run(work())


def test_silence_ends_a_read_in_time_and_a_later_one_gets_what_came(run: Any) -> None:
    said = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await said.wait()
        writer.write(b"late")
        await reader.read()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            with pytest.raises(httpcore.ReadTimeout):
                await stream.read(10, timeout=0.01)
            reading = asyncio.ensure_future(stream.read(10))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            said.set()
            assert await stream.read(10) == b"late"

    run(work())


def test_connection_that_was_reset_fails_reads_and_writes(run: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        end = writer.get_extra_info("socket")
        # Closed without a word, as a machine that was restarted answers.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            await stream.write(b"x")
            with pytest.raises(httpcore.ReadError):
                await stream.read(10)
            with pytest.raises(httpcore.WriteError):
                await stream.write(b"y")

    run(work())


def test_idle_connection_tells_that_the_server_has_closed_it(run: Any) -> None:
    close = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await close.wait()
        writer.close()

    async def work() -> None:
        async with serving(serve) as port, connected(port) as stream:
            assert not stream.get_extra_info("is_readable")
            close.set()
            await stream.read(1)
            assert stream.get_extra_info("is_readable")

    run(work())


def test_place_where_nobody_listens_is_told_as_such(run: Any) -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        port = taken.getsockname()[1]

        async def work() -> None:
            with pytest.raises(httpcore.ConnectError, match=r"refused|Connect call failed"):
                await LoopSockets().connect_tcp(HERE, port)

        run(work())


def test_silent_address_does_not_keep_the_next_one_from_being_tried(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, stopped = sockets._opened, list[str]()

    async def addresses(host: str, port: int) -> list[str]:
        return ["black.hole", "refused", HERE]

    async def tried(address: str, port: int, local: Any) -> Any:
        if address == "refused":
            raise ConnectionRefusedError("no")
        if address == HERE:
            return await opened(address, port, local)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(address)

    monkeypatch.setattr(sockets, "HEAD_START_S", 0.001)
    monkeypatch.setattr(sockets, "_addresses", addresses)
    monkeypatch.setattr(sockets, "_opened", tried)

    async def work() -> None:
        async with serving(silent) as port, connected(port) as stream:
            assert stream.get_extra_info("server_addr")[1] == port
        assert stopped == ["black.hole"]
        monkeypatch.setattr(sockets, "HEAD_START_S", 0.0)
        monkeypatch.setattr(sockets, "_addresses", lambda *_: hole())
        with pytest.raises(httpcore.ConnectTimeout):
            await LoopSockets().connect_tcp("host", 1, timeout=0.01)

    async def hole() -> list[str]:
        return ["black.hole"]

    run(work())


async def test_addresses_of_two_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    six, four = socket.AF_INET6, socket.AF_INET

    async def found(*asked: Any, **how: Any) -> list[Any]:
        families = [(six, "::1"), (six, "::2"), (four, "10.0.0.1"), (six, "::1"), (four, "10.0.0.2")]
        return [(family, 1, 6, "", (address, 443)) for family, address in families]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    assert await sockets._addresses("host", 443) == ["::1", "10.0.0.1", "::2", "10.0.0.2"]


def test_server_is_spoken_to_by_tls_if_it_is_who_it_says(run: Any, certs: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(4)).upper())
        await reader.read()

    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(certs / "server.pem", certs / "server.key")
    trusted = ssl.create_default_context(cafile=str(certs / "ca.pem"))

    async def work() -> None:
        async with serving(serve, identity) as port:
            async with connected(port) as plain:
                stream = await plain.start_tls(trusted, HERE, timeout=20)
                assert stream.get_extra_info("ssl_object").version().startswith("TLS")
                await stream.write(b"word")
                assert await stream.read(10) == b"WORD"
            async with connected(port) as plain:
                with pytest.raises(httpcore.ConnectError, match="certificate verify failed"):
                    await plain.start_tls(ssl.create_default_context(), HERE, timeout=20)

    run(work())


def test_server_that_is_silent_or_leaves_in_the_handshake_is_given_up(run: Any) -> None:
    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async def work() -> None:
        async with serving(silent) as port, connected(port) as plain:
            with pytest.raises(httpcore.ConnectTimeout):
                await plain.start_tls(ssl.create_default_context(), HERE, timeout=0.05)
        async with serving(leaves) as port, connected(port) as plain:
            with pytest.raises(httpcore.ConnectError):
                await plain.start_tls(ssl.create_default_context(), HERE, timeout=20)

    run(work())


def test_exchange_that_was_broken_off_leaves_no_half_read_answer_to_the_next(run: Any) -> None:
    answers, connections = iter([b"first", b"second"]), list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await reader.readuntil(b"\r\n\r\n")
        body = next(answers)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await reader.read()

    async def work() -> None:
        async with serving(serve) as port:
            among = Connections(ProviderSettings(id="openai", base_url="http://localhost"), 1)
            request = httpcore.Request("GET", f"http://{HERE}:{port}/", headers=[("Host", HERE)])
            async with among.lend() as exchange:
                assert (await exchange.send(request)).status == 200
            async with among.lend() as exchange:
                answer = await exchange.send(request)
                assert await answer.aread() == b"second"
                await answer.aclose()
            await among.aclose()

    run(work())
    assert len(connections) == 2


def test_connection_that_the_server_closed_between_two_requests_is_not_used_again(run: Any) -> None:
    connections = list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def work() -> None:
        async with serving(serve) as port:
            among = Connections(ProviderSettings(id="openai", base_url="http://localhost"), 1)
            request = httpcore.Request("GET", f"http://{HERE}:{port}/", headers=[("Host", HERE)])
            for _ in range(2):
                async with among.lend() as exchange:
                    answer = await exchange.send(request)
                    assert await answer.aread() == b""
                    stream = answer.extensions["network_stream"]
                    await answer.aclose()
                assert await stream.read(1) == b"", "the server has left"
            await among.aclose()

    run(work())
    assert len(connections) == 2


@pytest.mark.parametrize(
    ("named", "host"), [({}, b"127.0.0.1:"), ({"host": "model.example"}, b"model.example")]
)
async def test_request_names_one_host_the_table_s_own_if_it_has_one(
    named: dict[str, str], host: bytes
) -> None:
    heads = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 no\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with serving(serve) as port:
        table = provider(f"http://{HERE}:{port}", "near", http_headers=named)
        async with ModelClient(table) as client:
            with pytest.raises(FatalModelError):
                await anext(client.stream(prompt(), HttpBudget(0)))
    lines = heads[0].split(b"\r\n")
    assert [line[6:].startswith(host) for line in lines if line.lower().startswith(b"host:")] == [True]
