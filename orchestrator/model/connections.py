"""Open connections to one provider, in lanes of one.

httpx's pool looks at every connection whenever a request begins or ends, and asks the
kernel about each idle one; with hundreds of sessions on one pool that alone is most of a
turn's CPU. So each connection has a pool of its own, and a request takes the one that came
free last. This module knows sockets and pools, not the traffic on them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx

from orchestrator.model.provider import InvalidProvider
from orchestrator.tables import ProviderSettings

MAX_CONNECTIONS = 1024
"""Sockets open to one provider at once; a streaming session holds one."""
_KEEPALIVE_S = 30.0
"""Below what servers commonly keep an idle connection for: who closes first must be us."""


class _Lane:
    __slots__ = ("busy", "free_since", "transport")

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.busy = 0
        self.free_since = 0.0


class Connections:
    """The sockets of one provider; bound to one event loop."""

    def __init__(self, provider: ProviderSettings, most: int = MAX_CONNECTIONS) -> None:
        self._max_lanes = max(1, most)
        self._verification = verification(provider)
        # A proxy that is reached by TLS belongs to whom the authorities are of, as a rule.
        secured = self._verification if urlsplit(provider.proxy or "").scheme == "https" else None
        self._proxy = httpx.Proxy(provider.proxy, ssl_context=secured) if provider.proxy else None
        self._lanes: list[_Lane] = []
        self._free: deque[_Lane] = deque()
        """The one that came free last is at the end."""

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        """Lends a transport for one exchange, from sending the request to closing its response."""
        lane = self._best()
        lane.busy += 1
        try:
            yield lane.transport
        finally:
            lane.busy -= 1
            await self._let_go(lane)

    def _best(self) -> _Lane:
        if self._free:
            return self._free.pop()
        if len(self._lanes) < self._max_lanes:
            self._lanes.append(self._new_lane())
            return self._lanes[-1]
        # Its pool keeps the request until the connection is free.
        return min(self._lanes, key=_busy)

    async def _let_go(self, lane: _Lane) -> None:
        """Keeps a lane for the next request, and closes the one that none has wanted for too long."""
        if lane.busy:
            return
        lane.free_since = asyncio.get_running_loop().time()
        self._free.append(lane)
        if lane.free_since - self._free[0].free_since > _KEEPALIVE_S:
            unused = self._free.popleft()
            self._lanes.remove(unused)
            await unused.transport.aclose()

    def _new_lane(self) -> _Lane:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S)
        return _Lane(
            httpx.AsyncHTTPTransport(
                verify=self._verification, limits=limits, proxy=self._proxy, trust_env=False
            )
        )

    async def aclose(self) -> None:
        """Closes all of them, those in use too."""
        for lane in self._lanes:
            await lane.transport.aclose()


def _busy(lane: _Lane) -> int:
    return lane.busy


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
