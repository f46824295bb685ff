"""Open connections to one provider, in lanes.

httpx's pool looks at every connection whenever a request begins or ends, and asks the
kernel about each idle one; with hundreds of sessions on one pool that alone is most of a
turn's CPU. So the connections are dealt out to small pools, and a request
takes the least busy one. This module knows sockets and pools, not what is said on them.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx

from orchestrator.model.provider import Provider

_KEEPALIVE_S = 30.0
"""Below what servers commonly keep an idle connection for: who closes first must be us."""

_LANE_CONNECTIONS = 8
"""At 300 sessions, pools of 8 cost a turn a third of the CPU that one pool does."""


class _Lane:
    __slots__ = ("busy", "transport")

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.busy = 0


class Connections:
    """The sockets of one provider; bound to one event loop."""

    def __init__(self, provider: Provider) -> None:
        self._max_lanes = max(1, provider.max_connections // _LANE_CONNECTIONS)
        self._lane_limit = -(-provider.max_connections // self._max_lanes)
        self._verification = _verification(provider)
        self._proxy = provider.proxy
        self._lanes: list[_Lane] = []

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        """Lends a transport for one exchange, from sending the request to closing its response."""
        lane = self._least_busy()
        lane.busy += 1
        try:
            yield lane.transport
        finally:
            lane.busy -= 1

    def _least_busy(self) -> _Lane:
        lane = min(self._lanes, key=_busy, default=None)
        if lane is None or (lane.busy >= self._lane_limit and len(self._lanes) < self._max_lanes):
            lane = self._new_lane()
            self._lanes.append(lane)
        return lane

    def _new_lane(self) -> _Lane:
        # Both limits alike: the pool counts busy connections against the idle ones' limit
        # and would otherwise close connections that were about to be used again.
        limits = httpx.Limits(
            max_connections=self._lane_limit,
            max_keepalive_connections=self._lane_limit,
            keepalive_expiry=_KEEPALIVE_S,
        )
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


def _verification(provider: Provider) -> ssl.SSLContext:
    """One context for all lanes: reading the authorities takes tens of milliseconds."""
    if urlsplit(provider.base_url).scheme == "http" and provider.proxy is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if provider.ca_file is not None:
        return ssl.create_default_context(cafile=provider.ca_file)
    return httpx.create_ssl_context(trust_env=False)
