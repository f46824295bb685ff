"""A gateway from settings: who may come in, and the addresses that it listens on."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.logs import SharedReads
from orchestrator.core.frozen import record
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.bearer_tokens import IssuerTokens, PrincipalLookUp
from orchestrator.gateways.bursts import Messages
from orchestrator.gateways.principals import Scope, machine_user
from orchestrator.gateways.sq_eq import SqEqDoor
from orchestrator.gateways.window.sign_in import Windows, new_code
from orchestrator.gateways.wires.addresses import HTTP, Address, HttpRules
from orchestrator.gateways.wires.authentication import Authentication, TokenLookUp, TokenWatch
from orchestrator.gateways.wires.byte_wire import SocketStream, Wire
from orchestrator.gateways.wires.listeners import Doors, ListenerConfig, listening, tls_context
from orchestrator.model.issuer import Issuer
from orchestrator.sandbox.kernel import trim_heap
from orchestrator.settings import Settings, SettingsSources
from orchestrator.wiring.deployment import worker_pools
from orchestrator.wiring.new_sessions import VERSION
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.open_deployment import Opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.gateways.app_server.door_ports import Ports
    from orchestrator.gateways.window.door import Window
    from orchestrator.telemetry.metrics import Metrics

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


@record
class Entrance:
    """The way into a gateway, as its doors know it."""

    authentication: Authentication
    watch: TokenWatch
    tokens: PrincipalLookUp | IssuerTokens
    is_ready: Callable[[], bool]
    """Whether Redis answers."""


@asynccontextmanager
async def gateway(
    found: Opened, addresses: Sequence[Address], doors: Callable[[Entrance], Doors]
) -> AsyncIterator[tuple[Address, ...]]:
    """Listens under the deployment's tokens; gives the addresses with their ports; raises `BadAddress`."""
    tokens, readiness = tokens_of(found), _Readiness(found)
    gate, half = authentication(found.settings, tokens), max(1, found.settings.gateway.max_connections // 2)
    watch = TokenWatch(tokens.in_force, most=half)
    config = listener_config(found.settings, gate, watch, lambda: readiness.is_ready)
    entrance = Entrance(gate, watch, tokens, lambda: readiness.is_ready)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(readiness.run())]
    try:
        async with (
            observed_doors(found, doors(entrance), log.warning) as observed,
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
                async with asyncio.timeout(READY_S):
                    await self._found.broker.command("PING")
                self.is_ready = True
            except (BrokerError, TimeoutError):
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

    def doors(entrance: Entrance) -> Doors:
        lines = SqEqDoor(ports, entrance.authentication, entrance.watch, line_limit)
        pages = window(ports, server, entrance) if any(each.scheme in HTTP for each in addresses) else None
        return Doors(server.serve, lines.serve, pages)

    try:
        async with gateway(found, addresses, doors) as actual:
            yield actual
    finally:
        await server.close()


# ── window ────────────────────────────────────────────────────────────────────────────────────────


def window(ports: Ports, server: AppServer, entrance: Entrance) -> Window:
    """The door of browsers; the threads that it tells of are followed once for all doors of the process."""
    # What nobody listens for is not loaded.
    from orchestrator.gateways.window.door import Window, WindowPorts
    from orchestrator.gateways.window.pages import read_pages

    given = WindowPorts(
        ports,
        server.threads,
        entrance.tokens,
        Windows(ports.found.broker.requests, entrance.tokens, ports.now_ms, ports.random_bytes),
        entrance.watch,
        entrance.is_ready,
    )
    return Window(given, read_pages())


async def window_links(found: Opened, addresses: Sequence[Address]) -> list[str]:
    """A link to each address of the window, with a code that signs the machine's user in once."""
    links = []
    for address in addresses:
        if address.scheme in HTTP:
            code = await new_code(found.broker.requests, machine_user(), Scope.ADMIN, os.urandom)
            links.append(f"{_url(found.settings, address)}/#c={code}")
    return links


def _url(settings: Settings, address: Address) -> str:
    """The address as a browser has to name it: under a name that the gateway knows itself by."""
    wild = address.host in ("0.0.0.0", "::")
    host = next(iter(settings.gateway.hosts), "127.0.0.1" if address.host == "0.0.0.0" else "::1")
    return str(replace(address, host=host) if wild else address)


def raise_descriptor_limit() -> None:
    """Lets this process have as many connections as its user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# ── heap ──────────────────────────────────────────────────────────────────────────────────────────
# The heap of a process that lives long.


CYCLES_AFTER = 5_000
"""New objects after which Python looks for cycles among the young ones; its own 700 are a turn or two."""

TRIM_S = 60.0
"""The C library gives freed pages back so often: it walks its heap for it, some milliseconds."""


def settle_heap() -> None:
    """Keeps the modules and models of the start out of later searches for cycles, and makes these rarer.

    The start leaves 80,000 objects, which live as long as the process: each full search would walk them.
    What is freed below a block that stays is given back every minute from here on, or heaps would only grow:
    a process whose objects go by their counts alone never searches for cycles. In the thread of the loop.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(CYCLES_AFTER)
    _trims(asyncio.get_running_loop())


def _trims(loop: asyncio.AbstractEventLoop) -> None:
    trim_heap()
    loop.call_later(TRIM_S, _trims, loop)


# ── observed gateway ──────────────────────────────────────────────────────────────────────────────
# A gateway that is watched: its connections counted, and the port that tells of it.
#
# What nobody asks for is not imported.


@asynccontextmanager
async def observed_doors(found: Opened, doors: Doors, say: Callable[[str], None]) -> AsyncIterator[Doors]:
    """The doors of a gateway, counted as the settings ask; its port is served while the block lasts.

    `say` gets the port's address, or why there is none.
    """
    gateway = found.settings.gateway
    if gateway.metrics_port is None:
        yield doors
        return
    from orchestrator.telemetry.listener import Health, PortTaken, listening
    from orchestrator.telemetry.metrics import Metrics
    from orchestrator.telemetry.work_metrics import FleetMetrics

    async def fault() -> str:
        await found.broker.command("PING")
        return ""

    metrics = Metrics(VERSION)
    fleet = FleetMetrics(metrics, found.broker, worker_pools(found.settings), time.monotonic)
    health = Health(metrics, fault, fleet.look)
    async with AsyncExitStack() as stack:
        try:
            serving = listening(health, gateway.metrics_host, gateway.metrics_port)
            say(f"metrics at {await stack.enter_async_context(serving)}/metrics")
        except PortTaken as error:
            remedy = "give it another gateway.metrics_port, or 0 for a free one"
            say(f"{error}: this gateway goes on without; {remedy}")
        yield _counted(doors, metrics)


def _counted(doors: Doors, metrics: Metrics) -> Doors:
    from orchestrator.telemetry import metric_names

    @contextmanager
    def connection(door: str) -> Iterator[None]:
        metrics.counter(metric_names.CONNECTED, door).inc()
        with metrics.gauge(metric_names.CONNECTIONS, door).track_inprogress():
            yield

    async def messages(wire: Wire) -> None:
        with connection("app-server"):
            await doors.messages(wire)

    async def lines(stream: SocketStream) -> None:
        assert doors.lines is not None
        with connection("sq-eq"):
            await doors.lines(stream)

    return replace(
        doors,
        messages=messages,
        lines=lines if doors.lines is not None else None,
        page_connection=lambda: connection("window"),
    )
