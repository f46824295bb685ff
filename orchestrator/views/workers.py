"""Workers as people see them: who is there, what each serves, and what is wrong with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import Claims
from orchestrator.broker.records import Heard, PoolQueue
from orchestrator.broker.worker_state import SILENT_MS, Pace, WorkerState, decoded
from orchestrator.core.counts import age, counted
from orchestrator.core.frozen import record
from orchestrator.views import ViewError
from orchestrator.views.sessions import LOOKED_THROUGH, found_rows

CLOCK_MS = 1_000
"""Times in logs do not agree beyond it. Claims do not need the clocks of machines to agree."""


@record
class SeenWorker:
    """A worker, and what a person should do about it."""

    name: str
    state: WorkerState
    heard_ms: int
    silent: bool
    remarks: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        if self.silent:
            return "silent"
        return "draining" if self.state.draining else "serving"


async def workers_of(claims: Claims) -> list[SeenWorker]:
    """The workers of the last day that have not left, those heard from last first."""
    heard = await claims.workers()
    return seen_workers(heard, await claims.server_ms())


async def serving_pool(claims: Claims, pool: str) -> list[str]:
    """The names of the workers that take sessions of a pool, those heard from last first."""
    found = await workers_of(claims)
    return [one.name for one in found if one.status == "serving" and pool in one.state.pools]


async def serving_pools(claims: Claims) -> frozenset[str]:
    """The pools of which a worker takes sessions."""
    found = await workers_of(claims)
    return frozenset(pool for one in found if one.status == "serving" for pool in one.state.pools)


def seen_workers(heard: Sequence[Heard], now_ms: int) -> list[SeenWorker]:
    """The workers behind these heartbeats, in their order."""
    states = [(one, decoded(one.state)) for one in heard]
    cores = [state.facts.core for one, state in states if state.facts and not _is_silent(one, now_ms)]
    newest = max(cores, default=0)
    serving = [state for one, state in states if not _is_silent(one, now_ms)]
    return [
        SeenWorker(
            one.worker,
            state,
            one.heard_ms,
            _is_silent(one, now_ms),
            (*_remarks(one, state, newest, now_ms), *_other_roots(one, state, serving, now_ms)),
        )
        for one, state in states
    ]


def _other_roots(
    one: Heard, state: WorkerState, serving: Sequence[WorkerState], now_ms: int
) -> Iterator[str]:
    """The remark about a worker that gives portable sessions back to others of its pools."""
    own = state.facts.workspaces if state.facts is not None else ""
    if not own or _is_silent(one, now_ms):
        return
    for pool in state.pools:
        roots = Counter(
            other.facts.workspaces for other in serving if other.facts is not None and pool in other.pools
        )
        usual, number = roots.most_common(1)[0]
        if usual and usual != own and number > roots[own]:
            yield (
                f"its workspace.root is {own}, and {usual} is that of most workers of pool {pool}: it gives "
                "their portable sessions back; set it alike"
            )
            return


def _is_silent(one: Heard, now_ms: int) -> bool:
    return now_ms - one.heard_ms >= SILENT_MS


def _remarks(one: Heard, state: WorkerState, newest: int, now_ms: int) -> tuple[str, ...]:
    if _is_silent(one, now_ms):
        ago = age((now_ms - one.heard_ms) / 1000)
        return (
            f"not heard from for {ago}: others take its sessions; see whether its process or machine is gone",
        )
    facts, remarks = state.facts, list[str]()
    if facts is None or facts.core < newest:
        remarks.append(
            "older than another worker: sessions that a newer one has run wait for newer ones; update it"
        )
    if facts is not None and abs(off_ms := facts.clock_ms - one.heard_ms) > CLOCK_MS:
        remarks.append(
            f"its clock is {off_ms / 1000:+.1f} s off Redis's: times in logs will not agree; run NTP there"
        )
    if facts is not None and facts.unfit:
        remarks.append(f"it leaves portable sessions to workers of other machines: {facts.unfit}")
    return tuple(remarks)


def named_worker(workers: Sequence[SeenWorker], name: str) -> SeenWorker:
    """The worker of this name, or of the only one that begins so; raises `ViewError`."""
    exact = [worker for worker in workers if worker.name == name]
    found = exact or [worker for worker in workers if worker.name.startswith(name)]
    if not found:
        raise ViewError(f"no worker is named {name}; `dendro workers` lists those that are there")
    if len(found) > 1:
        raise ViewError(
            f"{name} may be any of {', '.join(worker.name for worker in found)}: give more of the name"
        )
    return found[0]


# ── stats ─────────────────────────────────────────────────────────────────────────────────────────
# The figures of a fleet by pool: what is due, held, and parked and why, and how fast its workers work.


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
