"""Wake-ups of sessions from outside: timers that are due, and notices to the worker that holds a session.

A timer is durable and becomes a queue entry; a notice is free to be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import Unavailable, UnknownSession
from orchestrator.broker.port import Port
from orchestrator.broker.records import Fired, Place
from orchestrator.broker.replies import Reply, queue_id
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.timers import STANDING_TIMERS

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import FireOk, SubmitMoved, TimersDue

_CONTROL_KEPT_S = 600
_FIRED_SOON = 32


class Timers(Port):
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

    async def _placed(self, session: SessionId, build: Callable[[Place], ScriptCall]) -> Reply:
        """Runs a call whose keys depend on the session's place, once more if it had moved."""
        reply = await self._run(build(await self._place(session)), session)
        if reply.code != "MOVED":
            return reply
        moved: SubmitMoved = reply.fields
        self._keep(Place(session, TreeId(moved["tree"]), moved["pool"]))
        return await self._run(build(await self._place(session)), session)

    async def fire(self, shard: int, count: int = 100) -> tuple[Fired, ...]:
        """Turns the shard's due timers into queue entries."""
        reply = await self._run(call("timers_due", [self.keys.timers(shard)], count=count))
        due: TimersDue = reply.fields
        self._clock.note(due["now"])
        found = []
        for member in due["members"]:
            session, _, timer = member.partition(":")
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
        match reply.code:
            case "OK":
                fired: FireOk = reply.fields
                self._clock.note(fired["now"])
                if fired["owner"]:
                    await self.notify([(session, fired["owner"])])
                return Fired(session, timer, fired["generation"], queue_id(fired["n"]))
            case "NONE":
                return None
            case _:
                raise reply.unexpected()

    async def fire_soon(self, shard: int) -> None:
        """Fires what a script has just made due. Free to fail: a worker polls within a second.

        Only so many, because a commit's answer waits for it.
        """
        with suppress(Unavailable):
            await self.fire(shard, _FIRED_SOON)
