"""Waiting until sessions are as somebody needs them, without asking again and again.

The script that changes a session says so in a stream: its events tell what it does, the shard's `asked` that
a request to people is over, `released` that nobody holds it any more. An entry there says "look", and nothing
else is believed of it. Where none comes (a worker of an earlier version writes none of a release, and streams
are trimmed) one look each `LOOK_S` finds the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Protocol, TypeVar

from orchestrator.broker.errors import Unavailable
from orchestrator.broker.keys import Keys
from orchestrator.broker.notices import Found, Listener
from orchestrator.core.ids import SessionId

LOOK_S = 1.0
RETRY_S = 0.1
Answer = TypeVar("Answer")


class Notices(Protocol):
    """The broker, as far as it is listened to."""

    @property
    def keys(self) -> Keys: ...

    def listener(self) -> Listener: ...


async def until(
    broker: Notices,
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

    def __init__(self, broker: Notices, sessions: Collection[SessionId]) -> None:
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
            key in self._own or any(fields[b"s"] in self._names for _, fields in entries)
            for key, entries in found.items()
        )

    async def aclose(self) -> None:
        await self._listener.aclose()
