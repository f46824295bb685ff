"""Read-only checks of upkeep: chains of a few sessions in turn, work that no worker takes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import Fired, Heard, SessionHead
from orchestrator.broker.worker_state import decoded
from orchestrator.core.chain import BrokenLink
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.audit import audit_session
from orchestrator.rollouts.full_log import head_of
from orchestrator.rollouts.storage import Storage

log = logging.getLogger("dendro.upkeep")

WORKER_SILENT_MS = 30_000
"""Heartbeats come every 5 s."""


# ── chains ────────────────────────────────────────────────────────────────────────────────────


async def verify_session(storage: Storage, session: SessionId) -> BrokenLink | None:
    """Walks a log from its first entry, archive included; answers the first thing that is wrong with it."""
    found = await _verify(storage, session)
    # Between two reads Redis may have been put back to an earlier moment: accuse only who is found twice.
    return await _verify(storage, session) if found is not None else None


async def _verify(storage: Storage, session: SessionId) -> BrokenLink | None:
    audit = await audit_session(storage, await head_of(storage.broker, session))
    return audit.findings[0] if audit.findings else None


class Round:
    """Takes sessions in turn, so that every one is looked at before any is looked at again."""

    def __init__(self) -> None:
        self._last = ""

    def take(self, sessions: Sequence[SessionId], count: int) -> list[SessionId]:
        """The next `count` of them by id, after the one that was taken last."""
        ordered = sorted(sessions)
        later = [session for session in ordered if session > self._last]
        taken = [*later, *ordered[: len(ordered) - len(later)]][:count]
        self._last = taken[-1] if taken else ""
        return taken


async def verify_some(storage: Storage, sessions: Sequence[SessionId]) -> int:
    """Verifies sessions and reports broken ones; answers how many are."""
    broken = 0
    for session in sessions:
        try:
            link = await verify_session(storage, session)
        except UnknownSession:
            continue
        if link is not None:
            broken += 1
            log.error(
                "session %s: its log was altered or is damaged at %d: %s", session, link.seq, link.reason
            )
    return broken


# ── work that nobody takes ────────────────────────────────────────────────────────────────────


async def fire_timers(broker: Broker) -> list[Fired]:
    """Fires what is due in every shard; workers do so too, every second, where one lives."""
    return [fired for shard in range(broker.config.shards) for fired in await broker.fire(shard)]


def unattended(heads: Sequence[SessionHead], workers: Sequence[Heard], now_ms: int) -> Iterator[str]:
    """Warnings for an operator: sessions that wait for a worker that is not there, and quarantined ones."""
    living = [w for w in workers if now_ms - w.heard_ms < WORKER_SILENT_MS]
    served = {pool for worker in living for pool in decoded(worker.state).pools}
    waiting = Counter(h.pool for h in heads if _waits(h) and h.pool not in served)
    for pool, count in sorted(waiting.items()):
        waits = "waits" if count == 1 else "wait"
        yield f"{counted(count, 'session')} of pool {pool} {waits}, and no worker serves it: start one there"
    silent = {worker.worker for worker in workers} - {worker.worker for worker in living}
    lost = Counter(h.holder for h in heads if h.holder is not None and h.holder in silent)
    for holder, count in sorted(lost.items()):
        is_, them = ("is", "it") if count == 1 else ("are", "them")
        yield (
            f"{counted(count, 'session')} {is_} held by {holder}, which is silent: "
            f"another worker may take {them}"
        )
    quarantined = [h.session for h in heads if h.quarantined]
    if quarantined:
        is_ = "is" if len(quarantined) == 1 else "are"
        yield f"{counted(len(quarantined), 'session')} {is_} quarantined, the first is {quarantined[0]}"


def _waits(head: SessionHead) -> bool:
    return head.holder is None and head.sq_tip != head.cursor and not head.quarantined
