"""Notes about sessions: what clients keep beside a log, each under a name, gone with the session.

Deciding what a note says is the caller's; here it is bytes that are replaced only where nobody else did.
News are what the owner's webhook is told of: who tells them, and that they were told; one command each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from orchestrator.broker.connection import call
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.port import Port
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.broker.replies import NoteFull, NoteWas

MOST_NOTES: Final = 256
"""Notes of one session."""
MOST_BYTES: Final = 4_096
"""Bytes of one note."""
_FIELD: Final = "note:"
_TOLD: Final = b"told"
NEWS_KEPT_MS: Final = 7 * 86_400_000
"""The time for which it is known of news that they were told."""


class TooManyNotes(BrokerError):
    """A session has as many notes as it may."""


class Notes(Port):
    """The part of the broker that keeps notes."""

    async def notes(self, name: str, sessions: Sequence[SessionId]) -> list[bytes]:
        """The notes of this name, in the order of the sessions; empty where there is none."""
        rows = [("HGET", self.keys.session(session), _FIELD + name) for session in sessions]
        found = await self._connection.commands(rows) if rows else []
        return [note or b"" for note in found]

    async def note(self, session: SessionId, name: str, value: bytes, was: bytes) -> bytes:
        """Replaces a note that is still `was`; the note that stands then, which is another's if it was not.

        Raises `UnknownSession`, `TooManyNotes`.
        """
        keys = [self.keys.session(session)]
        made = call("note", keys, name=name, value=value, was=was, most=MOST_NOTES)
        reply = await self._run(made, session)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
                return value
            case "WAS":
                other: NoteWas = reply.fields
                return other["stands"]
            case "FULL":
                full: NoteFull = reply.fields
                raise TooManyNotes(f"session {session} has {full['notes']} notes, the most that are kept")
            case _:
                raise reply.unexpected()

    async def take_news(self, id: str, owner: str, lease_ms: int) -> Literal["ours", "theirs", "told"]:
        """Takes it upon a process to tell news, until its lease is over."""
        key = self.keys.news(id)
        if await self._connection.command("SET", key, owner, "NX", "PX", lease_ms) is not None:
            return "ours"
        return "told" if await self._connection.command("GET", key) == _TOLD else "theirs"

    async def keep_news(self, id: str, owner: str, lease_ms: int) -> None:
        """Keeps news that are this process's for another lease."""
        await self._connection.command("SET", self.keys.news(id), owner, "PX", lease_ms)

    async def settle_news(self, id: str) -> None:
        """Has nobody tell these news again."""
        await self._connection.command("SET", self.keys.news(id), _TOLD, "PX", NEWS_KEPT_MS)
