"""Reads for many followers of the same sessions: followers at the same place wait for one reply.

A hundred clients of a session stand at its end together; each of them alone would block a connection of its
own to the server, and ask it the same after every event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from orchestrator.broker.follow import EqCursor
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, StoredEntry, StoredEvent
from orchestrator.core.ids import SessionId

Answer = TypeVar("Answer")


class SharedReads:
    """The reads that following takes, each done once for all who ask for it meanwhile."""

    def __init__(self, reader: Logs) -> None:
        self._reader = reader
        self._running: dict[Hashable, _Read] = {}

    async def wait_eq(self, session: SessionId, after_n: int, timeout_s: float) -> tuple[StoredEvent, ...]:
        """Events after `after_n`, waiting for the first of them as long as the first who asked would."""
        key = ("wait", session, after_n)
        return await self._shared(key, lambda: self._reader.wait_eq(session, after_n, timeout_s))

    async def wait_behind(
        self, session: SessionId, at: EqCursor, timeout_s: float
    ) -> tuple[StoredEvent, ...] | None:
        """The same behind an event that has to be there as the cursor names it; None if it is not."""
        key = ("behind", session, at)
        return await self._shared(key, lambda: self._reader.wait_behind(session, at, timeout_s))

    async def read_eq(
        self, session: SessionId, after_n: int = 0, count: int = 1_000
    ) -> tuple[StoredEvent, ...]:
        """Events after number `after_n` that are still kept."""
        key = ("read", session, after_n, count)
        return await self._shared(key, lambda: self._reader.read_eq(session, after_n, count))

    async def head(self, session: SessionId) -> SessionHead | None:
        """The head of a session, or None if there is no such session."""
        return await self._reader.head(session)

    async def read_rollout(
        self, session: SessionId, after_seq: int = 0, count: int = 1_000
    ) -> tuple[StoredEntry, ...]:
        """Log entries after `after_seq`; those sealed into the archive are not here."""
        return await self._reader.read_rollout(session, after_seq, count)

    async def _shared(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Read(asyncio.create_task(read()))
            running.task.add_done_callback(partial(self._over, key, running))
        # A future of its own for each: to shield the task wakes every follower twice.
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        running.waiters[waiter] = None
        try:
            return await waiter
        except asyncio.CancelledError:
            self._leave(key, running, waiter)
            raise

    def _leave(self, key: Hashable, running: _Read, waiter: asyncio.Future[Any]) -> None:
        running.waiters.pop(waiter, None)
        if not running.waiters and not running.task.done():
            # Nobody is left to wait: a blocked connection would be held for nothing. Who asks from now on
            # must not meet a read that is being cancelled.
            self._forget(key, running)
            running.task.cancel()

    def _over(self, key: Hashable, running: _Read, task: asyncio.Task[Any]) -> None:
        self._forget(key, running)
        waiters, running.waiters = running.waiters, {}
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(task.result())
            elif isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            else:
                waiter.set_exception(error)

    def _forget(self, key: Hashable, running: _Read) -> None:
        if self._running.get(key) is running:
            del self._running[key]


@dataclass(slots=True)
class _Read:
    """A read that goes on, and those who wait for it."""

    task: asyncio.Task[Any]
    waiters: dict[asyncio.Future[Any], None] = field(default_factory=dict)
    """In the order in which they came."""
