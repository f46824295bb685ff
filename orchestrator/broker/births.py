"""Root sessions that are to be: announced before anything is stored for them, and what becomes of them.

A client stores the first packs of a portable folder before the session is there. It may die in between, and
nothing else would know whose packs they are. So it announces the session first; the script that creates it
takes the announcement away; what stays announced for a day was never born.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.broker.connection import call
from orchestrator.broker.port import Port
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import GiveUpOk

MOST_LISTED = 100
"""Sessions of a shard that are looked at in one round."""


class Births(Port):
    """The part of the broker that knows of sessions before they are created."""

    async def announce(self, session: SessionId) -> None:
        """Notes that packs are about to be stored for a session that is not created yet."""
        reply = await self._run(
            call("announce", [self.keys.unborn(self.keys.shard_of(session))], session=session),
            session,
        )
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
            case _:
                raise reply.unexpected()

    async def unborn(self, before_ms: int) -> tuple[SessionId, ...]:
        """Sessions given up and not forgotten, then those announced before a time, the oldest first."""
        found: list[SessionId] = []
        for shard in range(self.keys.shards):
            named = await self._connection.command(
                "ZRANGEBYSCORE", self.keys.unborn(shard), "-inf", before_ms, "LIMIT", 0, MOST_LISTED
            )
            found += [SessionId(name.decode()) for name in named]
        return tuple(found)

    async def give_up(self, session: SessionId) -> int | None:
        """Keeps a session that was never created from being created; it stays listed until forgotten.

        Answers since when (Unix, in milliseconds), or None if the session is there.
        """
        keys = [self.keys.unborn(self.keys.shard_of(session)), self.keys.session(session)]
        reply = await self._run(call("give_up", keys, session=session), session)
        match reply.code:
            case "OK":
                given_up: GiveUpOk = reply.fields
                self._clock.note(given_up["now"])
                return given_up["known"]
            case "BORN":
                self._clock.note(reply.now)
                return None
            case _:
                raise reply.unexpected()

    async def forget_unborn(self, session: SessionId) -> None:
        """Forgets a session that was given up: nothing is stored for it any more."""
        await self._connection.command("ZREM", self.keys.unborn(self.keys.shard_of(session)), session)
