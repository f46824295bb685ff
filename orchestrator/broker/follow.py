"""Following a session's events from a cursor, through trimming, expiry and a restored Redis.

The event queue is a convenience, the rollout the truth. A cursor names an event (n) and the rollout
entry that it belonged to (seq, hash8). While the queue still leads from there on, the follower gets
events. When it does not, it is told of the gap, gets the log from `seq`, and then events again.
Payloads stay opaque: whoever follows turns a `Gap` into a `warning` and log entries into events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, Protocol

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import SessionHead, StoredEntry, StoredEvent
from orchestrator.core.chain import GENESIS
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

_PAGE = 500


def hash8_of(chain: bytes) -> str:
    """The first 8 hex digits of a chain value."""
    return chain[:4].hex()


@record
class EqCursor:
    """A place in a session's events that a client can keep and come back with."""

    n: int
    seq: int
    hash8: str

    @classmethod
    def parse(cls, text: str) -> EqCursor:
        """Reads `n.seq.hash8`; raises ValueError for anything else."""
        n, seq, hash8 = text.split(".")
        if len(hash8) != 8 or int(n) < 0 or int(seq) < 0:
            raise ValueError(f"not an event cursor (n.seq.hash8 is expected): {text!r}")
        int(hash8, 16)
        return cls(int(n), int(seq), hash8)

    @classmethod
    def behind(cls, event: StoredEvent) -> EqCursor:
        """The place behind an event."""
        return cls(event.n, event.seq, event.hash8)

    @classmethod
    def within(cls, entry: StoredEntry) -> EqCursor:
        """The place behind an entry that fills a gap: the rest of the log is owed, and no event."""
        return cls(-1, entry.seq, hash8_of(entry.chain))

    @classmethod
    def at(cls, head: SessionHead) -> EqCursor:
        """The end: only what comes from now on."""
        return cls(head.eq_n, head.seq, hash8_of(head.head))

    def names(self, event: StoredEvent) -> bool:
        """Whether the event is the very one."""
        return (event.n, event.seq, event.hash8) == (self.n, self.seq, self.hash8)

    def __str__(self) -> str:
        return f"{self.n}.{self.seq}.{self.hash8}"


BEGINNING = EqCursor(0, 0, hash8_of(GENESIS))
NOWHERE = EqCursor(0, 0, "f" * 8)
"""A place that no log has: who follows from there is told that Redis went back, and gets the whole log."""


@record
class Followed:
    """Events that one read has found, in their order and without a hole: at least one."""

    events: tuple[StoredEvent, ...]
    """The very answer of the reader, wherever all of it is new: followers who share reads share it."""

    @property
    def cursor(self) -> EqCursor:
        """The place behind the last of them."""
        return EqCursor.behind(self.events[-1])


@record
class Replayed:
    """A log entry, in place of the events that are gone."""

    entry: StoredEntry

    @property
    def cursor(self) -> EqCursor:
        """The place behind it, for who is cut off there."""
        return EqCursor.within(self.entry)


@record
class Gap:
    """The cursor leads nowhere: the log follows from `after_seq`, then events.

    `trimmed`: the events in between are no longer kept. `rewound`: Redis does not hold the entry that
    the cursor names, so what the client saw after some earlier point never happened.
    Entries of a long log up to `sealed_seq` are in the archive and not replayed here.
    """

    reason: Literal["trimmed", "rewound"]
    after_seq: int
    sealed_seq: int


@record
class CaughtUp:
    """The replay after a gap is over; events follow, and this cursor comes back here."""

    cursor: EqCursor


Item = Followed | Gap | Replayed | CaughtUp


class EventReader(Protocol):
    """The reads that following takes."""

    async def head(self, session: SessionId) -> SessionHead | None: ...
    async def read_eq(
        self, session: SessionId, after_n: int = 0, count: int = 1_000
    ) -> tuple[StoredEvent, ...]: ...
    async def wait_eq(
        self, session: SessionId, after_n: int, timeout_s: float
    ) -> tuple[StoredEvent, ...]: ...
    async def wait_behind(
        self, session: SessionId, at: EqCursor, timeout_s: float
    ) -> tuple[StoredEvent, ...] | None: ...
    async def read_rollout(
        self, session: SessionId, after_seq: int = 0, count: int = 1_000
    ) -> tuple[StoredEntry, ...]: ...


async def follow(
    reader: EventReader,
    session: SessionId,
    cursor: EqCursor = BEGINNING,
    *,
    idle_s: float = 5.0,
    newborn: bool = False,
) -> AsyncGenerator[Item]:
    """Yields what happened after `cursor`, forever; raises `Unavailable` when Redis goes away.

    Come back with the last cursor then. Every `idle_s` without an event the place is checked again.
    Of a `newborn` session nothing can be missing yet: the first wait comes without a check.
    """
    at, seen = cursor, False
    while True:
        # Behind an event that was read here, the check and the wait are one request.
        events = await reader.wait_behind(session, at, idle_s) if seen else None
        if events is None:
            gap = None if newborn else await _gap_at(reader, session, at)
            if gap is not None:
                yield gap
                head = await _head(reader, session)
                async for entry in _log(reader, session, gap.after_seq, head.seq):
                    yield Replayed(entry)
                at = EqCursor.at(head)
                yield CaughtUp(at)
            events, seen, newborn = await reader.wait_eq(session, at.n, idle_s), False, False
        found = Followed(_without_hole(events, at.n))
        if found.events:
            at, seen = found.cursor, True
            yield found


def _without_hole(events: tuple[StoredEvent, ...], after_n: int) -> tuple[StoredEvent, ...]:
    """The events up to the first hole: trimmed while we were away, and found by the next look at the gap."""
    if events and events[-1].n == after_n + len(events):
        return events
    return tuple(event for n, event in enumerate(events, after_n + 1) if event.n == n)


async def _gap_at(reader: EventReader, session: SessionId, at: EqCursor) -> Gap | None:
    """None if the events after `at` are all there and belong to the log that `at` saw.

    Asked before every wait that does not look by itself: a client library reconnects silently, and the
    server behind the new connection may have been put back to an earlier moment.
    """
    at_place = await reader.read_eq(session, max(0, at.n - 1), 1)
    if _same(at_place, at):
        return None
    head = await _head(reader, session)
    if not await _in_log(reader, session, at, head):
        return Gap("rewound", 0, head.sealed_seq)
    # Both places are read at once, and behind the head: a commit between two reads must not look like a hole,
    # nor give the place's number to another event while the next one looks like the one that follows.
    kept = await reader.read_eq(session, max(0, at.n - 1), 2)
    if any(event.n == at.n and event.seq > at.seq for event in kept):
        # Redis lost the event, and no entry: its number is now that of a later one, which was not told.
        return Gap("trimmed", at.seq, head.sealed_seq)
    if at.n == head.eq_n or any(event.n == at.n + 1 for event in kept):
        return None
    # The log that the client saw is there: what is lost are events, as by trimming, and none of its entries.
    return Gap("trimmed", at.seq, head.sealed_seq)


def _same(kept: tuple[StoredEvent, ...], at: EqCursor) -> bool:
    """The very event is still there; the queue has no holes, so all after it are, too."""
    return any(map(at.names, kept))


async def _in_log(reader: EventReader, session: SessionId, at: EqCursor, head: SessionHead) -> bool:
    if at.seq == head.seq:
        return at.hash8 == hash8_of(head.head)
    if at.seq == 0:
        return at.hash8 == BEGINNING.hash8
    if at.seq > head.seq:
        return False
    if at.seq <= head.sealed_seq:
        # Only the archive could tell; a branch that old was not lost with the last seconds.
        return True
    entries = await reader.read_rollout(session, at.seq - 1, 1)
    if entries and entries[0].seq == at.seq:
        return hash8_of(entries[0].chain) == at.hash8
    # It may have been sealed since the head was read.
    return at.seq <= (await _head(reader, session)).sealed_seq


async def _head(reader: EventReader, session: SessionId) -> SessionHead:
    head = await reader.head(session)
    if head is None:
        raise UnknownSession(session)
    return head


async def _log(reader: EventReader, session: SessionId, after: int, last: int) -> AsyncIterator[StoredEntry]:
    while after < last:
        page = await reader.read_rollout(session, after, _PAGE)
        for entry in page:
            if entry.seq > last:
                return
            yield entry
        if not page:
            return
        after = page[-1].seq
