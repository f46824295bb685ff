"""The history of prompts: one log for each person and deployment, shared by all of the person's sessions.

An entry's place counts from the oldest that was ever written, so it stays when older ones are trimmed. A log
has an id, drawn once: a place means something only in the log that it was told for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.broker.connection import call
from orchestrator.broker.port import Port
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.core.settings import HistoryHead

MOST_ENTRIES = 10_000
MOST_BYTES = 32 << 20
"""Bytes of the texts that are kept."""
MOST_TEXT = 32 << 10
"""Bytes of one text."""
_ID_BYTES = 6
"""Any program that reads JSON keeps a number of this size."""
_MOST_OFFSET = 1 << 53


@record
class KeptPrompt:
    """An entry of the log."""

    session: SessionId
    at_ms: int
    text: str


class History(Port):
    """The part of the broker that keeps what people typed, for them to find again."""

    async def add_to_history(
        self, who: str, key: str, prompt: tuple[SessionId, str], random_bytes: bytes
    ) -> bool:
        """Appends a session's text to the log of `who`; False if that was done before under this key."""
        session, text = prompt
        add = call(
            "add_to_history",
            list(self.keys.history(person_of(who))),
            key=key,
            session=session,
            entry=text,
            fresh_id=_fresh_id(random_bytes),
            most=MOST_ENTRIES,
            most_bytes=MOST_BYTES,
        )
        reply = await self._run(add, session)
        match reply.code:
            case "OK" | "DUP" as code:
                self._clock.note(reply.now)
                return code == "OK"
            case _:
                raise reply.unexpected()

    async def history_head(self, who: str, random_bytes: bytes) -> HistoryHead:
        """The log of `who`; its id is drawn from `random_bytes` if it has none yet."""
        from orchestrator.core.settings import HistoryHead

        _, head = self.keys.history(person_of(who))
        await self._connection.command("HSETNX", head, "id", _fresh_id(random_bytes))
        log_id, count = await self._connection.command("HMGET", head, "id", "count")
        return HistoryHead(int(log_id or 0), int(count or 0))

    async def history_entry(self, who: str, log_id: int, offset: int) -> KeptPrompt | None:
        """The entry at a place of the log; None if the log has another id, or nothing there (any more)."""
        log, head = self.keys.history(person_of(who))
        if offset >= _MOST_OFFSET or int(await self._connection.command("HGET", head, "id") or 0) != log_id:
            return None
        at = f"{offset + 1}-0"
        found = await self._connection.command("XRANGE", log, at, at)
        return _kept(found[0][1]) if found else None


def person_of(who: str) -> str:
    """The person without the machine: `anna@host` is `anna`."""
    return who.rpartition("@")[0] or who


def _fresh_id(random_bytes: bytes) -> int:
    return int.from_bytes(random_bytes[:_ID_BYTES], "big") or 1


def _kept(fields: dict[bytes, bytes]) -> KeptPrompt:
    return KeptPrompt(
        SessionId(fields[b"s"].decode()), int(fields[b"t"]), fields[b"x"].decode("utf-8", "replace")
    )
