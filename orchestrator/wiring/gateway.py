"""A gateway from settings: who may come in, and the addresses that it listens on."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.logs import SharedReads
from orchestrator.gateways.app_server.connection import AppServer
from orchestrator.gateways.bursts import Messages
from orchestrator.gateways.sq_eq import SqEqDoor
from orchestrator.gateways.tokens import IssuerTokens, PrincipalLookUp
from orchestrator.gateways.wires.addresses import Address, HttpRules
from orchestrator.gateways.wires.authentication import Authentication, TokenLookUp, TokenWatch
from orchestrator.gateways.wires.listeners import Doors, ListenerConfig, listening, tls_context
from orchestrator.model.issuer import Issuer
from orchestrator.settings import Settings, SettingsSources
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.observed_gateway import observed_doors
from orchestrator.wiring.open_deployment import Opened

log = logging.getLogger("dendro.gateway")

READY_S = 2.0
"""Between two looks whether Redis answers, which `/readyz` tells."""


def http_rules(settings: Settings) -> HttpRules:
    """The rules for `Host` and `Origin`."""
    return HttpRules(
        hosts=frozenset(host.lower() for host in settings.gateway.hosts),
        origins=frozenset(origin.lower().rstrip("/") for origin in settings.gateway.allowed_origins),
    )


def gateway_tls(settings: Settings) -> ssl.SSLContext | None:
    """The gateway's side of TLS; None without a certificate. Raises `BadAddress`."""
    certificate, key = settings.gateway.tls_certificate, settings.gateway.tls_key
    return tls_context(certificate, key) if certificate is not None and key is not None else None


def authentication(settings: Settings, tokens: TokenLookUp) -> Authentication:
    """The way in, by token or by user."""
    return Authentication(tokens, loopback_needs_token=settings.gateway.loopback_needs_token)


def tokens_of(found: Opened) -> PrincipalLookUp | IssuerTokens:
    """The tokens of a deployment, and those of its issuer if it has one."""
    own = PrincipalLookUp(found.broker.requests, lambda: time.time_ns() // 1_000_000)
    issuer, audience = found.settings.gateway.token_issuer, found.settings.gateway.token_audience
    if issuer is None or audience is None:
        return own
    return IssuerTokens(own, Issuer(issuer), audience, time.time)


def listener_config(
    settings: Settings,
    gate: Authentication,
    watch: TokenWatch | None = None,
    is_ready: Callable[[], bool] = lambda: True,
) -> ListenerConfig:
    """The rules for all addresses of a gateway; raises `BadAddress` for a certificate that does not do."""
    return ListenerConfig(
        gate,
        http_rules(settings),
        gateway_tls(settings),
        settings.gateway.max_connections,
        is_ready,
        watch,
    )


@asynccontextmanager
async def gateway(
    found: Opened, addresses: Sequence[Address], doors: Callable[[Authentication, TokenWatch], Doors]
) -> AsyncIterator[tuple[Address, ...]]:
    """Listens under the deployment's tokens; gives the addresses with their ports; raises `BadAddress`."""
    tokens, readiness = tokens_of(found), _Readiness(found)
    gate, half = authentication(found.settings, tokens), max(1, found.settings.gateway.max_connections // 2)
    watch = TokenWatch(tokens.in_force, most=half)
    config = listener_config(found.settings, gate, watch, lambda: readiness.is_ready)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(readiness.run())]
    try:
        async with (
            observed_doors(found, doors(gate, watch), log.warning) as observed,
            listening(addresses, observed, config) as actual,
        ):
            yield actual
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Readiness:
    """Whether Redis answers."""

    def __init__(self, found: Opened) -> None:
        self._found = found
        self.is_ready = False

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            try:
                await self._found.broker.command("PING")
                self.is_ready = True
            except BrokerError:
                self.is_ready = False
            await asyncio.sleep(READY_S)


@asynccontextmanager
async def serving(
    found: Opened, sources: SettingsSources, addresses: Sequence[Address]
) -> AsyncIterator[tuple[Address, ...]]:
    """All doors of a deployment on these addresses."""
    raise_descriptor_limit()
    shared = replace(found, events=SharedReads(found.broker.logs), messages=Messages())
    ports = door_ports(shared, sources)
    server = AppServer(ports)
    line_limit = found.settings.wire.line_limit_bytes

    def doors(gate: Authentication, watch: TokenWatch) -> Doors:
        return Doors(server.serve, SqEqDoor(ports, gate, watch, line_limit).serve)

    try:
        async with gateway(found, addresses, doors) as actual:
            yield actual
    finally:
        await server.close()


def raise_descriptor_limit() -> None:
    """Lets this process have as many connections as its user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
