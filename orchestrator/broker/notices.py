"""Waiting for work without asking for it: one blocking read over streams of notices.

A notice says "poll", never "this is yours": it may be lost or doubled. The truth is in `due`,
`leases` and the queues, which a worker polls every second anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.records import START, Notices
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.ids import SessionId

Found = dict[str, list[Any]]
"""Entries by stream."""


class Listener:
    """The notices that one process waits for."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._waiting: dict[tuple[str, str], asyncio.Task[Found]] = {}
        """In a cluster: reads that have no answer yet, by stream and cursor."""
        self._streams: tuple[tuple[str, str, tuple[int, ...] | None], _Streams] | None = None
        """For whom was waited last (pool, worker, shards), and the streams."""

    async def wait(
        self,
        who: tuple[str, str],
        cursors: Mapping[str, str],
        timeout_s: float,
        shards: Collection[int] | None = None,
    ) -> Notices:
        """Waits for a notice in the pool's streams or the worker's own; `who` is (pool, worker).

        Without a worker it waits for the pool's alone; with `shards` for theirs.
        """
        pool, worker = who
        of = (pool, worker, None if shards is None else tuple(shards))
        if self._streams is None or self._streams[0] != of:
            self._streams = of, _streams(self._keys, *of)
        ready, jobs, control, near, streams = self._streams[1]
        if new := [key for key in streams if key not in cursors]:
            unknown = tuple(ready[key] for key in new if key in ready)
            return Notices(unknown, (), {**cursors, **await _tips(self._connection, new)})
        found = await self._read({key: cursors[key] for key in streams}, timeout_s)
        later = {**cursors, **{key: entries[-1][0].decode() for key, entries in found.items()}}
        polled = {ready[key]: self._session(entries[0]) for key, entries in found.items() if key in ready}
        named = {shard: session for shard, session in polled.items() if session is not None}
        notified = dict.fromkeys(filter(None, map(self._session, found.get(control, ()))))
        told = ((notice[1].get(b"p", b""), self._session(notice)) for notice in found.get(near, ()))
        alone = tuple((pool.decode(), session) for pool, session in told if pool and session is not None)
        return Notices(tuple(polled), tuple(notified), later, named, jobs in found, alone)

    def _session(self, notice: tuple[bytes, dict[bytes, bytes]]) -> SessionId | None:
        """The session that a notice names; None for one that names none, of which nobody is told."""
        named = notice[1].get(b"s", b"").decode("utf-8", "replace")
        return SessionId(named) if self._keys.names_session(named) else None

    async def read(self, cursors: Mapping[str, str], timeout_s: float) -> Found:
        """Entries behind the cursors of some streams; waits for the first of them, unless for no time."""
        return await (self._read(cursors, timeout_s) if timeout_s > 0 else self._there(cursors))

    async def _there(self, cursors: Mapping[str, str]) -> Found:
        # By a connection that others share: nothing of it blocks.
        together = [cursors] if not self._connection.clustered else [{key: at} for key, at in cursors.items()]
        rows: list[tuple[str | bytes | int, ...]] = [
            ("XREAD", "COUNT", 100, "STREAMS", *some, *some.values()) for some in together
        ]
        replies = await self._connection.commands(rows)
        return {key.decode(): entries for reply in replies for key, entries in reply or ()}

    async def tips(self, streams: list[str]) -> dict[str, str]:
        """Cursors behind what the streams hold now."""
        return await _tips(self._connection, streams)

    async def _read(self, cursors: Mapping[str, str], timeout_s: float) -> Found:
        if not self._connection.clustered:
            return await _xread(self._connection, cursors, timeout_s)
        # A cluster refuses one read over several slots, so each stream gets its own. Those that have no
        # answer when another has stay for the next call: to give one up costs its connection.
        reads = [self._pending(place, timeout_s) for place in cursors.items()]
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        ended = [read for read in self._waiting.values() if read.done()]
        self._waiting = {place: read for place, read in self._waiting.items() if not read.done()}
        # All of them are asked how they ended: a node that fails ends many, and one error is told, unless
        # another node has told of something.
        errors = [error for read in ended if (error := read.exception()) is not None]
        found: Found = {}
        for read in reads:
            found.update(read.result() if read.done() and read.exception() is None else {})
        if errors and not found:
            raise errors[0]
        return found

    def _pending(self, place: tuple[str, str], timeout_s: float) -> asyncio.Task[Found]:
        if place not in self._waiting:
            key, at = place
            self._waiting[place] = asyncio.create_task(_xread(self._connection, {key: at}, timeout_s))
        return self._waiting[place]

    async def aclose(self) -> None:
        for read in self._waiting.values():
            read.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)


_Streams = tuple[dict[str, int], str, str, str, list[str]]
"""Those of shards, each with its shard; that of jobs; the worker's two; all of them."""


def _streams(keys: Keys, pool: str, worker: str, shards: Collection[int] | None) -> _Streams:
    every = range(keys.shards) if shards is None else shards
    ready = {keys.ready(shard, pool): shard for shard in every}
    _, jobs = keys.jobs(pool)
    control, near = keys.control(worker), keys.near(worker)
    own = [control, near] if keys.nearby else [control]
    return ready, jobs, control, near, [*ready, jobs, *(own if worker else ())]


async def _tips(connection: Connection, streams: list[str]) -> dict[str, str]:
    rows = [("XREVRANGE", key, "+", "-", "COUNT", 1) for key in streams]
    newest = await connection.commands(rows)
    return {
        key: entries[0][0].decode() if entries else START
        for key, entries in zip(streams, newest, strict=True)
    }


async def _xread(connection: Connection, cursors: Mapping[str, str], timeout_s: float) -> Found:
    block_ms = max(1, int(timeout_s * 1000))
    reply = await connection.wait(
        "XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", *cursors, *cursors.values()
    )
    return {key.decode(): entries for key, entries in reply or ()}


# ── until ─────────────────────────────────────────────────────────────────────────────────────────
# Waiting until sessions are as somebody needs them, without asking again and again.
#
# The script that changes a session says so in a stream: its events tell what it does, the shard's `asked`
# that a request to people is over, `released` that nobody holds it any more. An entry there says "look",
# and nothing else is believed of it. Where none comes (a worker of an earlier version writes none of a
# release, and streams are trimmed) one look each `LOOK_S` finds the same.


LOOK_S = 1.0
RETRY_S = 0.1
Answer = TypeVar("Answer")


class NoticeReader(Protocol):
    """The broker, as far as it is listened to."""

    @property
    def keys(self) -> Keys: ...

    def listener(self) -> Listener: ...


async def until(
    broker: NoticeReader,
    sessions: Collection[SessionId],
    look: Callable[[], Awaitable[Answer]],
    patience_s: float | None = None,
) -> Answer | None:
    """The first answer of `look` that is true; the last one if none is within `patience_s`.

    `look` is called whenever something may have changed in one of `sessions`. Raises what `look` raises.
    """
    answer: Answer | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            if answer := await look():
                return answer
            waiting = _Waiting(broker, sessions)
            try:
                while True:
                    # The streams' ends are known before the look: what changes behind it is told.
                    await waiting.begun()
                    if answer := await look():
                        return answer
                    await waiting.told()
            finally:
                await waiting.aclose()
    return answer


class _Waiting:
    """The streams that tell of some sessions."""

    def __init__(self, broker: NoticeReader, sessions: Collection[SessionId]) -> None:
        keys, shards = broker.keys, {broker.keys.shard_of(session) for session in sessions}
        self._own = [keys.eq(session) for session in sessions]
        self._shared = [stream for at in shards for stream in (keys.asked(at), keys.released(at))]
        self._names = {session.encode() for session in sessions}
        self._listener = broker.listener()
        self._cursors: dict[str, str] = {}
        """Where the streams were read to; empty before the first look, and after a failure."""

    async def begun(self) -> None:
        """Finds the streams' ends, if they are not known."""
        if not self._cursors:
            with suppress(Unavailable):
                self._cursors = await self._listener.tips([*self._own, *self._shared])

    async def told(self) -> None:
        """Returns when a stream tells of one of the sessions, at the latest after `LOOK_S`."""
        clock = asyncio.get_running_loop().time
        ends = clock() + LOOK_S
        while self._cursors and (left_s := ends - clock()) > 0:
            try:
                found = await self._listener.read(self._cursors, left_s)
            except Unavailable:
                self._cursors = {}
                break
            self._cursors |= {key: entries[-1][0].decode() for key, entries in found.items()}
            if self._concerned(found):
                return
        if not self._cursors:
            await asyncio.sleep(RETRY_S)

    def _concerned(self, found: Found) -> bool:
        return any(
            key in self._own or any(fields.get(b"s") in self._names for _, fields in entries)
            for key, entries in found.items()
        )

    async def aclose(self) -> None:
        await self._listener.aclose()
