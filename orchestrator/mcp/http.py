"""Messages to and from a URL: the SDK's streamable HTTP, on a client with bounds.

The SDK bounds one event of a stream. Bodies that are no stream, the number of open responses and the pace at
which a stream is asked for again are bounded here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from orchestrator.mcp.bounds import MESSAGE_BYTES, OPEN_EXCHANGES
from orchestrator.mcp.traffic import Traffic
from orchestrator.tables import McpServerSettings

Reading = ReadStream[SessionMessage | Exception]
Writing = WriteStream[SessionMessage]

CONNECT_S = 10.0
SILENCE_S = 300.0
"""A response that brings nothing for so long is closed."""
GOODBYE_S = 1.0
"""For each part of the request that ends a session: a worker that leaves does not wait for its servers."""
PAUSE_S = 1.0
"""Between two requests for the server's own stream: a server can end it at once, again and again."""


@asynccontextmanager
async def over_http(settings: McpServerSettings, traffic: Traffic) -> AsyncIterator[tuple[Reading, Writing]]:
    """The streams of a session with a URL; too much of it is told to `traffic`."""
    assert settings.url is not None
    timeout = httpx2.Timeout(CONNECT_S, read=SILENCE_S)
    async with (
        httpx2.AsyncClient(
            transport=Bounded(_transport(settings), traffic),
            headers=_headers(settings),
            timeout=timeout,
            trust_env=False,
        ) as client,
        streamable_http_client(settings.url, http_client=client, max_sse_event_size=MESSAGE_BYTES) as streams,
    ):
        yield streams


def _headers(settings: McpServerSettings) -> Mapping[str, str]:
    """The headers of every request. Nothing compressed is asked for: it would pass the bounds small."""
    token = {"Authorization": f"Bearer {settings.bearer_token}"} if settings.bearer_token else {}
    return {"Accept-Encoding": "identity", **settings.http_headers, **settings.secret_headers, **token}


def _transport(settings: McpServerSettings) -> httpx2.AsyncHTTPTransport:
    limits = httpx2.Limits(max_connections=OPEN_EXCHANGES + 1)
    return httpx2.AsyncHTTPTransport(
        verify=_authorities(settings), limits=limits, proxy=settings.proxy, trust_env=False
    )


def _authorities(settings: McpServerSettings) -> ssl.SSLContext | bool:
    """Raises `OSError` if the file of the authorities cannot be read."""
    return True if settings.ca_file is None else ssl.create_default_context(cafile=settings.ca_file)


class Bounded(httpx2.AsyncBaseTransport):
    """A transport that bounds what comes back."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic
        self._open = 0
        self._asked_at = float("-inf")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request; its response is read as far as a message may be long."""
        if self._open >= OPEN_EXCHANGES:
            self._traffic.fail(f"the server leaves more than {OPEN_EXCHANGES} responses open")
            raise httpx2.RequestError("too many open responses", request=request)
        if request.method == "GET":
            await self._pause()
        elif request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(GOODBYE_S).as_dict()
        self._open += 1
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException:
            self._open -= 1
            raise
        return self._bounded(response)

    async def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        wait = self._asked_at + PAUSE_S - loop.time()
        self._asked_at = loop.time() + max(0.0, wait)
        if wait > 0:
            await asyncio.sleep(wait)

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        encoded = response.headers.get("content-encoding", "identity").lower() != "identity"
        most = 0 if encoded else None if streamed else MESSAGE_BYTES
        response.stream = _Body(response.stream, most, self._closed)
        return response

    def _closed(self) -> None:
        self._open -= 1

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """The body of a response, to its bound; None is a stream of events, each bounded by itself."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int | None, closed: Callable[[], None]) -> None:
        self._inner = inner
        self._most = most
        self._closed: Callable[[], None] | None = closed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if self._most is not None and size > self._most:
                raise httpx2.ReadError(f"the server sent more than {self._most:,} bytes that can be read")
            yield chunk

    async def aclose(self) -> None:
        if self._closed is not None:
            self._closed()
            self._closed = None
        await self._inner.aclose()
