"""Open connections to one provider, in lanes of one.

A pool looks at every connection whenever a request begins or ends, and asks the kernel about each idle one;
with hundreds of sessions on one pool that alone is most of a turn's CPU. So there is no pool here: a lane is
a connection, and a request takes the lane that came free last. httpcore is used below its pool, and httpx not
at all, for both cost CPU with each request. This module knows connections, not the traffic on them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpcore
import httpx

from orchestrator.model.provider import InvalidProvider
from orchestrator.model.sockets import LoopSockets
from orchestrator.tables import ProviderSettings

MAX_CONNECTIONS = 1024
"""Sockets open to one provider at once; a streaming session holds one."""
_KEEPALIVE_S = 30.0
"""Below what servers commonly keep an idle connection for: who closes first must be us."""
BROKEN = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
    OSError,
)
"""The errors of a connection, whatever broke it."""
UNREACHED = (httpcore.ConnectError, httpcore.ConnectTimeout)
"""Those of a connection that never stood: no byte of the request has left."""


class Lane:
    """A place for one connection; a new one is made in it when the last can be used no more."""

    __slots__ = ("_connection", "_maker", "busy", "free_since", "turn")

    def __init__(self, maker: httpcore.AsyncConnectionPool) -> None:
        self._maker = maker
        self._connection: httpcore.AsyncConnectionInterface | None = None
        self.turn = asyncio.Lock()
        """Held by the exchange that the connection is used for."""
        self.busy = 0
        self.free_since = 0.0

    async def connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        """The connection, if it still stands, or a new one to the same place."""
        last = self._connection
        if last is not None and (last.is_closed() or last.has_expired()):
            await self.aclose()
        if self._connection is None:
            self._connection = self._maker.create_connection(origin)
        return self._connection

    async def settle(self) -> None:
        """Closes a connection on which an exchange was broken off."""
        if self._connection is not None and not self._connection.is_idle():
            await self.aclose()

    async def aclose(self) -> None:
        last, self._connection = self._connection, None
        if last is not None:
            await last.aclose()


class Exchange:
    """A request over a lane, and its response until it is closed."""

    __slots__ = ("_begun", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._begun = False

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        """Sends the request, as soon as the exchanges before it are over; raises one of `BROKEN`."""
        await self.lane.turn.acquire()
        self._begun = True
        connection = await self.lane.connection(request.url.origin)
        return await connection.handle_async_request(request)

    async def end(self) -> None:
        if self._begun:
            try:
                await self.lane.settle()
            finally:
                self.lane.turn.release()


class Connections:
    """The sockets of one provider; bound to one event loop."""

    def __init__(self, provider: ProviderSettings, most: int = MAX_CONNECTIONS) -> None:
        self._max_lanes = max(1, most)
        verified, proxy = verification(provider), _proxy_of(provider)
        self._maker = httpcore.AsyncConnectionPool(
            # A proxy that is reached by TLS belongs to whom the authorities are of, as a rule.
            ssl_context=verified,
            proxy=None if proxy is None else _spoken_to(proxy, verified),
            keepalive_expiry=_KEEPALIVE_S,
            # TLS inside of TLS is not every loop's; through a proxy httpcore's own sockets serve.
            network_backend=LoopSockets() if proxy is None else None,
        )
        self._lanes: list[Lane] = []
        self._free: deque[Lane] = deque()
        """The one that came free last is at the end."""

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Exchange]:
        """Lends a lane for one exchange, from sending the request to closing its response."""
        lane = self._best()
        lane.busy += 1
        exchange = Exchange(lane)
        try:
            yield exchange
        finally:
            lane.busy -= 1
            await exchange.end()
            await self._let_go(lane)

    def _best(self) -> Lane:
        if self._free:
            return self._free.pop()
        if len(self._lanes) < self._max_lanes:
            self._lanes.append(Lane(self._maker))
            return self._lanes[-1]
        # The exchange waits there until the connection is free.
        return min(self._lanes, key=_busy)

    async def _let_go(self, lane: Lane) -> None:
        """Keeps a lane for the next request, and closes the one that none has wanted for too long."""
        if lane.busy:
            return
        lane.free_since = asyncio.get_running_loop().time()
        self._free.append(lane)
        if lane.free_since - self._free[0].free_since > _KEEPALIVE_S:
            unused = self._free.popleft()
            self._lanes.remove(unused)
            await unused.aclose()

    async def aclose(self) -> None:
        """Closes all of them, those in use too."""
        for lane in self._lanes:
            await lane.aclose()


def _busy(lane: Lane) -> int:
    return lane.busy


def url_of(url: httpx.URL) -> httpcore.URL:
    """A URL as a request names it."""
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _proxy_of(provider: ProviderSettings) -> httpx.Proxy | None:
    return httpx.Proxy(provider.proxy) if provider.proxy else None


def _spoken_to(proxy: httpx.Proxy, verified: ssl.SSLContext) -> httpcore.Proxy:
    secured = verified if proxy.url.scheme == "https" else None
    return httpcore.Proxy(url_of(proxy.url), proxy.raw_auth, proxy.headers.raw, secured)


def verification(provider: ProviderSettings) -> ssl.SSLContext:
    """The TLS context shared by all lanes: reading the authorities takes tens of milliseconds.

    Raises `InvalidProvider` if the authorities cannot be read.
    """
    if urlsplit(provider.base_url).scheme == "http" and provider.proxy is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if provider.ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=provider.ca_file)
    except OSError as error:
        raise InvalidProvider(
            f"model provider {provider.id}: the authorities in {provider.ca_file} cannot be read: "
            f"{error.strerror or error}; correct ca_file in its table, or SSL_CERT_FILE"
        ) from error
