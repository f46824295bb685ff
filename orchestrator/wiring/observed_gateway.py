"""A gateway that is watched: its connections counted, and the port that tells of it.

What nobody asks for is not imported.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from orchestrator.gateways.wires.listeners import Doors
from orchestrator.gateways.wires.wire import SocketStream, Wire
from orchestrator.wiring.deployment import worker_pools
from orchestrator.wiring.open_deployment import Opened
from orchestrator.wiring.sessions import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.telemetry.metrics import Metrics


@asynccontextmanager
async def observed_doors(found: Opened, doors: Doors, say: Callable[[str], None]) -> AsyncIterator[Doors]:
    """The doors of a gateway, counted as the settings ask; its port is served while the block lasts.

    `say` gets the port's address, or why there is none.
    """
    gateway = found.settings.gateway
    if gateway.metrics_port is None:
        yield doors
        return
    from orchestrator.telemetry.fleet import FleetMetrics
    from orchestrator.telemetry.health import Health
    from orchestrator.telemetry.listener import PortTaken, listening
    from orchestrator.telemetry.metrics import Metrics

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
    from orchestrator.telemetry import catalogue

    @contextmanager
    def connection(door: str) -> Iterator[None]:
        metrics.counter(catalogue.CONNECTED, door).inc()
        with metrics.gauge(catalogue.CONNECTIONS, door).track_inprogress():
            yield

    async def messages(wire: Wire) -> None:
        with connection("app-server"):
            await doors.messages(wire)

    async def lines(stream: SocketStream) -> None:
        assert doors.lines is not None
        with connection("sq-eq"):
            await doors.lines(stream)

    return Doors(messages, lines if doors.lines is not None else None)
