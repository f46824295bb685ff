"""The connections of a provider: used again, never too many, and none with half an answer in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from orchestrator.config_keys import ProviderSettings
from orchestrator.model.connections import UNREACHED, Connections, url_of
from orchestrator.model.model_client import HttpBudget, ModelClient
from orchestrator.model.provider_errors import FatalModelError, RetryableModelError
from tests.model.stubbed_client import prompt, provider

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HERE = "127.0.0.1"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
FIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """A server's URL; its ends of connections are closed with it."""
    ends: list[asyncio.StreamWriter] = []

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(kept, HERE, 0)
    try:
        yield f"http://{HERE}:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for end in ends:
            end.close()


@asynccontextmanager
async def connections(most: int = 8) -> AsyncIterator[Connections]:
    among = Connections(ProviderSettings(id="openai", base_url="http://localhost"), most)
    try:
        async with asyncio.timeout(30):
            yield among
    finally:
        await among.aclose()


class Counted:
    """A server that counts its connections, and answers each request when it may."""

    def __init__(self, answer: bytes = EMPTY) -> None:
        self.answer = answer
        self.connections = 0
        self.asked = 0
        self.may = asyncio.Event()
        self.may.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            await self.may.wait()
            writer.write(self.answer)


async def asks(among: Connections, url: str) -> bytes:
    """The body of an answer, read to its end."""
    answer = await among.post(url_of(url), {}, b"")
    try:
        return await answer.content.read()
    finally:
        among.release(answer)


async def closed_by_the_server(among: Connections) -> None:
    """Returns when the client's end of each idle connection has heard that the server has closed it."""
    assert among._session is not None
    assert among._session.connector is not None
    while any(end.is_connected() for idle in among._session.connector._conns.values() for end, _ in idle):
        await asyncio.sleep(0)


async def test_requests_one_after_the_other_share_a_connection() -> None:
    server = Counted()
    async with serving(server.serve) as url, connections() as among:
        for _ in range(3):
            await asks(among, url)
    assert (server.asked, server.connections) == (3, 1)


async def test_request_beyond_the_limit_waits_for_a_connection() -> None:
    server = Counted()
    server.may.clear()
    async with serving(server.serve) as url, connections(2) as among:
        asking = [asyncio.create_task(asks(among, url)) for _ in range(4)]
        while server.asked < 2:
            await asyncio.wait(asking, timeout=0.01)
        server.may.set()
        await asyncio.gather(*asking)
    assert (server.asked, server.connections) == (4, 2)


async def test_answer_that_was_not_read_to_its_end_takes_its_connection_with_it() -> None:
    server = Counted(FIVE + b"fir")
    async with serving(server.serve) as url, connections(1) as among:
        answer = await among.post(url_of(url), {}, b"")
        assert await answer.content.readany() == b"fir"
        among.release(answer)
        server.answer = FIVE + b"other"
        assert await asks(among, url) == b"other"
    assert server.connections == 2


async def test_connection_that_the_server_closed_between_two_requests_is_not_used_again() -> None:
    closed = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closed.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(EMPTY)

    async with serving(serve) as url, connections(1) as among:
        for _ in range(3):
            await asks(among, url)
            await closed_by_the_server(among)
    assert len(closed) == 3


@pytest.mark.parametrize("size", [0, 100, 3 << 20])
async def test_body_of_any_size_arrives_whole_under_its_length(size: int) -> None:
    sent = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"content-length: {size}\r\n".encode() in head.lower()
        sent.append(await reader.readexactly(size))
        writer.write(EMPTY)

    async with serving(serve) as url, connections() as among:
        answer = await among.post(url_of(url), {}, b"x" * size)
        among.release(answer)
    assert sent == [b"x" * size]


async def test_request_has_no_header_that_it_was_not_given() -> None:
    heads = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(EMPTY)

    async with serving(serve) as url, connections() as among:
        answer = await among.post(url_of(url + "v1/%7Efoo?a=b%20c"), {"X-Own": "1"}, b"")
        among.release(answer)
    first, *headers = heads[0].rstrip().split(b"\r\n")
    assert first == b"POST /v1/%7Efoo?a=b%20c HTTP/1.1"
    assert {line.split(b":")[0].lower() for line in headers} == {b"host", b"x-own", b"content-length"}


async def test_answers_redirect_is_an_answer_and_is_not_followed() -> None:
    moved = b"HTTP/1.1 307 go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    server = Counted(moved)
    async with serving(server.serve) as url, connections() as among:
        answer = await among.post(url_of(url), {"Authorization": "Bearer k"}, b"")
        among.release(answer)
    assert (answer.status, server.asked) == (307, 1)


async def test_place_where_nobody_listens_is_told_as_unreached() -> None:
    server = await asyncio.start_server(Counted().serve, HERE, 0)
    url = f"http://{HERE}:{server.sockets[0].getsockname()[1]}/"
    server.close()
    async with connections() as among:
        with pytest.raises(UNREACHED):
            await among.post(url_of(url), {}, b"")


@pytest.mark.parametrize("waits", [True, False])
async def test_closing_ends_a_stream_that_is_still_open(waits: bool) -> None:
    event = b'data: {"type":"response.output_text.delta","item_id":"1","delta":"a"}\n\n'
    server = Counted(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + event)
    async with serving(server.serve) as url:
        client = ModelClient(provider(url.rstrip("/"), "near"))
        events = client.stream(prompt(), HttpBudget(0))
        await anext(events)
        pending = asyncio.ensure_future(anext(events)) if waits else None
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(RetryableModelError):
            await (pending or anext(events))


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

    async with serving(serve) as url:
        table = provider(url.rstrip("/"), "near", http_headers=named)
        async with ModelClient(table) as client:
            with pytest.raises(FatalModelError):
                await anext(client.stream(prompt(), HttpBudget(0)))
    lines = heads[0].split(b"\r\n")
    assert [line[6:].startswith(host) for line in lines if line.lower().startswith(b"host:")] == [True]
