"""The turns of a thread in its log, found from either end, and read no further than is asked for.

A turn's stretch of the log goes from the event that begins its task to the next such event. A root that was
forked begins with the turns of its source, as far as that is still there. Turns that the conversation has
no more are left out: those that were rolled back, and those that input left by going on from an earlier turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.blobs import may_refer, references, resolve
from orchestrator.core.entries import Kind, decode_entry, stored_kind
from orchestrator.core.evolve import evolve
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import decode_snapshot
from orchestrator.core.state import Queued, State
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import (
    ExecCommandEnd,
    TaskStarted,
    ThreadRolledBack,
    TokenCount,
    UserMessage,
)
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.agent_past import MOST as MOST_READ
from orchestrator.views.agent_past import STRETCH
from orchestrator.views.event import Event, for_tenant
from orchestrator.views.readable import readable_head
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.log_events import event_of, may_tell
from orchestrator.views.turns.open_turn import lasts
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.turn_records import (
    CommandExecution,
    ItemId,
    ItemStatus,
    ThreadItem,
    Turn,
    TurnId,
)

# ── rollbacks ─────────────────────────────────────────────────────────────────────────────────────
# The logs of which a process knows that nothing in them takes turns back.
#
# Turns that were rolled back are told of behind them only. A log is looked through for that once, and
# what was added since each time after; a log that was put back to an earlier moment is looked through
# anew.


MOST_KNOWN = 1_000
"""Sessions; the least lately used are forgotten."""
MOST_AT_ONCE = 4_096
"""Entries of one read."""


@record
class Seen:
    """A log up to an entry with the chain's value there, and whether something in it takes turns back."""

    seq: int = 0
    chain: bytes = b""
    takes_back: bool = False


@dataclass(slots=True)
class Rollbacks:
    """The stretches of logs that were looked through, by session."""

    _seen: OrderedDict[SessionId, Seen] = field(default_factory=OrderedDict)

    async def any_in(
        self, found: LogSource, session: SessionId, through: int, takes_back: Callable[[StoredEntry], bool]
    ) -> bool:
        """Whether an entry up to `through` takes turns back."""
        seen = self._seen.pop(session, Seen())
        if not await _holds(found, session, seen):
            seen = Seen()
        while seen.seq < through:
            seen = await _further(found, session, seen, min(through, seen.seq + MOST_AT_ONCE), takes_back)
        self._seen[session] = seen
        while len(self._seen) > MOST_KNOWN:
            self._seen.popitem(last=False)
        return seen.takes_back


async def _holds(found: LogSource, session: SessionId, seen: Seen) -> bool:
    """Whether the log still has the entry up to which it was read."""
    if not seen.seq:
        return True
    async for stored in found.log(session, seen.seq, seen.seq - 1):
        return stored.chain == seen.chain
    return False


async def _further(
    found: LogSource, session: SessionId, seen: Seen, through: int, takes_back: Callable[[StoredEntry], bool]
) -> Seen:
    last, taken = None, seen.takes_back
    async for stored in found.log(session, through, seen.seq):
        taken, last = taken or takes_back(stored), stored
    # A log that ends before its head is read again by whoever comes next.
    return Seen(through, b"" if last is None else last.chain, taken)


# ── thread log ────────────────────────────────────────────────────────────────────────────────────


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
    taken_back: tuple[int | str, ...] = ()
    """The ways back behind it, in order: so many messages of people are rolled back, or input goes on from
    the turn of a response."""
    left: bool = False
    """Whether input has gone on from an earlier turn."""
    goes_on_at: int = 0
    """The entry within it from whose response input has gone on; 0 if none has."""
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

    async def back(
        self, leg: int = 0, last: int | None = None, *, left_too: bool = False
    ) -> AsyncIterator[Stretch]:
        """The turns that the conversation has as of an entry of a leg (or the log's end), newest first.

        The entry has to be a turn's last one, and no turn behind it may have been taken back. With `left_too`
        those that input has left are among them.
        """
        before = _Before()
        async for each in self._back(leg, last):
            stretch = before.seen(each)
            if stretch is not None and (left_too or not stretch.left):
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
                elif events and _is_read(kind):
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
            told = [(kind, stored) async for stored in read if _is_read(kind := stored_kind(stored.payload))]
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

    async def end_of(self, stretch: Stretch) -> int | None:
        """The entry with which a turn's task ended, or behind which input went on; None while it runs."""
        leg, ended = self.legs[stretch.leg], stretch.goes_on_at or None
        if ended is not None:
            return ended
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
        taken_back=_taken_back(events),
        entries=tuple([stored for _, stored in events]),
    )


def _hash8(stored: StoredEntry) -> str:
    return stored.chain.hex()[:8]


def _goes_on(item: ThreadItem) -> bool:
    """Whether the item is a process that has not ended with its turn."""
    return isinstance(item, CommandExecution) and lasts(item) and item.status is ItemStatus.IN_PROGRESS


def _takes_back(stored: StoredEntry) -> bool:
    return stored_kind(stored.payload) in (ThreadRolledBack, f.Rewound)


def _is_read(kind: Kind) -> bool:
    return may_tell(kind) or kind is f.Rewound


def _taken_back(events: Iterable[_Told]) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for kind, stored in events:
        if kind is f.Rewound:
            found.append(str(decode_entry(stored.payload).payload["response_id"]))
        elif kind is ThreadRolledBack:
            # A rollback says so behind what it does; input that goes on from a turn begins the next one.
            if found and isinstance(found[-1], str):
                found.pop()
            found.append(int(decode_entry(stored.payload).payload["num_turns"]))
    return tuple(found)


@dataclass(slots=True)
class _Before:
    """Tells turns that the conversation has from others, while a log is read from its end."""

    rolled_back: int = 0
    """Messages of people that are still to be taken back."""
    goes_on_from: str | None = None
    """The response from whose turn input has gone on: what comes behind that is left."""

    def seen(self, stretch: Stretch) -> Stretch | None:
        """The turn before, marked if it is left; None if it was rolled back."""
        for taken in reversed(stretch.taken_back):
            if self.goes_on_from is not None:
                break
            if isinstance(taken, str):
                self.goes_on_from = taken
            else:
                self.rolled_back += taken
        if self.goes_on_from is not None:
            there = _cut(stretch, self.goes_on_from)
            if there is None:
                return replace(stretch, left=True)
            stretch, self.goes_on_from = there, None
        if not self.rolled_back:
            return stretch
        self.rolled_back = max(0, self.rolled_back - stretch.said)
        return None


def _cut(stretch: Stretch, response: str) -> Stretch | None:
    """The turn as input goes on from a response of it; None if it has no such response."""
    said = there = before = 0
    for stored in stretch.entries or ():
        kind = stored_kind(stored.payload)
        said += kind is UserMessage
        if kind is TokenCount and decode_entry(stored.payload).payload.get("response_id") == response:
            there, before = stored.seq, said
    return replace(stretch, said=before, goes_on_at=there) if there else None


async def _source(found: LogSource, head: SessionHead) -> tuple[SessionHead, int] | None:
    """The session that a root was forked from, and its last entry then; None if that is gone, or damaged."""
    async for stored in found.log(head.session, min(head.seq, OPENING)):
        if stored_kind(stored.payload) is not f.Forked:
            continue
        fact = f.decode(decode_entry(stored.payload).payload)
        assert isinstance(fact, f.Forked)
        parent = fact.parent
        source = await readable_head(found.broker.logs, parent["session"])
        if source is None or source.seq < parent["seq"]:
            return None
        async for there in found.log(source.session, parent["seq"], parent["seq"] - 1):
            return (source, parent["seq"]) if there.chain.hex() == parent["chain"] else None
    return None


# ── fold ──────────────────────────────────────────────────────────────────────────────────────────
# The turns that a log, or a slice of one, tells of.


def turns_of(session: SessionId, events: Iterable[Event]) -> tuple[Turn, ...]:
    """The turns that events of a log tell of, oldest first; the last one may still run.

    A slice of a log will do: what happened in a turn whose begin is not among the events is left out.
    """
    projector = Projector(session, counts=False)
    turns: dict[TurnId, Turn] = {}
    for event in events:
        for change in projector.receive(event):
            match change:
                case r.TurnCompleted(turn):
                    turns[turn.id] = turn
                case r.ItemCompleted(turn=id, item=item) if id in turns:
                    turns[id] = _with(turns[id], item)
                case r.TurnsDropped(count):
                    turns = _kept(turns, count)
                case _:
                    pass
    running = projector.turn
    return (*turns.values(), *((running,) if running is not None else ()))


def _with(turn: Turn, item: r.ThreadItem) -> Turn:
    """The turn with an item that ended behind it."""
    return replace(turn, items=tuple(item if one.id == item.id else one for one in turn.items))


def _kept(turns: Mapping[TurnId, Turn], count: int) -> dict[TurnId, Turn]:
    """The turns before the last `count` of a person."""
    said = [id for id, turn in turns.items() if any(isinstance(item, r.UserMessage) for item in turn.items)]
    if not count or not said:
        return dict(turns)
    ids = list(turns)
    return {id: turns[id] for id in ids[: ids.index(said[-min(count, len(said))])]}


# ── queued ────────────────────────────────────────────────────────────────────────────────────────
# The inputs that wait for a session's running task to end, from its snapshot and the log behind it.


_TOLD_BY = frozenset({f.InputQueued, f.TaskBegun, f.QueueOrdered, f.QueuedEdited})


async def waiting_inputs(found: LogSource, head: SessionHead) -> tuple[Queued, ...]:
    """The queue as the log has it; what no worker has read is not in it.

    An idle session has one too, while it closes and waits for its agents or processes.
    """
    data = await found.broker.logs.snapshot_of(head.session)
    decoded = decode_snapshot(data, found.secret) if data else None
    state, after = State(), 0
    if decoded is not None and decoded[1] <= head.seq:
        state, after = State(queue=decoded[0].queue), decoded[1]
    async for stored in found.log(head.session, head.seq, after):
        if stored_kind(stored.payload) in _TOLD_BY:
            # The rule of the fold itself; nothing else of the state matters to it.
            state = evolve(state, decode_entry(stored.payload), stored.seq)
    return await _whole(found, head, state.queue)


async def _whole(found: LogSource, head: SessionHead, queue: tuple[Queued, ...]) -> tuple[Queued, ...]:
    wanted = {digest for each in queue for item in each.turn.items for digest in references(item)}
    if not wanted:
        return queue
    texts = await found.large_texts(head.tree, wanted)
    return tuple(
        replace(each, turn=replace(each.turn, items=tuple(resolve(i, texts.get) for i in each.turn.items)))
        for each in queue
    )
