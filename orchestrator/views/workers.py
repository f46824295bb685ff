"""Workers as people see them: who is there, what each serves, and what is wrong with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.broker.claims import Claims
from orchestrator.broker.records import Heard
from orchestrator.broker.worker_state import SILENT_MS, WorkerState, decoded
from orchestrator.core.counts import age
from orchestrator.core.frozen import record
from orchestrator.views.errors import ViewError

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
