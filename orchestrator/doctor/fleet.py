"""The doctor's look at the deployment: workers that say what is wrong with them, and sessions that wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing

from arq.constants import health_check_key_suffix

from orchestrator.broker.connection import connect
from orchestrator.broker.errors import BrokerError
from orchestrator.doctor.findings import Finding
from orchestrator.settings import Settings
from orchestrator.views.stats import FleetStats, fleet_stats, waits_for
from orchestrator.views.workers import SeenWorker, workers_of
from orchestrator.wiring.deployment import client_name, open_broker

PATIENCE_S = 5.0
MOST = 10
"""Workers, and machines, that are named."""


async def check_fleet(settings: Settings) -> list[Finding]:
    """The findings about a deployment that has a server of its own; none of one that does not answer."""
    if settings.redis.url is None:
        return []
    broker = open_broker(settings, settings.redis.url, PATIENCE_S)
    try:
        workers, fleet = await workers_of(broker), await fleet_stats(broker)
    except BrokerError:
        return []  # the checks of Redis say why
    finally:
        await broker.aclose()
    return [*_of_workers(workers), *_of_sessions(fleet), *await _of_upkeep(settings)]


def _of_workers(workers: Sequence[SeenWorker]) -> Iterator[Finding]:
    if not any(worker.status == "serving" for worker in workers):
        detail = "none serves: what is asked of sessions waits, but for `dendro run`, which starts its own"
        yield Finding("workers", "warn", detail, "start one on any machine of the deployment: dendro worker")
    told = [(worker.name, remark) for worker in workers if not worker.silent for remark in worker.remarks]
    for name, remark in told[:MOST]:
        yield Finding("workers", "warn", f"{name}: {remark}", "all of them: dendro workers")


def _of_sessions(fleet: FleetStats) -> Iterator[Finding]:
    for machine, sessions in list(fleet.waiting.items())[:MOST]:
        yield Finding("sessions", "warn", *waits_for(machine, sessions))


async def _of_upkeep(settings: Settings) -> list[Finding]:
    """The finding about an upkeep that does not run; none where its server does not tell."""
    url = settings.upkeep.url or settings.redis.url
    # The queue's server is a single one.
    redis = settings.redis.model_copy(update={"url": url, "cluster": False})
    async with aclosing(connect(redis, client_name("cli"))) as connection:
        try:
            if await connection.command("EXISTS", f"{redis.prefix}upkeep{health_check_key_suffix}"):
                return []
        except BrokerError:
            return []  # the checks of Redis say why
    detail = "none for a minute: no log is sealed or archived, and none is deleted when its time is over"
    return [Finding("upkeep process", "warn", detail, "start one for the whole deployment: dendro upkeep")]
