"""The trees of a namespace as lists of the fleet show them: read once, and then as they change.

A tree's row needs its root's hash alone, which counts the agents by their status. Roots are read by the
fleet's index; what changes is told by the broker's feed. What no hash says (who waits for a person, which
worker was lost) is in a few short sets of each shard, and is looked at whenever rows are asked for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError, Corrupt, Misconfigured, OutOfMemory, Unavailable
from orchestrator.broker.fleet_feed import FleetFeed
from orchestrator.broker.records import AT_REST, AgentStates, SessionHead, Source, TreeAccount
from orchestrator.broker.trees import IndexPlace, Listed
from orchestrator.core.entries import line_ms
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.tree import ROOT
from orchestrator.views.readable import UNREADABLE, tell
from orchestrator.views.sessions import nobody_spoke
from orchestrator.views.threads import ReadMark, mark_name
from orchestrator.views.tree import Doing, doing_of
from orchestrator.views.workers import serving_pools

Sort: TypeAlias = Literal["activity", "created", "cost"]
State: TypeAlias = Literal[
    "needs",
    "lost",
    "due",
    "failed",
    "ready",
    "working",
    "paused",
    "waiting",
    "idle",
    "quarantined",
    "archived",
]
SOURCES: Final[tuple[Source, ...]] = ("cli", "exec")
MOST_TREES: Final = 20_000
"""Trees of a namespace that are listed, the newest of them, and as many that were put away."""
PAGE: Final = 1_000
LAST: Final = 24
"""Entries at a log's end in which the last line of a tree is looked for."""
AT_ONCE: Final = 32
DRAINS: Final = 16
MOST_PEOPLE: Final = 64
"""People whose read states are kept at hand."""
NOW_S: Final = 0.0
TEMPORARY: Final = (Unavailable, OutOfMemory, Misconfigured)
"""Errors of Redis, which are of no one key."""
OF_STATUS: Final[Mapping[str, State]] = {
    "idle": "idle",
    "closed": "idle",
    "waiting": "waiting",
    "retrying": "waiting",
    "awaiting_approval": "needs",
    "awaiting_answer": "needs",
    "paused": "paused",
    "quarantined": "quarantined",
    "archived": "idle",
    "lost": "lost",
    "due": "due",
}
"""The state that a list shows for a status; for any other one: it works."""


def state_of_status(status: str) -> State:
    """The state that a list shows for a session's status."""
    return OF_STATUS.get(status, "working")


@record
class FleetFilter:
    """The trees that are wanted; empty texts leave out nothing."""

    text: str = ""
    pool: str = ""
    who: str = ""
    shelved: bool = False

    @property
    def is_narrow(self) -> bool:
        return bool(self.text or self.pool or self.who)

    def wants(self, head: SessionHead, words: str) -> bool:
        """Whether it is one of them; `words` are those that a text is looked for in."""
        if (self.pool and head.pool != self.pool) or (self.who and head.labels.who != self.who):
            return False
        return not self.text or self.text.casefold() in words


@record
class TreeRow:
    """A tree of a list."""

    head: SessionHead
    state: State
    agents: AgentStates
    account: TreeAccount
    doing: Doing
    last_ms: int
    unread: bool
    requests: int
    lost_ms: int | None = None

    @property
    def tree(self) -> TreeId:
        return self.head.tree


@record
class FleetPage:
    """Trees of a list in their order, and what there is beside them."""

    rows: tuple[TreeRow, ...]
    counts: Mapping[State, int]
    more: bool
    damaged: tuple[SessionId, ...] = ()
    """The trees of the namespace that no list has, because they cannot be read."""


@record
class _Around:
    """The facts that no root's hash has, at one moment."""

    requests: Mapping[SessionId, int]
    """By the root: how many requests of its tree wait for a person."""
    lost: Mapping[SessionId, int]
    due: frozenset[SessionId]
    """Trees that wait for a worker, where none serves their pool, or only that of another machine may."""


@dataclass(slots=True)
class Fleet:
    """The trees of a namespace, for all who look at them in one process."""

    broker: Broker
    namespace: str
    _feed: FleetFeed | None = None
    _anew: bool = True
    _heads: dict[SessionId, SessionHead] = field(default_factory=dict)
    _base: dict[SessionId, State] = field(default_factory=dict)
    """The state of each root by its hash alone."""
    _words: dict[SessionId, str] = field(default_factory=dict)
    _accounts: dict[SessionId, TreeAccount] = field(default_factory=dict)
    _damaged: set[SessionId] = field(default_factory=set)
    """The trees whose roots cannot be read: they are in no list."""
    _ends: dict[SessionId, tuple[bytes, Doing, int]] = field(default_factory=dict)
    """By the root: the chain's value at its log's end, what it is at there, and the last entry's time."""
    _unread: dict[str, set[SessionId]] = field(default_factory=dict)
    """By person: the trees whose last turn's end they have not read."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by each who reads or changes what is kept: several clients ask for one fleet."""

    async def aclose(self) -> None:
        """Follows no more."""
        if self._feed is not None:
            await self._feed.aclose()

    # ── following ─────────────────────────────────────────────────────────────────────────────

    async def follow(self, timeout_s: float) -> frozenset[SessionId] | None:
        """Waits for changes; the roots whose rows may be others now, None where all may be.

        Raises `Unavailable`; the call behind it reads on.
        """
        async with self._turn:
            if self._feed is None:
                self._feed = self.broker.fleet_feed(self.namespace)
            if self._anew:
                # The feed has begun before: what changes while all is read is told behind it.
                await self._feed.changes(NOW_S)
                await self._read_all()
                self._anew = False
                return None
            changes = await self._feed.changes(timeout_s)
            # It tells each change once: who is cut off while one is taken in reads everything anew.
            self._anew = True
            if changes.anew:
                await self._read_all()
                self._anew = False
                return None
            roots = {SessionId(head.tree): head for head in changes.heads if head.agent_id == ROOT}
            of_agents = {SessionId(head.tree) for head in changes.heads} - roots.keys()
            damaged = dict(changes.damaged)
            for head in await self.broker.logs.heads(sorted(of_agents), damaged):
                roots[head.session] = head
            changed = {root for root, head in roots.items() if self._keep(head)}
            for root in roots:
                # What its agents spend is in no root's hash.
                self._accounts.pop(root, None)
            changed |= {session for session in changes.gone if self._drop(session)}
            # One of another namespace was never in this list.
            known = {root: error for root, error in damaged.items() if root in self._heads}
            self._leave_out(known)
            changed |= known.keys()
            named = roots.keys() & self._heads.keys()
            await self._mark(named)
            self._anew = False
            # A notice may be of a mark or of a request alone, which no head has.
            return frozenset(changed | named if changes.told else changed)

    async def refresh(self) -> None:
        """Reads what has changed up to now."""
        for _ in range(DRAINS):
            changed = await self.follow(NOW_S)
            if changed is not None and not changed:
                return

    async def _read_all(self) -> None:
        """Reads every tree, and then takes all in at once: who is cut off before leaves no part of a list."""
        found, damaged = list[SessionHead](), dict[SessionId, Corrupt]()
        for shelved in (False, True):
            wanted, place = Listed(self.namespace, SOURCES, shelved), None
            for _ in range(MOST_TREES // PAGE):
                places: tuple[IndexPlace, ...] = await self.broker.trees.listed(wanted, place, PAGE)
                found += await self.broker.logs.heads([one.session for one in places], damaged)
                if len(places) < PAGE:
                    break
                place = places[-1]
        self._heads.clear()
        self._base.clear()
        self._accounts.clear()
        self._words.clear()
        self._unread.clear()
        self._damaged.clear()
        for head in found:
            self._keep(head)
        self._leave_out(damaged)

    def _leave_out(self, damaged: Mapping[SessionId, Corrupt]) -> None:
        """Takes trees out that cannot be read: one of them must not hide all others."""
        tell(damaged)
        for root in damaged:
            self._drop(root)
            self._damaged.add(root)

    def _keep(self, head: SessionHead) -> bool:
        """Takes a root as it is now; whether it is another than before."""
        if head.labels.ephemeral or nobody_spoke(head):
            return self._drop(head.session)
        before, self._heads[head.session] = self._heads.get(head.session), head
        if before == head:
            return False
        self._damaged.discard(head.session)
        self._base[head.session] = _state_by_hash(head)
        self._accounts.pop(head.session, None)
        self._words.pop(head.session, None)
        return True

    def _drop(self, root: SessionId) -> bool:
        self._damaged.discard(root)
        for kept in (self._base, self._words, self._accounts, self._ends):
            kept.pop(root, None)
        for unread in self._unread.values():
            unread.discard(root)
        return self._heads.pop(root, None) is not None

    async def _mark(self, named: Collection[SessionId]) -> None:
        """Looks anew which of these trees each person has read."""
        for person, unread in self._unread.items() if named else ():
            now = await self._not_read(person, named)
            unread -= set(named) - now
            unread |= now

    async def _not_read(self, person: str, roots: Iterable[SessionId]) -> set[SessionId]:
        ended = [root for root in roots if self._heads[root].ended_seq]
        found: set[SessionId] = set()
        for start in range(0, len(ended), PAGE):
            some = ended[start : start + PAGE]
            notes = await self.broker.requests.notes(mark_name(person), some)
            marks = (ReadMark.of(note) for note in notes)
            found |= {
                root for root, mark in zip(some, marks, strict=True) if self._heads[root].ended_seq > mark.seq
            }
        return found

    async def unread(self, person: str) -> set[SessionId]:
        """The trees whose last turn's end a person has not read."""
        if person not in self._unread:
            if len(self._unread) >= MOST_PEOPLE:
                self._unread.clear()
            self._unread[person] = await self._not_read(person, self._heads)
        return self._unread[person]

    # ── rows ──────────────────────────────────────────────────────────────────────────────────

    async def page(
        self,
        wanted: FleetFilter,
        states: Collection[State],
        person: str,
        sort: Sort = "activity",
        after: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> FleetPage:
        """The next trees behind a place, of those states, and how many of all wanted ones have each state."""
        await self.refresh()
        async with self._turn:
            return await self._page(wanted, states, person, sort, after, limit)

    async def _page(
        self,
        wanted: FleetFilter,
        states: Collection[State],
        person: str,
        sort: Sort,
        after: tuple[int, str] | None,
        limit: int,
    ) -> FleetPage:
        around, unread = await self._around(), await self.unread(person)
        shelf: Iterable[SessionId] = (
            root for root, base in self._base.items() if (base == "archived") is wanted.shelved
        )
        if wanted.is_narrow:
            shelf = [root for root in shelf if wanted.wants(self._heads[root], self._words_of(root))]
        found = {root: self._state(root, around, unread) for root in shelf}
        if sort == "cost":
            await self._count(found)
        places = sorted(
            (
                (self._at(root, sort), str(root))
                for root, state in found.items()
                if not states or state in states
            ),
            reverse=True,
        )
        behind = [place for place in places if after is None or place < after]
        rows = await self._rows([SessionId(root) for _, root in behind[:limit]], around, unread)
        more = len(behind) > limit
        return FleetPage(tuple(rows), Counter(found.values()), more, tuple(sorted(self._damaged)))

    async def counts(self, person: str) -> Counter[State]:
        """How many trees of the list have each state."""
        async with self._turn:
            around, unread = await self._around(), await self.unread(person)
            listed = (root for root, base in self._base.items() if base != "archived")
            return Counter(self._state(root, around, unread) for root in listed)

    @property
    def damaged(self) -> list[SessionId]:
        """The trees that cannot be read."""
        return sorted(self._damaged)

    def lists(self, root: SessionId) -> bool:
        """Whether the list has a tree: it is there, and nobody has put it away."""
        return self._base.get(root, "archived") != "archived"

    async def rows(self, roots: Collection[SessionId], person: str) -> list[TreeRow]:
        """Rows of those of some trees that there are."""
        async with self._turn:
            there = [root for root in roots if root in self._heads]
            return await self._rows(there, await self._around(), await self.unread(person))

    def newest(self, most: int) -> list[SessionId]:
        """The trees of the list that were used last."""
        listed = (root for root, base in self._base.items() if base != "archived")
        return sorted(listed, key=lambda root: (self._at(root, "activity"), root), reverse=True)[:most]

    def statuses(self) -> dict[str, Counter[str]]:
        """How many agents have each status, by the pools of their roots; of trees in the list."""
        found: dict[str, Counter[str]] = {}
        for root, base in self._base.items():
            head = self._heads[root]
            if base != "archived":
                found.setdefault(head.pool, Counter()).update(
                    AgentStates.of(head.states).counts or {head.status: 1}
                )
        return found

    def busy(self) -> list[SessionId]:
        """The trees that are not at rest: their rows change with time alone."""
        return [root for root, base in self._base.items() if base in ("working", "waiting", "paused")]

    def place(self, row: TreeRow, sort: Sort) -> tuple[int, str]:
        """The place of a row in an order."""
        return self._at(row.head.session, sort), str(row.head.session)

    def _words_of(self, root: SessionId) -> str:
        """The words of a tree in which a text is looked for, without capitals."""
        if root not in self._words:
            head = self._heads[root]
            said = (head.title, head.summary.get("cwd") or "", head.labels.who)
            self._words[root] = "\n".join(said).casefold()
        return self._words[root]

    def _at(self, root: SessionId, sort: Sort) -> int:
        head = self._heads[root]
        match sort:
            case "activity":
                return head.recency_ms or head.created_ms
            case "created":
                return head.created_ms
            case "cost":
                return self._accounts[root].used.cost

    async def _count(self, roots: Iterable[SessionId]) -> None:
        missing = [root for root in roots if root not in self._accounts]
        for start in range(0, len(missing), PAGE):
            some = missing[start : start + PAGE]
            found = await self.broker.trees.accounts([self._heads[root].tree for root in some])
            self._accounts.update(zip(some, found, strict=True))

    def _state(self, root: SessionId, around: _Around, unread: Collection[SessionId]) -> State:
        base = self._base[root]
        if base in ("archived", "quarantined"):
            return base
        if root in around.requests:
            return "needs"
        if root in around.lost:
            return "lost"
        if root in around.due:
            return "due"
        if root not in unread:
            return "idle" if base == "failed" else base
        return "ready" if base == "idle" else base

    async def _around(self) -> _Around:
        pools = sorted({head.pool for head in self._heads.values()})
        asking, unserved, served = await asyncio.gather(
            self.broker.requests.askers(),
            self.broker.claims.unserved(pools),
            serving_pools(self.broker.claims),
        )
        requests: Counter[SessionId] = Counter()
        for session, number in asking.items():
            if (root := await self._root(session)) is not None:
                requests[root] += number
        lost, due = {}, set()
        for session, at_ms in unserved.lost.items():
            if (root := await self._root(session)) is not None:
                lost[root] = at_ms
        for session in unserved.due:
            root = await self._root(session)
            if root is not None and (self._heads[root].pool not in served or self._heads[root].unsaved_on):
                due.add(root)
        return _Around(requests, lost, frozenset(due))

    async def _root(self, session: SessionId) -> SessionId | None:
        """The root of a session's tree, if it is listed here."""
        if session in self._heads:
            return session
        try:
            root = SessionId((await self.broker.logs.place(session)).tree)
        except TEMPORARY:
            raise
        except BrokerError:
            # It is gone, or its key is damaged.
            return None
        return root if root in self._heads else None

    async def _rows(
        self, roots: Sequence[SessionId], around: _Around, unread: Collection[SessionId]
    ) -> list[TreeRow]:
        self._accounts.update(
            zip(
                roots,
                await self.broker.trees.accounts([self._heads[root].tree for root in roots]),
                strict=True,
            )
        )
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._read_end(root, gate) for root in roots if self._is_another(root)))
        return [
            TreeRow(
                head=self._heads[root],
                state=self._state(root, around, unread),
                agents=await self._agents(root),
                account=self._accounts[root],
                doing=self._ends[root][1],
                last_ms=self._ends[root][2],
                unread=root in unread,
                requests=around.requests.get(root, 0),
                lost_ms=around.lost.get(root),
            )
            for root in roots
            if root in self._heads
        ]

    def _is_another(self, root: SessionId) -> bool:
        """Whether a log has grown, or was put back, and is as long as before."""
        return root not in self._ends or self._ends[root][0] != self._heads[root].head

    async def _read_end(self, root: SessionId, gate: asyncio.Semaphore) -> None:
        head = self._heads[root]
        last_ms = head.summary.get("updated_ms") or head.created_ms
        try:
            async with gate:
                entries = await self.broker.logs.read_rollout(root, max(0, head.seq - LAST), LAST)
            doing = doing_of(entries, head)
            last_ms = line_ms(entries[-1].payload) if entries else last_ms
        except UNREADABLE:
            # One damaged log must not hide all other trees; whoever reads it is told of the damage.
            doing = doing_of((), head)
        self._ends[root] = head.head, doing, last_ms

    async def _agents(self, root: SessionId) -> AgentStates:
        head = self._heads[root]
        try:
            return AgentStates.of(head.states or await self.broker.trees.recount(head.tree) or "")
        except TEMPORARY:
            raise
        except BrokerError:
            # The key of one of its agents is damaged.
            return AgentStates.of("")


def _state_by_hash(head: SessionHead) -> State:
    if head.shelved:
        return "archived"
    if head.quarantined:
        return "quarantined"
    if head.status not in AT_REST:
        # Who waits for a person is known by the requests that are open.
        state = state_of_status(head.status)
        return "waiting" if state == "needs" else state
    at_work = AgentStates.of(head.states).counts.keys() - AT_REST if head.states else ()
    if head.has_unread or any(state_of_status(status) == "working" for status in at_work):
        return "working"
    if at_work:
        return "waiting"
    # Most trees of a list are at rest: their JSON is read for those alone that may have failed.
    return "failed" if b"failed" in head.meta and head.summary.get("outcome") == "failed" else "idle"
