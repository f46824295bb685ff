"""A worker that is watched: its observers from the settings, and the port that tells of it.

What nobody asks for is not imported: metrics cost a worker 20 ms at its start.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from orchestrator.runtime.ports import Ports
from orchestrator.runtime.worker import Worker
from orchestrator.settings import Settings
from orchestrator.tables import WorkerSettings
from orchestrator.telemetry.observer import Observer, Observers
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.wiring.deployment import worker_name


@dataclass(slots=True)
class Watch:
    """The ports of a worker with its observer in them, and the worker once it is made."""

    ports: Ports
    worker: Worker | None = None

    def watch(self, worker: Worker) -> None:
        """Names the worker that the answers are about."""
        self.worker = worker

    async def fault(self) -> str:
        """The reason why the worker can take no work; raises `BrokerError` where Redis does not answer."""
        if self.worker is None or self.worker.draining:
            return "the worker drains: it takes no more sessions"
        await self.ports.broker.command("PING")
        return ""


@asynccontextmanager
async def observed(
    settings: Settings,
    ports: Ports,
    supervisor: Supervisor,
    pools: tuple[str, ...],
    say: Callable[[str], None],
) -> AsyncIterator[Watch]:
    """The ports of a worker, observed as the settings ask; its port is served while the block lasts.

    `say` gets the port's address, or why there is none.
    """
    async with AsyncExitStack() as stack:
        watch = Watch(ports)
        # A worker that serves no pool ends cancelled agents beside another process, and is none to watch.
        observers: list[Observer] = []
        if settings.worker.metrics_port is not None and pools:
            observers += await _counting(settings.worker, watch, pools, say, stack)
        if settings.worker.tracing and pools:
            observers += await _tracing(settings, ports, say, stack)
        if observers:
            observer = observers[0] if len(observers) == 1 else Observers(*observers)
            watch.ports = replace(ports, observer=observer)
            supervisor.killed = observer.killed
        yield watch


async def _counting(
    worker: WorkerSettings,
    watch: Watch,
    pools: tuple[str, ...],
    say: Callable[[str], None],
    stack: AsyncExitStack,
) -> list[Observer]:
    from orchestrator.telemetry import catalogue
    from orchestrator.telemetry.fleet import FleetMetrics
    from orchestrator.telemetry.health import Health
    from orchestrator.telemetry.listener import PortTaken, listening
    from orchestrator.telemetry.metrics import Metrics
    from orchestrator.telemetry.work import WorkMetrics

    metrics = Metrics(watch.ports.version)
    metrics.gauge(catalogue.ROOM).set(worker.concurrency)
    fleet = FleetMetrics(metrics, watch.ports.broker, pools, time.monotonic)
    assert worker.metrics_port is not None
    try:
        url = await stack.enter_async_context(
            listening(Health(metrics, watch.fault, fleet.look), worker.metrics_host, worker.metrics_port)
        )
    except PortTaken as error:
        say(f"{error}: this worker goes on without; give it another worker.metrics_port, or 0 for a free one")
        return []
    say(f"metrics at {url}/metrics")
    return [WorkMetrics(metrics, time.monotonic)]


async def _tracing(
    settings: Settings, ports: Ports, say: Callable[[str], None], stack: AsyncExitStack
) -> list[Observer]:
    try:
        from orchestrator.telemetry.tracing import exported
    except ImportError as error:
        extra = "pip install 'dendro-orchestrator[otel]'"
        say(f"no traces: {error}; worker.tracing needs an extra ({extra}): this worker goes on without")
        return []
    host, contents = settings.host, settings.worker.trace_contents
    tracing = exported(host.environ, ports.version, worker_name(), ports.broker.logs, contents=contents)
    stack.push_async_callback(tracing.aclose)
    return [tracing]
