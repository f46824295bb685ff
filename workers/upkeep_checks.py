"""Read-only checks of upkeep: chains of a few sessions in turn, work that no worker takes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.broker.claims import Claims
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Fired, Heard, SessionHead
from orchestrator.broker.worker_state import decoded
from orchestrator.core.chain import BrokenLink
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.audit import audit_session
from orchestrator.rollouts.full_log import head_of

log = logging.getLogger("dendro.upkeep")

WORKER_SILENT_MS = 30_000
"""Heartbeats come every 5 s."""


# ── chains ────────────────────────────────────────────────────────────────────────────────────────


async def verify_session(storage: Storage, session: SessionId) -> BrokenLink | None:
    """Walks a log from its first entry, archive included; answers the first thing that is wrong with it."""
    found = await _verify(storage, session)
    # Between two reads Redis may have been put back to an earlier moment: accuse only who is found twice.
    return await _verify(storage, session) if found is not None else None


async def _verify(storage: Storage, session: SessionId) -> BrokenLink | None:
    audit = await audit_session(storage, await head_of(storage.broker.logs, session))
    return audit.findings[0] if audit.findings else None


class Round:
    """Takes all sessions in turn, shard by shard, in each those first that changed longest ago.

    Only the sessions that are taken are read. One that changes goes to the end of its shard, so nothing
    that is still to come is passed over; it may come once more in the same round.
    """

    def __init__(self) -> None:
        self._shard = self._since_ms = self._seen_then = 0

    async def take(self, reader: Logs, count: int) -> list[SessionId]:
        """The next `count`; fewer at the end of a round, none only where there is none."""
        taken: list[SessionId] = []
        for _ in range(2 * reader.config.shards):
            wanted = count - len(taken)
            page = await reader.changed_since(self._shard, self._since_ms, wanted, self._seen_then)
            taken += (session for session, _ in page)
            self._note([at_ms for _, at_ms in page])
            if len(page) == wanted:
                break
            self._shard, self._since_ms, self._seen_then = (self._shard + 1) % reader.config.shards, 0, 0
            if self._shard == 0 and taken:
                break
        return taken

    def _note(self, times: Sequence[int]) -> None:
        if not times:
            return
        last_ms = times[-1]
        before = self._seen_then if last_ms == self._since_ms else 0
        self._since_ms, self._seen_then = last_ms, before + times.count(last_ms)


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


# ── work that nobody takes ────────────────────────────────────────────────────────────────────────


async def fire_timers(claims: Claims) -> list[Fired]:
    """Fires what is due in every shard; workers do so too, every second, where one lives."""
    return [fired for shard in range(claims.config.shards) for fired in await claims.fire(shard)]


def concerns(head: SessionHead) -> bool:
    """Whether the session waits for a worker, is held by one, or was set aside."""
    return head.holder is not None or head.quarantined or _waits(head)


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
