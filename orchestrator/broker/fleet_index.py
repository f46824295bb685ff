"""The fleet's index: the roots that lists show, page by page, and what people put away.

Each shard has one sorted set, kept by the scripts that change a session (`_index.lua`), whose members are
read in their order. A reader merges the shards: a page costs one read of each, whatever there is beside it.
A place in a list is that of a session by the order's time, so it holds while others change; one that is used
meanwhile goes to the front, as in every list by last use.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Literal

from orchestrator.broker.connection import call
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.port import Port
from orchestrator.broker.records import SessionHead, Source
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.tree import ROOT

MOST_LISTED: Final = 1_000
"""Sessions of one page."""
_DIGITS: Final = 15
_BEHIND: Final = b"\xff"
"""Sorts behind every member of a prefix."""

Order = Literal["recency", "creation"]


@record
class IndexPlace:
    """A place in a list: behind this session, whose time by the list's order was this."""

    at_ms: int
    session: SessionId

    @classmethod
    def parse(cls, text: str) -> IndexPlace:
        """Reads what `str` gives; raises ValueError for anything else."""
        at, _, session = text.partition("/")
        if not (at.isdigit() and len(at) <= _DIGITS and len(session) == 36):
            raise ValueError(f"not a place in a list of sessions: {text!r}")
        return cls(int(at), SessionId(session))

    def __str__(self) -> str:
        return f"{self.at_ms}/{self.session}"

    @property
    def key(self) -> bytes:
        """The end of the member: what the members of one list are ordered by."""
        return f"{self.at_ms:0{_DIGITS}d}/{self.session}".encode()


@record
class Listed:
    """The list that is wanted: the roots of a namespace that began by one of these programs."""

    namespace: str = ""
    sources: tuple[Source, ...] = ("cli",)
    shelved: bool = False
    """Those that people have put away, and no others."""
    order: Order = "recency"
    descending: bool = True

    def prefixes(self) -> Iterator[bytes]:
        shelf, order = "a" if self.shelved else "l", self.order[0]
        for source in dict.fromkeys(self.sources):
            yield f"{self.namespace}/{shelf}/{source}/{order}/".encode()


class FleetIndex(Port):
    """The part of the broker that lists sessions."""

    _logs: Logs

    async def listed(
        self, wanted: Listed, after: IndexPlace | None = None, limit: int = 50
    ) -> tuple[IndexPlace, ...]:
        """A page of a list, from its beginning or from behind a place."""
        limit = min(limit, MOST_LISTED)
        shards, prefixes = range(self.config.shards), list(wanted.prefixes())
        rows = [
            self._read(wanted, self.keys.index(shard), prefix, after, limit)
            for prefix in prefixes
            for shard in shards
        ]
        pages = await self._connection.commands(rows) if rows else []
        # Each page is in the list's order already: its keys stand behind a prefix of one length.
        ends = [
            [member[len(prefixes[place // len(shards)]) :] for member in page]
            for place, page in enumerate(pages)
        ]
        merged = heapq.merge(*ends, reverse=wanted.descending)
        return tuple(_place(end) for end, _ in zip(merged, range(limit), strict=False))

    def _read(
        self, wanted: Listed, key: str, prefix: bytes, after: IndexPlace | None, limit: int
    ) -> Sequence[str | bytes | int]:
        low, high = b"[" + prefix, b"(" + prefix + _BEHIND
        if wanted.descending:
            high = high if after is None else b"(" + prefix + after.key
            return ("ZREVRANGEBYLEX", key, high, low, "LIMIT", 0, limit)
        low = low if after is None else b"(" + prefix + after.key
        return ("ZRANGEBYLEX", key, low, high, "LIMIT", 0, limit)

    async def listed_heads(
        self, wanted: Listed, after: IndexPlace | None = None, limit: int = 50
    ) -> tuple[tuple[IndexPlace, SessionHead], ...]:
        """The same with the sessions' heads; one that was deleted meanwhile is left out."""
        places = await self.listed(wanted, after, limit)
        heads = {head.session: head for head in await self._logs.heads([place.session for place in places])}
        return tuple((place, heads[place.session]) for place in places if place.session in heads)

    async def enlist(self, session: SessionId, *, shelve: bool | None = None) -> bool:
        """Brings a root into the index if an earlier version made it; `shelve` puts it away, or back.

        Its tree comes to what upkeep looks at, too.
        Its log and its work are not touched. False for an agent, which its tree lists. Raises
        `UnknownSession`.
        """
        shard = self.keys.shard_of(session)
        keys = [
            self.keys.session(session),
            self.keys.index(shard),
            self.keys.sessions(shard),
            self.keys.to_archive(shard),
            self.keys.to_delete(shard),
        ]
        wanted = "" if shelve is None else str(int(shelve))
        enlist = call("enlist", keys, session=session, shelve=wanted)
        return self._is_done(await self._run(enlist, session), unless="AGENT")

    async def enlist_missing(self, heads: Iterable[SessionHead]) -> int:
        """Brings those of some sessions into the index that an earlier version made; how many there were."""
        missing = [head for head in heads if _is_missing(head)]
        for head in missing[:MOST_LISTED]:
            with suppress(UnknownSession):
                await self.enlist(head.session)
        return len(missing[:MOST_LISTED])


def _is_missing(head: SessionHead) -> bool:
    return head.agent_id == ROOT and not head.recency_ms and not head.labels.ephemeral


def _place(end: bytes) -> IndexPlace:
    at, _, session = end.decode().partition("/")
    return IndexPlace(int(at), SessionId(session))
