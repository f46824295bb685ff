"""Wake-ups of sessions from outside: timers that are due, and notices to the worker that holds a session.

A timer is durable and becomes a queue entry; a notice is free to be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import Unavailable, UnknownSession
from orchestrator.broker.reader import Reader
from orchestrator.broker.records import Fired, Place
from orchestrator.broker.replies import code_of, queue_id, unexpected
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.timers import STANDING_TIMERS

_CONTROL_KEPT_S = 600
_FIRED_SOON = 32


class Timers(Reader):
    """The part of the broker that fires timers and notifies workers."""

    async def notify(self, held: Sequence[tuple[SessionId, str]]) -> None:
        """Tells workers that a session of theirs was given something. Free to be lost."""
        rows: list[Sequence[str | bytes | int]] = []
        for session, worker in held:
            key = self.keys.control(worker)
            rows.append(("XADD", key, "MAXLEN", "~", 256, "*", "s", session))
            rows.append(("EXPIRE", key, _CONTROL_KEPT_S))
        # What the notice is about is already in the queue, and the next renewal answers its tip.
        with suppress(Unavailable):
            await self._connection.commands(rows)

    async def _placed(self, session: SessionId, build: Callable[[Place], ScriptCall]) -> list[Any]:
        """Runs a call whose keys depend on the session's place, once more if it had moved."""
        reply = await self._connection.run(build(await self.place(session)))
        if reply[0] != b"MOVED":
            return reply
        self._keep(Place(session, TreeId(reply[1].decode()), reply[2].decode()))
        return await self._connection.run(build(await self.place(session)))

    async def fire(self, shard: int, count: int = 100) -> tuple[Fired, ...]:
        """Turns the shard's due timers into queue entries."""
        now, members = await self._connection.run(call("timers_due", [self.keys.timers(shard)], count=count))
        self._clock.note(now)
        found = []
        for member in members:
            session, _, timer = member.decode().partition(":")
            fired = await self._fire(SessionId(session), timer)
            if fired is not None:
                found.append(fired)
        return tuple(found)

    async def _fire(self, session: SessionId, timer: str) -> Fired | None:
        shard = self.keys.shard_of(session)

        def build(place: Place) -> ScriptCall:
            keys = [
                self.keys.timers(shard),
                self.keys.timer(session),
                self.keys.session(session),
                self.keys.sq(session),
                self.keys.agents(place.tree),
                *self.keys.pool(shard, place.pool),
            ]
            again_ms = STANDING_TIMERS.get(timer, 0)
            return call(
                "fire",
                keys,
                session=session,
                pool_name=place.pool,
                tree=place.tree,
                id=timer,
                again_ms=again_ms,
            )

        try:
            reply = await self._placed(session, build)
        except UnknownSession:
            # Its session was deleted between the two reads; the timer has no session to wake.
            await self._connection.command("ZREM", self.keys.timers(shard), f"{session}:{timer}")
            return None
        match code_of(reply, session):
            case "OK":
                _, n, generation, holder, now = reply
                self._clock.note(now)
                if holder:
                    await self.notify([(session, holder.decode())])
                return Fired(session, timer, generation, queue_id(n))
            case "NONE":
                return None
            case code:
                raise unexpected("fire", code)

    async def fire_soon(self, shard: int) -> None:
        """Fires what a script has just made due. Free to fail: a worker polls within a second.

        Only so many, because a commit's answer waits for it.
        """
        with suppress(Unavailable):
            await self.fire(shard, _FIRED_SOON)
