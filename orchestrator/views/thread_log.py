"""The turns of a thread in its log, found from either end, and read no further than is asked for.

A turn's stretch of the log goes from the event that begins its task to the next such event. A root that was
forked begins with the turns of its source, as far as that is still there. Turns that were rolled back are
left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import field
from typing import TypeAlias

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.blobs import may_refer, references, resolve
from orchestrator.core.entries.stored import Kind, decode_entry, stored_kind
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import ExecCommandEnd, TaskStarted, ThreadRolledBack, UserMessage
from orchestrator.rollouts.source import LogSource
from orchestrator.views.event import Event
from orchestrator.views.for_tenants import for_tenant
from orchestrator.views.past import MOST as MOST_READ
from orchestrator.views.past import STRETCH
from orchestrator.views.rollbacks import Rollbacks
from orchestrator.views.turns.fold import turns_of
from orchestrator.views.turns.log import event_of, may_tell
from orchestrator.views.turns.open_turn import lasts
from orchestrator.views.turns.records import CommandExecution, ItemId, ItemStatus, ThreadItem, Turn

OPENING = 64
"""Entries of a forked session's log among which the fact stands that names its source."""
MOST_LEGS = 100
"""Forks of forks that are followed back."""
MOST_BEHIND = 20_000
"""Entries behind a turn in which ends of its processes are looked for."""

_Told: TypeAlias = tuple[Kind, StoredEntry]
"""An entry with its kind, which several ask for."""


@record
class Leg:
    """A session's log up to an entry."""

    session: SessionId
    tree: TreeId
    through: int


@record
class Stretch:
    """A turn's entries, `start` to `end` in the log of a leg; `hash8` is the chain's value at `start`."""

    leg: int
    start: int
    end: int
    hash8: str
    turn: str
    said: int = 0
    """Messages of people in it."""
    rolled_back: int = 0
    """Messages of people, in it or before it, that were taken back behind it."""
    entries: tuple[StoredEntry, ...] | None = None
    """Its events, if they were read on the way."""


@record
class ThreadLog:
    """A thread's turns, in the logs that tell of them."""

    found: LogSource
    thread: SessionId
    legs: tuple[Leg, ...]
    """The thread's own log, then those that it was forked from."""
    rollbacks: Rollbacks = field(default_factory=Rollbacks)
    is_tenants: bool = False
    """Whether it is of a namespace, whose tenant learns nothing of the machine."""

    @classmethod
    async def of(cls, found: LogSource, head: SessionHead, rollbacks: Rollbacks | None = None) -> ThreadLog:
        """`rollbacks`: what the process knows of logs already."""
        legs = [Leg(head.session, head.tree, head.seq)]
        at = head if head.agent_id == ROOT and "forked_from" in head.summary else None
        while at is not None and len(legs) < MOST_LEGS:
            source = await _source(found, at)
            at = None if source is None else source[0]
            if source is not None:
                legs.append(Leg(source[0].session, source[0].tree, source[1]))
        tenants = bool(head.labels.namespace)
        return cls(found, head.session, tuple(legs), rollbacks or Rollbacks(), tenants)

    async def back(self, leg: int = 0, last: int | None = None) -> AsyncIterator[Stretch]:
        """The turns up to an entry of a leg (or the log's end), newest first.

        The entry has to be a turn's last one, and no turn behind it may have been rolled back.
        """
        taken_back = 0
        async for stretch in self._back(leg, last):
            taken_back += stretch.rolled_back
            if taken_back:
                taken_back = max(0, taken_back - stretch.said)
            else:
                yield stretch

    async def forward(self, leg: int | None = None, start: int = 0) -> AsyncIterator[Stretch]:
        """The turns that begin at an entry of a leg or later, oldest first.

        Where something was taken back, it reads to the end of the log before the first one.
        """
        oldest = len(self.legs) - 1 if leg is None else leg
        if await self._takes_nothing_back():
            async for stretch in self._forward(oldest, start):
                yield stretch
            return
        found: list[Stretch] = []
        async for stretch in self.back():
            if (-stretch.leg, stretch.start) < (-oldest, start):
                break
            found.append(replace(stretch, entries=None))
        for stretch in reversed(found):
            yield stretch

    async def _takes_nothing_back(self) -> bool:
        for one in self.legs:
            if await self.rollbacks.any_in(self.found, one.session, one.through, _takes_back):
                return False
        return True

    async def _forward(self, oldest: int, start: int) -> AsyncIterator[Stretch]:
        for number in range(oldest, -1, -1):
            one, events = self.legs[number], list[_Told]()
            after = max(0, start - 1) if number == oldest else 0
            async for stored in self._entries_on(one, after):
                kind = stored_kind(stored.payload)
                begins = kind is TaskStarted
                if begins and events:
                    yield _stretch(number, stored.seq - 1, events)
                if begins:
                    events = [(kind, stored)]
                elif events and may_tell(kind):
                    events.append((kind, stored))
            if events:
                yield _stretch(number, one.through, events)

    async def _entries_on(self, leg: Leg, after: int) -> AsyncIterator[StoredEntry]:
        stretch = STRETCH
        while after < leg.through:
            through = min(leg.through, after + stretch)
            async for stored in self.found.log(leg.session, through, after):
                yield stored
            after, stretch = through, min(2 * stretch, MOST_READ)

    async def _back(self, leg: int, last: int | None) -> AsyncIterator[Stretch]:
        for number, one in enumerate(self.legs[leg:], leg):
            end = one.through if last is None or number != leg else min(last, one.through)
            events: list[_Told] = []
            async for told in self._told_back(one, end):
                for kind, stored in told:
                    events.append((kind, stored))
                    if kind is TaskStarted:
                        yield _stretch(number, end, events[::-1])
                        events, end = [], stored.seq - 1

    async def _told_back(self, leg: Leg, last: int) -> AsyncIterator[list[_Told]]:
        """The entries up to one that may tell something, newest first, some at a time."""
        stretch = STRETCH
        while last > 0:
            after = max(0, last - stretch)
            read = self.found.log(leg.session, last, after)
            told = [(kind, stored) async for stored in read if may_tell(kind := stored_kind(stored.payload))]
            yield told[::-1]
            last, stretch = after, min(2 * stretch, MOST_READ)

    async def last_of_turn(self, leg: int, seq: int) -> int:
        """The last entry of the turn that an entry belongs to."""
        one, stretch = self.legs[leg], STRETCH
        while seq < one.through:
            through = min(one.through, seq + stretch)
            async for stored in self.found.log(one.session, through, seq):
                if stored_kind(stored.payload) is TaskStarted:
                    return stored.seq - 1
            seq, stretch = through, min(2 * stretch, MOST_READ)
        return one.through

    async def end_of_task(self, stretch: Stretch) -> int | None:
        """The entry with which a turn's task ended; None while it runs."""
        leg, ended = self.legs[stretch.leg], None
        async for stored in self.found.log(leg.session, stretch.end, stretch.start):
            if stored_kind(stored.payload) is f.TaskEnded:
                ended = stored.seq
        return ended

    async def turn(self, stretch: Stretch) -> Turn | None:
        """The turn with its items; None if its events tell of none."""
        leg, entries = self.legs[stretch.leg], stretch.entries
        if entries is None:
            read = self.found.log(leg.session, stretch.end, stretch.start - 1)
            entries = tuple([stored async for stored in read if may_tell(stored_kind(stored.payload))])
        turn = next(iter(turns_of(self.thread, await self._events(leg, entries))), None)
        going = set() if turn is None else {item.id for item in turn.items if _goes_on(item)}
        if not going:
            return turn
        ends = [stored async for stored in self._ends_behind(leg, stretch.end, going)]
        return next(iter(turns_of(self.thread, await self._events(leg, (*entries, *ends)))), None)

    async def _ends_behind(self, leg: Leg, last: int, calls: set[ItemId]) -> AsyncIterator[StoredEntry]:
        """The ends of processes that go on behind their turn, looked for in the entries that follow it."""
        async for stored in self.found.log(leg.session, min(leg.through, last + MOST_BEHIND), last):
            if stored_kind(stored.payload) is not ExecCommandEnd:
                continue
            call = ItemId(str(decode_entry(stored.payload).payload.get("call_id")))
            if call in calls:
                yield stored
                calls.remove(call)
                if not calls:
                    return

    async def _events(self, leg: Leg, entries: Sequence[StoredEntry]) -> list[Event]:
        logged = [event for event in map(event_of, entries) if event is not None]
        if self.is_tenants:
            logged = [replace(event, msg=for_tenant(event.msg)) for event in logged]
        if not may_refer(b"\n".join([stored.payload for stored in entries])):
            return logged
        wanted = {digest for event in logged for digest in references(event.msg)}
        texts = await self.found.large_texts(leg.tree, wanted) if wanted else {}
        return [replace(event, msg=resolve(event.msg, texts.get)) for event in logged]

    async def hash8(self, leg: int, seq: int) -> str | None:
        """The chain's value at an entry, shortened; None if the log does not have it."""
        if leg >= len(self.legs) or not 0 < seq <= self.legs[leg].through:
            return None
        async for stored in self.found.log(self.legs[leg].session, seq, seq - 1):
            return _hash8(stored)
        return None


async def begun_since(found: LogSource, root: SessionHead, at_ms: int) -> list[tuple[int, str]]:
    """When turns of a thread began, and their ids, newest first, down to the one that ran at a time."""
    begun: list[tuple[int, str]] = []
    async for stretch in (await ThreadLog.of(found, root)).back():
        event = event_of(stretch.entries[0]) if stretch.entries else None
        begun.append(((event.at_ms or 0) if event else 0, stretch.turn))
        if begun[-1][0] <= at_ms:
            break
    return begun


def turn_at(begun: Sequence[tuple[int, str]], at_ms: int) -> str | None:
    """The last turn that had begun at a time: the one in which an agent was told to work then."""
    return next((turn for began_ms, turn in begun if began_ms <= at_ms), None)


def _stretch(leg: int, end: int, events: Sequence[_Told]) -> Stretch:
    _, first = events[0]
    return Stretch(
        leg,
        first.seq,
        end,
        _hash8(first),
        decode_entry(first.payload).id,
        said=sum(kind is UserMessage for kind, _ in events),
        rolled_back=sum(_taken_back(stored) for kind, stored in events if kind is ThreadRolledBack),
        entries=tuple([stored for _, stored in events]),
    )


def _hash8(stored: StoredEntry) -> str:
    return stored.chain.hex()[:8]


def _goes_on(item: ThreadItem) -> bool:
    """Whether the item is a process that has not ended with its turn."""
    return isinstance(item, CommandExecution) and lasts(item) and item.status is ItemStatus.IN_PROGRESS


def _takes_back(stored: StoredEntry) -> bool:
    return stored_kind(stored.payload) is ThreadRolledBack


def _taken_back(stored: StoredEntry) -> int:
    return int(decode_entry(stored.payload).payload["num_turns"])


async def _source(found: LogSource, head: SessionHead) -> tuple[SessionHead, int] | None:
    """The session that a root was forked from, and its last entry then; None if that is gone."""
    async for stored in found.log(head.session, min(head.seq, OPENING)):
        if stored_kind(stored.payload) is not f.Forked:
            continue
        fact = f.decode(decode_entry(stored.payload).payload)
        assert isinstance(fact, f.Forked)
        parent = fact.parent
        source = await found.broker.logs.head(parent["session"])
        if source is None or source.seq < parent["seq"]:
            return None
        async for there in found.log(source.session, parent["seq"], parent["seq"] - 1):
            return (source, parent["seq"]) if there.chain.hex() == parent["chain"] else None
    return None
