"""Sessions as lists show them, and how they change, without asking for them again and again.

A script that changes what lists show says so in its shard's stream `changed`, in `released` when it gives a
session back, and in `asked` when people are asked or not asked any more. An entry there says "look", and
nothing else is believed of it: the sessions' hashes are the truth. The scripts of which turns consist write
there only while somebody follows (`_fleet.lua`): a follower says that in `watched` from time to time. Where
nothing comes for a while, those are looked at whose logs have grown: a worker of an earlier version says
nothing. Where the last entry that was read is not there any more, Redis was put back or the stream was
trimmed, and whoever follows is to read everything anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Corrupt
from orchestrator.broker.notices import Found, Listener
from orchestrator.broker.records import START, SessionHead
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

WATCH_S = 20.0
"""A follower says so this often: a third of the time for which scripts believe it."""
BELIEVED_S = 50.0
"""A follower that has not said so for longer may have been told nothing, and reads all anew."""
GROWN_S = 2.0
"""Between two looks at logs that have grown without a word, for those who do not wait."""
OVERLAP_MS = 2_000
"""Logs that grew so long before the last look are looked at again: their commits may have been under way."""
MOST_GROWN = 1_000
"""Sessions of a shard that are looked at where nothing was told."""


class Heads(Protocol):
    """The reads that a feed needs."""

    async def heads(
        self, sessions: Sequence[SessionId], damaged: dict[SessionId, Corrupt] | None = None
    ) -> tuple[SessionHead, ...]: ...

    async def changed_since(
        self, shard: int, since_ms: int, limit: int, start: int = 0
    ) -> tuple[tuple[SessionId, int], ...]: ...

    async def server_ms(self) -> int: ...


@record
class FleetChanges:
    """The sessions that lists show otherwise than before."""

    heads: tuple[SessionHead, ...] = ()
    """As they are now: those of the namespace."""
    gone: tuple[SessionId, ...] = ()
    """Deleted, of any namespace: whoever has never seen one passes it over."""
    damaged: Mapping[SessionId, Corrupt] = field(default_factory=dict)
    """Those that cannot be read, of any namespace."""
    told: bool = True
    """Whether scripts named them; else their logs grew lately, and they may be as they were."""
    anew: bool = False
    """Whether everything is to be read anew: at first, and where changes may have been missed."""


ANEW = FleetChanges(anew=True)


class FleetFeed:
    """The changes of a namespace's sessions; of all of them if it is None."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        heads: Heads,
        monotonic: Callable[[], float],
        namespace: str | None,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._heads = heads
        self._listener = Listener(connection, keys)
        self._monotonic = monotonic
        self._namespace = namespace
        self._cursors: dict[str, str] = {}
        """Where the streams were read to; empty before the first look, and after a failure."""
        self._looked_ms = 0
        self._grown_s = 0.0
        """When the logs were last looked at that have grown."""
        self._watched_s = -WATCH_S

    async def changes(self, timeout_s: float = 5.0) -> FleetChanges:
        """Changes since the last call, `anew` at the first; waits at most so long for one.

        Raises `Unavailable` when Redis goes away; the call behind it answers `anew`.
        """
        cursors, self._cursors = self._cursors, {}
        if self._monotonic() - self._watched_s > BELIEVED_S:
            cursors = {}
        await self._watch(anew=not cursors)
        if not cursors:
            return await self._begun()
        found = await self._listener.read(cursors, timeout_s)
        if not await self._are_there(cursors, found or cursors):
            return await self._begun()
        named = self._named(found)
        if not found and (timeout_s > 0 or self._monotonic() - self._grown_s >= GROWN_S):
            named = await self._grown()
        changed = await self._changed(named, told=bool(found))
        self._cursors = {**cursors, **{key: entries[-1][0].decode() for key, entries in found.items()}}
        return changed

    async def keep_watching(self) -> None:
        """Has the scripts go on telling, for a follower that reads their streams itself."""
        await self._watch(anew=False)

    async def _begun(self) -> FleetChanges:
        """The streams' ends are known before anything is read: what changes behind them is told."""
        shards = range(self._keys.shards)
        kinds = (self._keys.changed, self._keys.released, self._keys.asked)
        streams = [key(shard) for shard in shards for key in kinds]
        self._looked_ms = await self._heads.server_ms()
        # Last: a failure before it leaves the feed as one that has not begun.
        self._cursors = await self._listener.tips(streams)
        return ANEW

    async def _watch(self, *, anew: bool) -> None:
        """Has the scripts tell of changes, for as long as they believe it."""
        now_s = self._monotonic()
        if not anew and now_s - self._watched_s < WATCH_S:
            return
        watched = [self._keys.watched(shard) for shard in range(self._keys.shards)]
        await self._connection.commands([("XADD", key, "MAXLEN", "=", 1, "*", "f", "1") for key in watched])
        self._watched_s = now_s

    async def _are_there(self, cursors: Mapping[str, str], streams: Iterable[str]) -> bool:
        """Whether the entries up to which these streams were read are still in them."""
        known = [(key, cursors[key]) for key in streams if cursors[key] != START]
        rows = [("XRANGE", key, at, at) for key, at in known]
        return all(await self._connection.commands(rows)) if rows else True

    async def _grown(self) -> list[SessionId]:
        """The sessions whose logs grew since the last look."""
        self._grown_s = self._monotonic()
        now_ms = await self._heads.server_ms()
        since_ms, self._looked_ms = self._looked_ms - OVERLAP_MS, now_ms
        shards = range(self._keys.shards)
        looks = (self._heads.changed_since(shard, since_ms, MOST_GROWN) for shard in shards)
        return [session for grown in await asyncio.gather(*looks) for session, _ in grown]

    async def _changed(self, sessions: Sequence[SessionId], *, told: bool) -> FleetChanges:
        damaged: dict[SessionId, Corrupt] = {}
        there = await self._heads.heads(sessions, damaged)
        living = {head.session for head in there} | damaged.keys()
        namespace = self._namespace
        return FleetChanges(
            tuple(head for head in there if namespace is None or head.labels.namespace == namespace),
            tuple(session for session in sessions if session not in living),
            damaged,
            told,
        )

    def _named(self, found: Found) -> list[SessionId]:
        told = (fields.get(b"s", b"") for entries in found.values() for _, fields in entries)
        named = (session.decode("utf-8", "replace") for session in dict.fromkeys(told))
        return [SessionId(session) for session in named if self._keys.names_session(session)]

    async def aclose(self) -> None:
        """Ends the reads that wait."""
        await self._listener.aclose()
