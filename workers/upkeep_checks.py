"""Reads of upkeep: sessions that may have something to be moved, chains in turn, work that nobody takes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

from orchestrator.broker.claims import Claims
from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Fired, Heard, SessionHead
from orchestrator.broker.worker_state import decoded
from orchestrator.core.chain import BrokenLink
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.chain_check import audit_session
from orchestrator.rollouts.full_log import head_of
from orchestrator.rollouts.object_store import ArchiveUnavailable

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
        except ArchiveUnavailable as error:
            log.warning("session %s: not verified, as the archive does not answer: %s", session, error)
            continue
        except Corrupt as error:
            broken += 1
            log.error("session %s: it was altered or is damaged: %s", session, error)
            continue
        if link is not None:
            broken += 1
            log.error(
                "session %s: its log was altered or is damaged at %d: %s", session, link.seq, link.reason
            )
    return broken


# ── what a look reads ─────────────────────────────────────────────────────────────────────────────


MAX_LISTED = 100_000
"""Sessions, those that changed last, that the first look of a process reads: what is new is to be sealed."""
MAX_OLDER = 20_000
"""Sessions of all that a look reads in turn, at most."""
ROUND_LOOKS = 60
"""Looks within which all sessions have been read in turn, if they are not too many."""
PAGE = 500
"""Sessions whose hashes are in memory at once."""
OVERLAP_MS = 60_000
"""Time that a look and the one before have in common: clocks of servers and workers differ, and a server that
took another's place may lack the last seconds of it."""


class Looks:
    """The sessions that a look reads: what changed, and not what there is.

    The first look of a process reads what changed last. Each one behind it reads what changed since the look
    before, what has rested for as long as matters since then, what waits for a worker or is held, and what
    the look before has kept. A sixtieth of all sessions comes by besides, in turn: whatever escapes those is
    read within the hour. A look that breaks off has not been.
    """

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}
        """By shard: the time from which changes are read."""
        self._kept: frozenset[SessionId] = frozenset()
        self._keeps: set[SessionId] = set()
        self._pools: set[str] = set()
        self._turn = Round()

    async def pages(
        self, logs: Logs, claims: Claims, now_ms: int, idle_ms: int | None
    ) -> AsyncIterator[tuple[SessionHead, ...]]:
        """The heads of this look, each once.

        `idle_ms`: a session that has rested for so long is read again.
        """
        read, since_ms = set[SessionId](), dict[int, int]()
        self._keeps = set()
        for shard in range(logs.config.shards):
            found, since_ms[shard] = await self._changed(logs, shard, now_ms, idle_ms)
            found += await claims.at_work(shard, sorted(self._pools))
            async for heads in self._heads(logs, found, read):
                yield heads
        taken = await self._turn.take(logs, min(MAX_OLDER, -(-await logs.count_sessions() // ROUND_LOOKS)))
        async for heads in self._heads(logs, (*self._kept, *taken), read):
            yield heads
        self._since_ms, self._kept = since_ms, frozenset(self._keeps)

    def keep(self, head: SessionHead) -> None:
        """Has the session read by the next look, too: what is to be done about it is not done yet."""
        self._keeps.add(head.session)

    async def _changed(
        self, logs: Logs, shard: int, now_ms: int, idle_ms: int | None
    ) -> tuple[list[SessionId], int]:
        """Sessions that changed, or have rested long enough since; from when on the next look reads."""
        most = -(-MAX_LISTED // logs.config.shards)
        again_ms = now_ms - OVERLAP_MS
        if shard not in self._since_ms:
            return await logs.newest_of(shard, 0, most), again_ms
        since = min(self._since_ms[shard], now_ms)
        changed = await logs.changed_since(shard, since, most)
        rested: tuple[tuple[SessionId, int], ...] = ()
        if idle_ms is not None:
            rested = await logs.changed_since(shard, since - idle_ms, most, until_ms=now_ms - idle_ms)
        # Where there is more, the next look goes on behind the last one.
        since = again_ms if len(changed) < most else changed[-1][1]
        return [session for session, _ in (*changed, *rested)], since

    async def _heads(
        self, logs: Logs, sessions: Sequence[SessionId], read: set[SessionId]
    ) -> AsyncIterator[tuple[SessionHead, ...]]:
        fresh = [session for session in dict.fromkeys(sessions) if session not in read]
        read.update(fresh)
        for start in range(0, len(fresh), PAGE):
            damaged: dict[SessionId, Corrupt] = {}
            heads = await logs.heads(fresh[start : start + PAGE], damaged)
            for error in damaged.values():
                log.error("session left out: %s", error)
            self._pools |= {head.pool for head in heads}
            yield heads


# ── work that nobody takes ────────────────────────────────────────────────────────────────────────


async def fire_timers(claims: Claims) -> list[Fired]:
    """Fires what is due in every shard; workers do so too, every second, where one lives."""
    found, damaged = list[Fired](), list[Corrupt]()
    for shard in range(claims.config.shards):
        found += await claims.fire(shard, damaged=damaged)
    for error in damaged:
        log.warning("a timer did not fire: %s", error)
    return found


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
