"""A tree as it was at an entry of its log: folded from there, with a view kept at each so many entries.

The views are packed, in this process's memory and nowhere else, and let go when nobody has asked for a while.
What a tree's log does not tell (what an agent waited for, its last line, its tokens) is read from the
sessions' logs as they were then; what no log tells is none.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import orjson
import zstandard

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import DamagedEntry
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, StoredEntry, TreeEntry
from orchestrator.core import facts as f
from orchestrator.core.calls.exec import DOUBT
from orchestrator.core.counts import counted
from orchestrator.core.entries import Kind, decode_entry, event_kind, line_ms, read_event, stored_kind
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, RegistryView, TreeFact, fold_tree
from orchestrator.core.tree import ROOT
from orchestrator.protocol import events as ev
from orchestrator.requests import TO_PEOPLE
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.tree_log import tree_fact
from orchestrator.views.tree import LIMITS_RAISED, TAIL, Doing, TreeLine, told_by, tree_line

RUNG: Final = 1_024
"""Entries between two views that are kept."""
SLICE: Final = 64
"""Entries that are read and folded before others have their turn: a few milliseconds."""
MOST_MARKS: Final = 2_000
GAP_MS: Final = 300_000
"""A stretch without an entry that is drawn as a gap."""
AT_ONCE: Final = 16
MOST_LOOKED: Final = 128
"""Agents of which a past view reads their own logs; of others it says what the tree's log does."""
CLOSE: Final = 16
"""Entries before a place that are read at first: mostly they tell all."""
AHEAD: Final = 8
"""Entries behind a place that is known to be reached: mostly the one that is looked for is among them."""
MOST_NEAR: Final = 8
MOST_GAPS: Final = 64
"""The longest pauses that are drawn as gaps."""
IDLE_S: Final = 600.0
"""A past that nobody has asked for in this time is not kept."""
MOST_PASTS: Final = 16
_LEVEL: Final = 3

MarkKind: TypeAlias = Literal[
    "spawn", "end", "failure", "approval", "decision", "takeover", "budget", "person", "snapshot"
]
NEWEST: Final = 512
"""Entries at the end of a session's log among which such marks are looked for at first."""
MOST_OF_SESSIONS: Final = 200
SAME_MS: Final = 1_000
"""Two logs tell of one takeover within this time."""
MOST_LOGS: Final = 16
_ENDED: Final = frozenset({"ready", "canceled", "idle"})
_SHOWN: Final = _ENDED | {"failed"}


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
    limits: Mapping[str, int] | None = None
    """None where a change since then does not say what was before it: it is of an earlier version."""

    @property
    def tokens(self) -> int | None:
        """The tokens that the tree had used, as the agents' logs tell; None where one of them does not."""
        used = [None if one.doing is None else one.doing.tokens for one in self.agents]
        known = [tokens for tokens in used if tokens is not None]
        # Those of an agent that was taken off the list are in no log that is looked at.
        whole = len(known) == len(used) == self.view.spawned + 1
        return sum(known) if whole else None


@record
class _Look:
    """A session's own log as it told of it in a stretch of time."""

    from_ms: int
    """The time of its last entry then."""
    until_ms: int
    """Before this nothing else is told."""
    seq: int
    doing: Doing
    at_work: bool | None

    def covers(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms < self.until_ms


@dataclass(slots=True)
class _Own:
    """The entries of a tree's log that a session wrote, and where its own log was at each."""

    tree_seqs: array[int] = field(default_factory=lambda: array("q"))
    seqs: array[int] = field(default_factory=lambda: array("q"))

    def by(self, tree_seq: int) -> tuple[int, int]:
        """The last of them up to an entry, and where the session's log was; zeros for none."""
        found = bisect_right(self.tree_seqs, tree_seq) - 1
        return (self.tree_seqs[found], self.seqs[found]) if found >= 0 else (0, 0)


@dataclass(slots=True)
class _Told:
    """The marks of a session's own log, each by its time, up to an entry."""

    seq: int = 0
    marks: list[tuple[int, TreeLine]] = field(default_factory=list)


@dataclass(slots=True)
class TreePast:
    """The past of one tree, for all who look at it.

    Its log is read by a task of its own, a few milliseconds at a time.
    """

    broker: Broker
    tree: TreeId
    _view: RegistryView = field(default_factory=RegistryView)
    """Behind the last entry that was read."""
    _rungs: list[bytes] = field(default_factory=list)
    """The views behind each `RUNG` entries, packed."""
    _near: dict[int, RegistryView] = field(default_factory=dict)
    """The views that were asked for last, by their entries."""
    _times: array[int] = field(default_factory=lambda: array("q"))
    """None is before the one in front of it, whatever a clock said."""
    _last_ms: int = 0
    """The last entry's time as it says it."""
    _gaps: list[int] = field(default_factory=list)
    """The entries that long pauses come before."""
    _own: dict[str, _Own] = field(default_factory=dict)
    _looks: dict[SessionId, _Look] = field(default_factory=dict)
    _marks: list[Mark] = field(default_factory=list)
    _told: dict[SessionId, _Told] = field(default_factory=dict)
    _dropped: bool = False
    _limits: list[tuple[int, Mapping[str, int | None] | None]] = field(default_factory=list)
    """Entries that changed limits, with those before; None where an entry does not say."""
    _end: int = 0
    _task: asyncio.Task[None] | None = None
    _waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def read(self) -> int:
        """The entries that were read."""
        return len(self._times)

    @property
    def end(self) -> int:
        """The entries that the log had when it was looked at last."""
        return max(self._end, self.read)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    async def read_on(self, patience_s: float | None = None) -> bool:
        """Has what was added to the log read; all of it anew where Redis was put back.

        Waits so long at most; whether all is read. The task goes on behind that.
        """
        while True:
            task = self._reading()
            await asyncio.wait({task}, timeout=patience_s)
            if not task.cancelled():
                return task.done() and task.result() is None

    async def reach(self, seq: int) -> None:
        """The same, until an entry is read, or all is."""
        while True:
            task = self._reading()
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((seq, reached))
            await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            if not task.cancelled():
                if task.done():
                    task.result()
                return

    def stop(self) -> None:
        """Reads no further, unless somebody waits for it."""
        if self._task is not None:
            self._task.cancel()

    def _reading(self) -> asyncio.Task[None]:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_all())
        return self._task

    async def _read_all(self) -> None:
        logs = self.broker.logs
        if self._times and not await self._is_there():
            self._forget()
        last = await logs.read_tree_back(self.tree, None, 1)
        self._end = last[0].tree_seq if last else 0
        self._tell()
        while page := await logs.read_tree(self.tree, self.read, self._slice):
            self._take(page)
            self._tell()
            await asyncio.sleep(0)

    @property
    def _slice(self) -> int:
        """The entries to be read next: no view that is kept lies within them."""
        return min(SLICE, RUNG - self.read % RUNG)

    async def _is_there(self) -> bool:
        last = await self.broker.logs.read_tree(self.tree, self.read - 1, 1)
        return bool(last) and last[0].at_ms == self._last_ms

    def _forget(self) -> None:
        self._view, self._rungs, self._near = RegistryView(), [], {}
        self._times, self._gaps, self._own, self._looks = array("q"), [], {}, {}
        self._marks, self._dropped, self._limits, self._told = [], False, [], {}

    def _tell(self) -> None:
        """Wakes those whose entries are read."""
        for seq, reached in self._waiting:
            if seq <= self.read and not reached.done():
                reached.set_result(None)
        self._waiting = [(seq, reached) for seq, reached in self._waiting if not reached.done()]

    def _take(self, page: Sequence[TreeEntry]) -> None:
        facts = [tree_fact(entry) for entry in page]
        self._view = fold_tree(facts, self._view)
        for entry, fact in zip(page, facts, strict=True):
            self._note(entry, fact)
        if self.read % RUNG == 0:
            self._rungs.append(packed(self._view))
        if len(self._marks) > MOST_MARKS:
            del self._marks[:-MOST_MARKS]
            self._dropped = True

    def _note(self, entry: TreeEntry, fact: TreeFact) -> None:
        times, at_ms = self._times, entry.at_ms
        if times and at_ms - times[-1] > GAP_MS:
            self._gaps.append(self.read)
        times.append(max(at_ms, times[-1]) if times else at_ms)
        self._last_ms = at_ms
        own = self._own.setdefault(entry.session, _Own())
        own.tree_seqs.append(entry.tree_seq)
        own.seqs.append(entry.seq)
        mark = mark_of(entry, fact)
        if mark is None:
            return
        self._marks.append(mark)
        if mark.kind == "budget" and LIMITS_RAISED in mark.line.text:
            self._limits.append((entry.tree_seq, _limits_before(fact)))

    # ── as a line ─────────────────────────────────────────────────────────────────────────────

    def timeline(self, buckets: int) -> Timeline:
        """The entries that were read as so many stretches at most; of those without an entry none is told."""
        times = self._times
        if not times:
            return Timeline(0, 0, 0, (), (), (), more=False)
        longest = sorted(self._gaps, key=lambda first: times[first - 1] - times[first])[:MOST_GAPS]
        starts = [0, *sorted(longest)]
        ends = [*starts[1:], self.read]
        active_ms = sum(times[end - 1] - times[start] for start, end in zip(starts, ends, strict=True))
        splits = len(longest) < buckets
        width = active_ms // max(1, buckets - len(longest) if splits else buckets) + 1
        bars, last, behind_ms = list[Bucket](), (-1, -1), 0
        for part, (first, end) in enumerate(zip(starts, ends, strict=True)):
            begin_ms, at = times[first] - behind_ms, first
            while at < end:
                number = (times[at] - begin_ms) // width
                to = bisect_left(times, begin_ms + (number + 1) * width, at + 1, end)
                place = part if splits else 0, number
                if place == last:
                    bars[-1] = replace(bars[-1], entries=bars[-1].entries + to - at)
                else:
                    bars.append(Bucket(at + 1, times[at], to - at))
                at, last = to, place
            behind_ms += times[end - 1] - times[first]
        gaps = tuple((times[first - 1], times[first]) for first in starts[1:])
        return Timeline(times[0], times[-1], self.read, tuple(bars), gaps, tuple(self._marks), self._dropped)

    async def marks_of_sessions(self, *, takeovers: bool) -> tuple[list[Mark], list[Mark]]:
        """Marks of people's words, folders' states and, if asked for, `takeovers` of the root: the newest,
        those of the root and of agents at work first.

        Each of the second list stands at the last entry that was read of the tree's log and is not behind
        it; those of the first one were before its first entry, and their place is 0. What the archive has is
        not told.
        """
        if not self.read and not takeovers:
            return [], []
        await self._read_sessions()
        found = [
            one
            for each in self._told.values()
            for one in each.marks
            if takeovers or one[1].kind != "takeover"
        ]
        marks = [
            Mark(bisect_right(self._times, at_ms), at_ms, _of_session(line), line)
            for at_ms, line in sorted(found, key=lambda one: one[0])[-MOST_OF_SESSIONS:]
        ]
        return [mark for mark in marks if not mark.seq], [mark for mark in marks if self._adds(mark)]

    async def _read_sessions(self) -> None:
        """Reads on in the sessions' own logs, at most the newest entries of each; a log that ends before what
        was read of it is read anew.
        """
        named = self._named(self._view)
        sessions = self._first(named, self.read)[:MOST_LOGS]
        ends = dict(zip(sessions, await self.broker.logs.ends(sessions), strict=True))
        asks, behind = list[tuple[SessionId, int, int]](), list[tuple[_Told, int]]()
        for session, end in ends.items():
            told = self._told.setdefault(session, _Told())
            if not end or end < told.seq:
                told = self._told[session] = _Told()
            if end and end > told.seq:
                after = max(told.seq, end - NEWEST)
                asks.append((session, after, end - after))
                behind.append((told, end))
        pages = await self.broker.logs.read_rollouts(asks)
        for (session, _, _), (told, end), page in zip(asks, behind, pages, strict=True):
            for entry in page or ():
                # Others look at the tree as well, and may have taken the entry in meanwhile.
                mark = told_of(entry, named[session][0]) if entry.seq > told.seq else None
                # A takeover may be told of by several entries.
                if mark is not None and mark not in told.marks[-1:]:
                    told.marks.append(mark)
            told.seq = max(told.seq, end)
            del told.marks[:-MOST_OF_SESSIONS]

    def _adds(self, mark: Mark) -> bool:
        """Whether a mark has a place in the tree's log, which does not tell the same by itself."""
        told = (one.at_ms for one in self._marks if one.kind == mark.kind and one.line.agent_id == ROOT)
        again = mark.kind == "takeover" and any(abs(at_ms - mark.at_ms) < SAME_MS for at_ms in told)
        return bool(mark.seq) and not again

    def _named(self, view: RegistryView) -> dict[SessionId, tuple[int, Agent | None]]:
        root: dict[SessionId, tuple[int, Agent | None]] = {SessionId(self.tree): (0, None)}
        return root | {
            SessionId(agent.session): (number, agent) for number, agent in sorted(view.agents.items())
        }

    # ── as it was ─────────────────────────────────────────────────────────────────────────────

    async def at(self, seq: int, limits: Mapping[str, int] | None = None) -> PastTree:
        """The tree behind an entry that was read; raises `ValueError` for any other.

        `limits` are those behind the last entry that was read.
        """
        if not 1 <= seq <= self.read:
            raise ValueError(f"the tree's log has entries 1 to {self.read}")
        at_ms, view = self._times[seq - 1], await self._view_at(seq)
        named = self._named(view)
        looks = await self._looked(self._first(named, seq), seq, at_ms)
        agents = (
            PastAgent(number, session, agent, look.seq, look.doing, look.at_work)
            if (look := looks.get(session)) is not None
            else PastAgent(number, session, agent)
            for session, (number, agent) in named.items()
        )
        return PastTree(seq, at_ms, view, tuple(agents), self._limits_at(seq, limits))

    def _limits_at(self, seq: int, limits: Mapping[str, int] | None) -> Mapping[str, int] | None:
        if limits is None:
            return None
        then: dict[str, int | None] = dict(limits)
        for changed, before in reversed(self._limits):
            if changed <= seq:
                break
            if before is None:
                return None
            then |= before
        return {kind: limit for kind, limit in then.items() if limit is not None}

    async def _view_at(self, seq: int) -> RegistryView:
        if seq == self.read:
            return self._view
        rung = seq // RUNG
        near = max((known for known in self._near if rung * RUNG <= known <= seq), default=0)
        if near:
            view, after = self._near[near], near
        else:
            view, after = unpacked(self._rungs[rung - 1]) if rung else RegistryView(), rung * RUNG
        entries = await self.broker.logs.read_tree(self.tree, after, seq - after) if seq > after else ()
        view = fold_tree(map(tree_fact, entries), view)
        self._near.pop(seq, None)
        self._near[seq] = view
        if len(self._near) > MOST_NEAR:
            del self._near[next(iter(self._near))]
        return view

    def _first(self, named: Mapping[SessionId, tuple[int, Agent | None]], seq: int) -> list[SessionId]:
        """The sessions whose own logs are looked at: the root's, those at work, those that changed last."""

        def order(session: SessionId) -> tuple[bool, int]:
            agent = named[session][1]
            wrote = self._own.get(session)
            return agent is not None and not agent.at_work, -(wrote.by(seq)[0] if wrote is not None else 0)

        root, *others = named
        return [root, *sorted(others, key=order)[: MOST_LOOKED - 1]]

    async def _looked(self, sessions: Sequence[SessionId], seq: int, at_ms: int) -> Mapping[SessionId, _Look]:
        """The sessions' own logs as they told at a time; one that is in the archive tells nothing."""
        lows = {session: self._low(session, seq) for session in sessions}
        found = dict[SessionId, _Look]()
        for session, (low, exactly) in lows.items():
            look = self._looks.get(session)
            if look is not None and look.covers(at_ms) and (look.seq == low if exactly else look.seq >= low):
                found[session] = look
        new = await looked(self.broker.logs, {s: low for s, low in lows.items() if s not in found}, at_ms)
        self._looks |= new
        return {**found, **new}

    def _low(self, session: SessionId, seq: int) -> tuple[int, bool]:
        """An entry that a session's log had at least at one of the tree's, and whether exactly that one."""
        if session not in self._own:
            return 0, False
        tree_seq, own = self._own[session].by(seq)
        return own, tree_seq == seq


_ACTS: Final[Mapping[Kind, str]] = {
    f.Stopping: "the turn of {} was stopped",
    f.Named: "{} was named",
    f.SettingsChanged: "settings of {} were changed",
    f.Rewound: "turns of {} were taken back",
    f.Redacted: "words of {} were redacted",
    f.Bundled: "a bundle was made of the tree of {}",
}
"""Acts of people that are no words for an agent."""
_TELLS: Final = frozenset[Kind]({f.TaskBegun, f.Steered, f.MailReceived, f.WorkspaceSaved, *_ACTS})
_TELLS_OF_LOSS: Final = frozenset[Kind]({ev.WarningEvent, ev.StreamError})
_LOSS: Final = re.compile(rf"call \S+ is {DOUBT}|stream error: the worker was lost ")


def told_of(entry: StoredEntry, agent_id: int) -> tuple[int, TreeLine] | None:
    """The mark of an entry of a session's own log, with its time; None for most."""
    kind = stored_kind(entry.payload)
    if kind not in _TELLS and not (agent_id == ROOT and kind in _TELLS_OF_LOSS):
        return None
    try:
        told = decode_entry(entry.payload).payload
        if kind in _TELLS_OF_LOSS:
            return _loss(line_ms(entry.payload), str(told.get("message")))
        fact = f.decode(told)
    except DamagedEntry:
        return None
    of = f"agent {agent_id}" if agent_id else "the root"
    match fact:
        case f.TaskBegun(by=by) | f.Steered(by=by) if by is not None:
            line = TreeLine("person", f"words for {of}", agent_id, by.who)
        case f.MailReceived(mail=mail) if person := mail.content.get("person"):
            line = TreeLine("person", f"words for {of}", agent_id, str(person))
        case f.Stopping(sender=by) | f.Named(by=by) | f.SettingsChanged(by=by) | f.Rewound(by=by) if by:
            line = TreeLine("person", _ACTS[kind].format(of), agent_id, by.who)
        case f.Redacted(who=who) | f.Bundled(who=who):
            line = TreeLine("person", _ACTS[kind].format(of), agent_id, who)
        case f.WorkspaceSaved(files=files):
            line = TreeLine(
                "snapshot", f"the folder of {of}: {counted(files.total, 'file')} changed", agent_id
            )
        case _:
            return None
    return line_ms(entry.payload), line


def _loss(at_ms: int, said: str) -> tuple[int, TreeLine] | None:
    """The takeover of a root of which the tree's log may not tell: it had no agents then."""
    if _LOSS.match(said) is None:
        return None
    return at_ms, TreeLine("takeover", "the root: its worker was lost, and another took over", ROOT)


def _of_session(line: TreeLine) -> MarkKind:
    match line.kind:
        case "person" | "takeover" as kind:
            return kind
        case _:
            return "snapshot"


class Pasts:
    """The pasts that a process keeps for all who look back: each until nobody has asked for it in a while."""

    def __init__(self, later: Callable[[float, Callable[[], None]], object] | None = None) -> None:
        """`later` calls a function in so many seconds: the event loop's own, if none is given."""
        self._later = later
        self._pasts: dict[TreeId, TreePast] = {}
        self._asked: dict[TreeId, int] = {}
        """When each was asked for last: the number of that question."""
        self._questions = 0

    def of(self, broker: Broker, tree: TreeId) -> TreePast:
        """A tree's past; the one that was asked for the longest time ago gives way to a new one."""
        past = self._pasts.pop(tree, None) or TreePast(broker, tree)
        if len(self._pasts) >= MOST_PASTS:
            self._drop(next(iter(self._pasts)))
        self._pasts[tree] = past
        # Of all trees together: a tree that is let go and comes back has no number of before.
        asked = self._asked[tree] = self._questions = self._questions + 1
        later = self._later or asyncio.get_running_loop().call_later
        later(IDLE_S, lambda: self._drop_if(tree, asked))
        return past

    def __len__(self) -> int:
        return len(self._pasts)

    def _drop_if(self, tree: TreeId, asked: int) -> None:
        if self._asked.get(tree) == asked:
            self._drop(tree)

    def _drop(self, tree: TreeId) -> None:
        self._asked.pop(tree, None)
        self._pasts.pop(tree).stop()


# ── packed views ──────────────────────────────────────────────────────────────────────────────────


def packed(view: RegistryView) -> bytes:
    """A view in a twentieth of its size."""
    agents = [(agent.record, agent.read_turn, agent.pending, agent.marked) for agent in view.agents.values()]
    return zstandard.compress(orjson.dumps((view.spawned, agents)), _LEVEL)


def unpacked(data: bytes) -> RegistryView:
    """The view again."""
    spawned, rows = orjson.loads(zstandard.decompress(data))
    agents = [Agent(record, read, (mail, urgent), marked) for record, read, (mail, urgent), marked in rows]
    return RegistryView({agent.agent_id: agent for agent in agents}, spawned)


# ── sessions' own logs ────────────────────────────────────────────────────────────────────────────


async def looked(
    logs: Logs, sessions: Mapping[SessionId, tuple[int, bool]], at_ms: int
) -> dict[SessionId, _Look]:
    """The logs of sessions as they told at a time, when each was at an entry at least, or exactly there."""
    ends = {session: end for session, end in zip(sessions, await logs.ends([*sessions]), strict=True) if end}
    lows = {session: min(sessions[session][0], end) for session, end in ends.items()}
    asks = [(session, max(0, low - CLOSE), min(low, CLOSE) + AHEAD) for session, low in lows.items()]
    found = dict(zip(lows, await logs.read_rollouts(asks), strict=True))
    gate = asyncio.Semaphore(AT_ONCE)
    searches = [
        _place(
            logs, session, (low, low if sessions[session][1] else ends[session]), found[session], at_ms, gate
        )
        for session, low in lows.items()
    ]
    searched = zip(ends, await asyncio.gather(*searches), strict=True)
    places = {session: place for session, place in searched if place is not None}
    tails = await _tails(logs, {session: place for session, (place, _) in places.items()}, found)
    told = dict[SessionId, _Look]()
    for session, tail in tails.items():
        place, until_ms = places[session]
        try:
            from_ms = line_ms(tail[-1].payload) if tail else 0
            told[session] = _Look(from_ms, until_ms, place, told_by(tail, place), _works(tail))
        except (ValueError, KeyError, TypeError):
            continue
    return told


async def _tails(
    logs: Logs, places: Mapping[SessionId, int], found: Mapping[SessionId, Sequence[StoredEntry] | None]
) -> dict[SessionId, Sequence[StoredEntry]]:
    """The entries up to each place: of those that were `found`, or of more where they do not tell enough."""
    tails: dict[SessionId, Sequence[StoredEntry]] = {
        session: tuple(entry for entry in found[session] or () if entry.seq <= place)
        for session, place in places.items()
    }
    longer = [session for session, tail in tails.items() if not _tells(tail, places[session])]
    asks = [(session, max(0, places[session] - TAIL), min(TAIL, places[session])) for session in longer]
    read = zip(longer, await logs.read_rollouts(asks), strict=True)
    return tails | {session: tail or () for session, tail in read}


async def _place(
    logs: Logs,
    session: SessionId,
    bounds: tuple[int, int],
    entries: Sequence[StoredEntry] | None,
    at_ms: int,
    gate: asyncio.Semaphore,
) -> tuple[int, int] | None:
    """The last entry that is not later than a time, and when the next one was; None where it is not told."""
    low, end = bounds
    if not entries or entries[0].seq != max(0, low - CLOSE) + 1:
        return None
    try:
        place = low
        for entry in entries:
            if entry.seq <= low:
                continue
            if (next_ms := line_ms(entry.payload)) > at_ms or entry.seq > end:
                return place, next_ms
            place = entry.seq
        if place >= end:
            # What comes next has not been written.
            return place, at_ms + 1
        async with gate:
            return await _searched(logs, session, (place, end), at_ms)
    except (DamagedEntry, ValueError):
        return None


async def _searched(
    logs: Logs, session: SessionId, bounds: tuple[int, int], at_ms: int
) -> tuple[int, int] | None:
    (low, high), next_ms = bounds, at_ms + 1
    while low < high:
        middle = (low + high + 1) // 2
        found = await logs.read_rollout(session, middle - 1, 1)
        if not found or found[0].seq != middle:
            return None
        if (middle_ms := line_ms(found[0].payload)) > at_ms:
            high, next_ms = middle - 1, middle_ms
        else:
            low = middle
    return low, next_ms


def _tells(tail: Sequence[StoredEntry], place: int) -> bool:
    """Whether these entries before a place tell all that there is to know, or are all that is looked at."""
    if len(tail) >= min(place, TAIL):
        return True
    try:
        doing = told_by(tail, place)
    except (ValueError, KeyError, TypeError):
        return True
    return bool(doing.since_ms and doing.last and doing.tokens)


async def place_then(found: LogSource, head: SessionHead, at_ms: int) -> int:
    """The last entry of a session's log that is not later than a time, wherever it is kept; 0 for none."""
    low, high = 0, head.seq
    while low < high:
        middle = (low + high + 1) // 2
        there = [stored async for stored in found.log(head.session, middle, middle - 1)]
        later = bool(there) and line_ms(there[0].payload) > at_ms
        low, high = (low, middle - 1) if later else (middle, high)
    return low


_BEGINS: Final = frozenset[Kind]({f.TaskBegun, f.RequestBegun})
_ENDS: Final = frozenset[Kind]({f.TaskEnded, f.Closed})


def _works(entries: Sequence[StoredEntry]) -> bool | None:
    """Whether a task ran at the end of these entries, as far as they tell."""
    kinds = (stored_kind(stored.payload) for stored in reversed(entries))
    return next((kind in _BEGINS for kind in kinds if kind in _BEGINS | _ENDS), None)


def _limits_before(fact: TreeFact) -> Mapping[str, int | None] | None:
    """The limits that an entry changed, as they were; None for one of an earlier version, which says none."""
    noted = fact.about.get("limits")
    return None if noted is None else {kind: before for kind, (before, _) in noted.items()}


def mark_of(entry: TreeEntry, fact: TreeFact) -> Mark | None:
    """The mark of an entry; None for one that a timeline does not show apart."""
    message = fact.message
    if event_kind(message) is ev.SubagentLifecycle and not (
        message.get("event") == "created" or message.get("status") in _SHOWN or "takeover" in fact.about
    ):
        # Most entries are of this kind: their words are not wanted.
        return None
    told = read_event(message)
    line = tree_line(entry, told)
    kind = _mark_kind(line, told) if line.text else None
    return None if kind is None else Mark(entry.tree_seq, entry.at_ms, kind, line)


def _mark_kind(line: TreeLine, told: ev.EventMsg) -> MarkKind | None:
    if line.kind == "takeover":
        return "takeover"
    match told:
        case ev.SubagentLifecycle(event="created"):
            return "spawn"
        case ev.SubagentLifecycle(status="failed"):
            return "failure"
        case ev.SubagentLifecycle(event="status", status=status) if status in _ENDED:
            return "end"
        case ev.RequestResolved():
            return "decision"
        case ev.BackgroundEvent() | ev.WarningEvent():
            return "budget"
        case _ if told.type in TO_PEOPLE:
            return "approval"
        case _:
            return None
