"""The figures of a fleet by pool: what is due, held, and parked and why, and how fast its workers work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import Claims
from orchestrator.broker.records import PoolQueue
from orchestrator.broker.worker_state import Pace
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.views.sessions import LOOKED_THROUGH, found_rows
from orchestrator.views.workers import SeenWorker, workers_of

AT_WORK = frozenset({"running", "due", "lost"})
"""Statuses of sessions that are counted by their pool's sets."""
UNSAVED = "unsaved"
"""The word for sessions that are due, and left to the machine that alone has their folders' last changes."""

MOST_NAMED = 5


@record
class PoolStats:
    """The figures of a pool. Its workers may serve others, too: slots are counted for each."""

    pool: str
    queue: PoolQueue
    workers: int
    """Workers that take sessions: neither silent nor draining."""
    slots: int
    pace: Pace
    parked: Mapping[str, int] = field(default_factory=dict)
    """Sessions that no worker has to go on with, by their status; and those that wait for their machine."""


@record
class FleetStats:
    """The figures of a deployment, at one look."""

    pools: Sequence[PoolStats]
    workers: int
    silent: int
    draining: int
    open_requests: int
    sessions: int
    looked: int
    """Sessions, the newest, whose statuses were counted."""
    waiting: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of these, by machine: those whose folders' last changes are there alone, and no worker is."""


def waits_for(machine: str, sessions: Sequence[str]) -> tuple[str, str]:
    """The words about sessions that wait for a machine, and the remedy."""
    named = ", ".join(sessions[:MOST_NAMED]) + (", …" if len(sessions) > MOST_NAMED else "")
    what = (
        f"{counted(len(sessions), 'session')} due, and left to machine {machine}, where no worker is: {named}"
    )
    remedy = (
        f"the last changes of their folders are there alone: start `dendro worker` on {machine}, or give "
        f"them up, one by one: dendro revoke {sessions[0]} --abandon-unsaved"
    )
    return what, remedy


async def fleet_stats(broker: Broker) -> FleetStats:
    """Looks at the workers, the pools' queues, and the newest sessions; each at its own moment."""
    workers = await workers_of(broker.claims)
    parked: dict[str, Counter[str]] = {}
    waiting: dict[str, list[str]] = {}
    looked = 0
    async for row, head in found_rows(broker, LOOKED_THROUGH):
        looked += 1
        of_pool = parked.setdefault(head.pool, Counter())
        if row["status"] not in AT_WORK:
            of_pool[row["status"]] += 1
        elif row["nobody_serves"] and head.unsaved_on:
            of_pool[UNSAVED] += 1
            waiting.setdefault(head.unsaved_on, []).append(head.session)
    named = {pool for worker in workers for pool in worker.state.pools}
    pools = [
        await _pool(broker.claims, pool, workers, parked.get(pool, {}))
        for pool in sorted(named | set(parked))
    ]
    return FleetStats(
        pools=pools,
        workers=len(workers),
        silent=sum(worker.status == "silent" for worker in workers),
        draining=sum(worker.status == "draining" for worker in workers),
        open_requests=await broker.requests.count_open_requests(),
        sessions=await broker.logs.count_sessions(),
        looked=looked,
        waiting=waiting,
    )


async def _pool(
    claims: Claims, pool: str, workers: Sequence[SeenWorker], parked: Mapping[str, int]
) -> PoolStats:
    serving = [one for one in workers if pool in one.state.pools and one.status == "serving"]
    return PoolStats(
        pool=pool,
        queue=await claims.queue_of(pool),
        workers=len(serving),
        slots=sum(one.state.room for one in serving),
        pace=_sum([one.state.paces[pool] for one in workers if not one.silent and pool in one.state.paces]),
        parked=dict(sorted(parked.items())),
    )


def _sum(paces: Sequence[Pace]) -> Pace:
    return Pace(
        claims_per_s=round(sum(pace.claims_per_s for pace in paces), 2),
        turns_per_s=round(sum(pace.turns_per_s for pace in paces), 2),
        tokens_per_min=sum(pace.tokens_per_min for pace in paces),
    )
