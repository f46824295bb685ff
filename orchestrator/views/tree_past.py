"""A tree as it was at an entry of its log: folded from there, with a view kept at each so many entries.

The views are in this process's memory and nowhere else. They share their agents with each other: an agent
is kept once for as many views as it stays the same in. What a tree's log does not tell (what an agent waited
for, its last line, its tokens) is read from the sessions' logs as they were then; what no log tells is none.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import DamagedEntry, UnknownSession
from orchestrator.broker.records import SessionHead, StoredEntry, TreeEntry
from orchestrator.core import facts as f
from orchestrator.core.entries import Kind, line_ms, stored_kind
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, RegistryView, fold_tree
from orchestrator.rollouts.source import LogSource
from orchestrator.rollouts.tree_log import tree_fact
from orchestrator.views.tree import TAIL, Doing, TreeLine, doing_of, tree_line

RUNG: Final = 1_024
"""Entries between two views that are kept."""
SLICE: Final = 128
"""Entries that are read and folded before others have their turn: a few milliseconds."""
MOST_MARKS: Final = 2_000
GAP_MS: Final = 300_000
"""A stretch without an entry that is drawn as a gap."""
AT_ONCE: Final = 16
MOST_LOOKED: Final = 64
"""Agents of which a past view reads their own logs; of others it says what the tree's log does."""

MarkKind: TypeAlias = Literal["spawn", "end", "failure", "approval", "decision", "takeover", "budget"]
_ENDED: Final = frozenset({"ready", "canceled", "idle"})


@record
class Mark:
    """An entry of a tree's log that a timeline shows apart."""

    seq: int
    at_ms: int
    kind: MarkKind
    line: TreeLine


@record
class Bucket:
    """A stretch of a timeline that has entries: its first one, and how many there are."""

    seq: int
    at_ms: int
    entries: int


@record
class Timeline:
    """A tree's log as bars, with marks and gaps."""

    first_ms: int
    last_ms: int
    tree_seq: int
    buckets: tuple[Bucket, ...]
    gaps: tuple[tuple[int, int], ...]
    marks: tuple[Mark, ...]
    """The last ones."""
    more: bool
    """Whether there were marks before."""


@record
class PastAgent:
    """An agent as it was."""

    agent_id: int
    session: SessionId
    agent: Agent | None
    """Its record; None for the root, which has none."""
    seq: int | None = None
    """Where its log was; None where that is not to be found any more."""
    doing: Doing | None = None
    at_work: bool | None = None
    """Whether a task ran, as far as the end of its log tells."""


@record
class PastTree:
    """A tree as it was behind an entry of its log."""

    tree_seq: int
    at_ms: int
    view: RegistryView
    agents: tuple[PastAgent, ...]


@dataclass(slots=True)
class TreePast:
    """The past of one tree, for all who look at it."""

    broker: Broker
    tree: TreeId
    _view: RegistryView = field(default_factory=RegistryView)
    """Behind the last entry that was read."""
    _rungs: list[RegistryView] = field(default_factory=list)
    """The views behind each `RUNG` entries."""
    _times: array[int] = field(default_factory=lambda: array("q"))
    _marks: list[Mark] = field(default_factory=list)
    _dropped: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def read(self) -> int:
        """The entries that were read."""
        return len(self._times)

    async def read_on(self) -> None:
        """Reads what was added to the log; all of it anew where Redis was put back."""
        async with self._turn:
            if self._times and not await self._is_there():
                self._view, self._rungs, self._marks = RegistryView(), [], []
                self._times, self._dropped = array("q"), False
            while page := await self.broker.logs.read_tree(self.tree, self.read, self._slice):
                self._take(page)
                await asyncio.sleep(0)

    @property
    def _slice(self) -> int:
        """The entries to be read next: no view that is kept lies within them."""
        return min(SLICE, RUNG - self.read % RUNG)

    async def _is_there(self) -> bool:
        last = await self.broker.logs.read_tree(self.tree, self.read - 1, 1)
        return bool(last) and last[0].at_ms == self._times[-1]

    def _take(self, page: Sequence[TreeEntry]) -> None:
        self._view = fold_tree(map(tree_fact, page), self._view)
        self._times.extend(entry.at_ms for entry in page)
        if self.read % RUNG == 0:
            self._rungs.append(self._view)
        self._marks += [mark for entry in page if (mark := mark_of(entry)) is not None]
        if len(self._marks) > MOST_MARKS:
            del self._marks[:-MOST_MARKS]
            self._dropped = True

    def timeline(self, buckets: int) -> Timeline:
        """The log as so many stretches at most; of those without an entry none is told."""
        times = self._times
        if not times:
            return Timeline(0, 0, 0, (), (), (), more=False)
        gaps, active_ms = list[tuple[int, int]](), 0
        places = [(0, 0)]
        """Of each entry: behind how many gaps it is, and behind how much time without them."""
        for before, now in pairwise(times):
            if now - before > GAP_MS:
                gaps.append((before, now))
            else:
                active_ms += max(0, now - before)
            places.append((len(gaps), active_ms))
        found, last = list[list[int]](), (-1, -1)
        splits = len(gaps) < buckets
        width = active_ms // max(1, buckets - len(gaps) if splits else buckets) + 1
        for seq, (behind, active) in enumerate(places, 1):
            place = behind if splits else 0, active // width
            if place != last:
                found.append([seq, times[seq - 1], 0])
                last = place
            found[-1][2] += 1
        bars = tuple(Bucket(*bar) for bar in found)
        return Timeline(times[0], times[-1], self.read, bars, tuple(gaps), tuple(self._marks), self._dropped)

    async def at(self, seq: int, root: SessionHead) -> PastTree:
        """The tree behind an entry that was read; raises `ValueError` for any other."""
        if not 1 <= seq <= self.read:
            raise ValueError(f"the tree's log has entries 1 to {self.read}")
        at_ms, view = self._times[seq - 1], await self._view_at(seq)
        named: list[tuple[int, SessionId, Agent | None]] = [(0, SessionId(self.tree), None)]
        named += [(number, SessionId(agent.session), agent) for number, agent in sorted(view.agents.items())]
        gate = asyncio.Semaphore(AT_ONCE)
        looked = await asyncio.gather(
            *(self._looked(session, at_ms, gate) for _, session, _ in named[:MOST_LOOKED])
        )
        looked += [(None, None, None)] * (len(named) - len(looked))
        agents = (
            PastAgent(number, session, agent, *found)
            for (number, session, agent), found in zip(named, looked, strict=True)
        )
        return PastTree(seq, at_ms, view, tuple(agents))

    async def _view_at(self, seq: int) -> RegistryView:
        if seq == self.read:
            return self._view
        rung = seq // RUNG
        view, after = self._rungs[rung - 1] if rung else RegistryView(), rung * RUNG
        entries = await self.broker.logs.read_tree(self.tree, after, seq - after) if seq > after else ()
        return fold_tree(map(tree_fact, entries), view)

    async def _looked(
        self, session: SessionId, at_ms: int, gate: asyncio.Semaphore
    ) -> tuple[int | None, Doing | None, bool | None]:
        """Where a session's log was then, what its end told, and whether a task ran."""
        async with gate:
            try:
                return await self._end_then(session, at_ms)
            except (UnknownSession, DamagedEntry, ValueError, KeyError, TypeError):
                return None, None, None

    async def _end_then(self, session: SessionId, at_ms: int) -> tuple[int | None, Doing | None, bool | None]:
        logs, head = self.broker.logs, await self.broker.logs.head(session)
        if head is None:
            return None, None, None
        low, high = 0, head.seq
        while low < high:
            middle = (low + high + 1) // 2
            found = await logs.read_rollout(session, middle - 1, 1)
            if not found or found[0].seq != middle:
                # It left Redis for the archive.
                return None, None, None
            low, high = (middle, high) if line_ms(found[0].payload) <= at_ms else (low, middle - 1)
        entries = await logs.read_rollout(session, max(0, low - TAIL), min(TAIL, low)) if low else ()
        return low, doing_of(entries, _without_summary(head)), _works(entries)


async def place_then(found: LogSource, head: SessionHead, at_ms: int) -> int:
    """The last entry of a session's log that is not later than a time, wherever it is kept; 0 for none."""
    low, high = 0, head.seq
    while low < high:
        middle = (low + high + 1) // 2
        there = [stored async for stored in found.log(head.session, middle, middle - 1)]
        later = bool(there) and line_ms(there[0].payload) > at_ms
        low, high = (low, middle - 1) if later else (middle, high)
    return low


def _without_summary(head: SessionHead) -> SessionHead:
    """The head without what it says of the session's last rest, which may be later."""
    return replace(head, meta=b"", created_ms=0)


_BEGINS: Final = frozenset[Kind]({f.TaskBegun, f.RequestBegun})
_ENDS: Final = frozenset[Kind]({f.TaskEnded, f.Closed})


def _works(entries: Sequence[StoredEntry]) -> bool | None:
    """Whether a task ran at the end of these entries, as far as they tell."""
    kinds = (stored_kind(stored.payload) for stored in reversed(entries))
    return next((kind in _BEGINS for kind in kinds if kind in _BEGINS | _ENDS), None)


def mark_of(entry: TreeEntry) -> Mark | None:
    """The mark of an entry; None for one that a timeline does not show apart."""
    line = tree_line(entry)
    kind = _kind(line, tree_fact(entry).message) if line.text else None
    return None if kind is None else Mark(entry.tree_seq, entry.at_ms, kind, line)


def _kind(line: TreeLine, message: Mapping[str, object]) -> MarkKind | None:
    match line.kind, message.get("event"), message.get("status"):
        case "takeover", _, _:
            return "takeover"
        case "subagent_lifecycle", "created", _:
            return "spawn"
        case "subagent_lifecycle", _, "failed":
            return "failure"
        case "subagent_lifecycle", "status", status if status in _ENDED:
            return "end"
        case "request_resolved", _, _:
            return "decision"
        case (("background_event" | "warning"), _, _):
            return "budget"
        case _ if line.text.startswith("? "):
            return "approval"
        case _:
            return None
