"""Machines as claims see them: which are there, which have room, and the sessions that are left to them.

A portable session's copy is on one machine, and workers of others leave the session to it for a while
(`claim.lua`). The script knows no heartbeats: they lie in a slot of their own. So a worker that was told to
leave a session looks at them, and claims again if that machine is gone, or full.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.broker.records import Heard
from orchestrator.broker.worker_state import SILENT_MS, MachineFacts, WorkerState, decoded
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

LOOK_AGAIN_S = 1.0
"""Seconds for which heartbeats that were read are believed, and after which an unsaved session is asked for
again."""
MOST_PASSED = 16
"""Sessions that a claim names as left. Others are left all the same, and cost a poll."""

_Told = tuple[WorkerState, MachineFacts]


@record
class MachineState:
    """A machine, as the heartbeats of its workers show it to one pool."""

    gone: bool
    """No worker of the pool was heard from there lately."""
    full: bool
    """None of those that were has room for another session, or for folders."""


def machine_state(heard: Sequence[Heard], now_ms: int, pool: str, machine: str) -> MachineState:
    """The state of a machine for a pool, by all heartbeats that there are."""
    there = list(_workers_there(heard, now_ms, pool, machine))
    full = all(one.draining or one.held >= one.room or bool(facts.unfit) for one, facts in there)
    return MachineState(gone=not there, full=full)


def others_fit(heard: Sequence[Heard], now_ms: int, pool: str, machine: str) -> bool:
    """Whether another machine has a worker of the pool that makes portable folders."""
    return any(
        facts.machine_id != machine and facts.workspaces and not facts.unfit and not one.draining
        for one, facts in _workers_of(heard, now_ms, pool)
    )


def _workers_there(heard: Sequence[Heard], now_ms: int, pool: str, machine: str) -> Iterator[_Told]:
    return (told for told in _workers_of(heard, now_ms, pool) if told[1].machine_id == machine)


def _workers_of(heard: Sequence[Heard], now_ms: int, pool: str) -> Iterator[_Told]:
    """The workers of a pool that were heard lately, and know machines."""
    for one in heard:
        if now_ms - one.heard_ms >= SILENT_MS:
            continue
        state = decoded(one.state)
        if state.facts is not None and pool in state.pools:
            yield state, state.facts


@dataclass(slots=True)
class Machines:
    """The heartbeats of a fleet, read again when they are old."""

    read: Callable[[], Awaitable[tuple[Sequence[Heard], int]]]
    """Answers the heartbeats, and the time of Redis's clock."""
    monotonic: Callable[[], float]
    _heard: Sequence[Heard] = ()
    _now_ms: int = 0
    _read_at: float | None = None

    async def state(self, pool: str, machine: str) -> MachineState:
        """The state of a machine for a pool, at most `LOOK_AGAIN_S` old."""
        await self._look()
        return machine_state(self._heard, self._now_ms, pool, machine)

    async def others_fit(self, pool: str, machine: str) -> bool:
        """Whether another machine makes portable folders for the pool, by heartbeats that are as old."""
        await self._look()
        return others_fit(self._heard, self._now_ms, pool, machine)

    async def _look(self) -> None:
        at = self.monotonic()
        if self._read_at is None or at - self._read_at >= LOOK_AGAIN_S:
            self._heard, self._now_ms = await self.read()
            self._read_at = at


@dataclass(slots=True)
class Left:
    """Sessions that a process leaves to others, each until a time of its own monotonic clock."""

    monotonic: Callable[[], float]
    _until: dict[tuple[str, int], dict[SessionId, float]] = field(default_factory=dict)
    """By pool and shard."""

    def leave(self, pool: str, shard: int, session: SessionId, seconds: float) -> None:
        """Leaves a session for so long; it is asked for again behind that."""
        self._until.setdefault((pool, shard), {})[session] = self.monotonic() + seconds

    def sessions(self, pool: str, shard: int) -> tuple[SessionId, ...]:
        """The sessions of a shard that are left now."""
        known = self._until.get((pool, shard))
        if not known:
            return ()
        now = self.monotonic()
        kept = {session: until for session, until in known.items() if until > now}
        self._until[pool, shard] = kept
        return tuple(kept)

    def returns_in(self, pool: str, shard: int) -> float | None:
        """Seconds until the first of them is asked for again; None if none is left."""
        self.sessions(pool, shard)
        known = self._until.get((pool, shard))
        return max(0.0, min(known.values()) - self.monotonic()) if known else None
