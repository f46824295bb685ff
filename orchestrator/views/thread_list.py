"""The list of threads: filtered, ordered, a page at a time, stable while sessions come and go.

A place in the list is the key of the last thread that was shown: a thread that changes meanwhile moves to the
front, and none that stays is shown twice or left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import field
from pathlib import PurePath
from typing import Literal, NamedTuple, TypeAlias

from orchestrator.broker.broker import Broker
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, Source
from orchestrator.broker.trees import IndexPlace, Listed, Trees
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, created_ms
from orchestrator.core.registry import projected
from orchestrator.core.tree import ROOT
from orchestrator.views.readable import readable, readable_listed
from orchestrator.views.thread_pages import MOST_CURSOR, BadCursor, Direction
from orchestrator.views.threads import Thread, threads

Kind: TypeAlias = Literal["cli", "exec", "agent"]
SortKey: TypeAlias = Literal["created", "recency"]
READ = 250
"""Heads read at once."""
LOOKED_THROUGH = 20_000
"""Sessions that are looked at for one page of a filtered list; the next page goes on behind them."""
PEOPLE: frozenset[Kind] = frozenset({"cli"})


class Key(NamedTuple):
    """A thread's place in an order: a time in milliseconds, and its id where times are equal."""

    at_ms: int
    session: SessionId


@record
class ThreadFilter:
    """The threads of a list; empty texts and sets leave out nothing."""

    kinds: frozenset[Kind] = PEOPLE
    cwds: frozenset[str] = frozenset()
    archived: bool = False
    text: str = ""
    providers: frozenset[str] = frozenset()
    parent: str = ""
    ancestor: str = ""
    without: frozenset[str] = frozenset()

    @property
    def of_people(self) -> tuple[Source, ...]:
        """The programs whose threads the fleet's index lists."""
        return tuple(kind for kind in ("cli", "exec") if kind in self.kinds)

    @property
    def is_narrow(self) -> bool:
        """Whether more is asked of a thread than where it began: then many are looked at for a few."""
        return bool(self.cwds or self.text or self.providers or self.without)

    @property
    def of_agents(self) -> bool:
        """Whether agents are wanted, which their trees list."""
        return bool(self.parent or self.ancestor) or "agent" in self.kinds

    def may_want(self, head: SessionHead) -> bool:
        """Whether a session's head alone does not rule it out."""
        if head.session in self.without or (head.agent_id == ROOT and head.shelved is not self.archived):
            return False
        if self.parent or self.ancestor:
            return head.parent == self.parent if self.parent else head.agent_id != ROOT
        return head.agent_id == ROOT or "agent" in self.kinds

    def wants(self, thread: Thread) -> bool:
        """Whether the thread is one of them, by all that is known of it."""
        if thread.ephemeral or (thread.spawned is None and thread.source not in self.kinds):
            return False
        if not thread.begun:
            # Nobody would know it again: a terminal makes one with every start.
            return False
        if self.cwds and not any(PurePath(thread.cwd) == PurePath(cwd) for cwd in self.cwds):
            return False
        if self.providers and thread.model_provider not in self.providers:
            return False
        return not self.text or any(self.text.casefold() in said.casefold() for said in _texts(thread))


def _texts(thread: Thread) -> Iterator[str]:
    yield thread.preview
    yield thread.name or ""
    yield thread.cwd


@record
class ListCursor:
    """A place between threads: before or behind the one of a key."""

    sort: SortKey
    key: Key
    inclusive: bool = False

    def __str__(self) -> str:
        text = f"l.{self.sort}.{self.key.at_ms}.{self.key.session}.{self.inclusive:d}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def of(cls, text: str, sort: SortKey) -> ListCursor:
        """Raises `BadCursor`."""
        try:
            if len(text) > MOST_CURSOR:
                raise ValueError
            parts = base64.b64decode(text, b"-_", validate=True).decode("ascii").split(".")
            mark, found, at_ms, session, inclusive = parts
            cursor = cls(sort, Key(int(at_ms), SessionId(session)), inclusive == "1")
        except (ValueError, binascii.Error):
            raise BadCursor("cursor: this is no place of a list; give one that a list answered") from None
        if mark != "l" or found != sort:
            raise BadCursor("cursor: this is a place in another order; list again without a cursor")
        return cursor


@record
class ListAsked:
    """A page of the list that is asked for."""

    limit: int
    sort: SortKey = "created"
    direction: Direction = "desc"
    cursor: ListCursor | None = None
    namespace: str = ""
    wanted: ThreadFilter = field(default_factory=ThreadFilter)


@record
class ThreadPage:
    """Threads, and the places behind the last and, for the other direction, before the first."""

    threads: tuple[Thread, ...] = ()
    next: ListCursor | None = None
    back: ListCursor | None = None


async def threads_page(broker: Broker, asked: ListAsked) -> ThreadPage:
    """The next threads of the order that are wanted."""
    found: list[tuple[Key, Thread]] = []
    looked, last = 0, None
    async for stretch in (
        _agents_too(broker, asked) if asked.wanted.of_agents else _listed(broker.trees, asked)
    ):
        if looked >= LOOKED_THROUGH:
            return _page(asked, found, last)
        heads = {head.session: (key, head) for key, head in stretch}
        wanted = [head for _, head in heads.values() if asked.wanted.may_want(head)]
        for one in await threads(broker, wanted):
            if not asked.wanted.wants(one):
                continue
            if len(found) == asked.limit:
                return _page(asked, found, found[-1][0])
            found.append((heads[one.id][0], one))
        looked, last = looked + len(stretch), stretch[-1][0]
    return _page(asked, found, None)


def _page(asked: ListAsked, found: Sequence[tuple[Key, Thread]], last: Key | None) -> ThreadPage:
    return ThreadPage(
        tuple(thread for _, thread in found),
        None if last is None else ListCursor(asked.sort, last),
        ListCursor(asked.sort, found[0][0], inclusive=True) if found else None,
    )


Stretch: TypeAlias = list[tuple[Key, SessionHead]]


async def _listed(trees: Trees, asked: ListAsked) -> AsyncIterator[Stretch]:
    """The roots of the fleet's index behind the cursor, some at a time."""
    wanted = Listed(
        asked.namespace,
        asked.wanted.of_people,
        asked.wanted.archived,
        "recency" if asked.sort == "recency" else "creation",
        asked.direction == "desc",
    )
    place = None if asked.cursor is None else _place(asked.cursor, asked.direction)
    size = READ if asked.wanted.is_narrow else min(READ, asked.limit + 1)
    while found := await readable_listed(trees, wanted, place, size):
        yield [(Key(at.at_ms, at.session), head) for at, head in found]
        place, size = found[-1][0], READ


def _place(cursor: ListCursor, direction: Direction) -> IndexPlace:
    """The index's place: one that leaves out its own session, or is a hair before it."""
    session: str = cursor.key.session
    if cursor.inclusive:
        # Between two ids: no id has this last character beside these digits.
        session = session[:-1] + chr(ord(session[-1]) + (1 if direction == "desc" else -1))
    return IndexPlace(cursor.key.at_ms, SessionId(session))


async def _agents_too(broker: Broker, asked: ListAsked) -> AsyncIterator[Stretch]:
    """Agents of one tree, or of all, with the roots where those are wanted."""
    ids = await _sessions_of(broker, asked.wanted)
    heads = [head for head in await _heads(broker, ids) if head.labels.namespace == asked.namespace]
    if not (asked.wanted.parent or asked.wanted.ancestor):
        heads = await _with_their_trees(broker, heads, archived=asked.wanted.archived)
    found = [(_key(asked, head), head) for head in heads]
    found.sort(key=lambda one: one[0], reverse=asked.direction == "desc")
    cursor = asked.cursor
    behind = [one for one in found if cursor is None or _behind(one[0], cursor, asked.direction)]
    for start in range(0, len(behind), READ):
        yield behind[start : start + READ]


async def _heads(broker: Broker, ids: Sequence[SessionId]) -> list[SessionHead]:
    found: list[SessionHead] = []
    for start in range(0, len(ids), READ):
        found += await readable(broker.logs, ids[start : start + READ])
    return found


async def _with_their_trees(
    broker: Broker, heads: Sequence[SessionHead], *, archived: bool
) -> list[SessionHead]:
    """The sessions without agents whose trees are not in this list: they are put away with their root."""
    known = {head.tree: head for head in heads if head.agent_id == ROOT}
    missing = {head.tree for head in heads} - known.keys()
    known |= {root.tree: root for root in await _heads(broker, [SessionId(tree) for tree in sorted(missing)])}
    left_out = {tree for tree, root in known.items() if root.shelved is not archived or root.labels.ephemeral}
    return [head for head in heads if head.agent_id == ROOT or head.tree not in left_out]


async def _sessions_of(broker: Broker, wanted: ThreadFilter) -> list[SessionId]:
    if not (above := wanted.parent or wanted.ancestor):
        return list(await broker.logs.newest(LOOKED_THROUGH))
    head = await broker.logs.head(SessionId(above))
    if head is None:
        return []
    agents = projected(await broker.trees.agents(head.tree)).agents.values()
    under = [agent for agent in agents if head.agent_id == ROOT or agent.below(head.agent_id)]
    return [SessionId(agent.session) for agent in under]


def _key(asked: ListAsked, head: SessionHead) -> Key:
    if asked.sort == "created":
        return Key(created_ms(head.session), head.session)
    meta = head.summary
    return Key(head.recency_ms or meta.get("updated_ms") or head.created_ms, head.session)


def _behind(key: Key, cursor: ListCursor, direction: Direction) -> bool:
    if key == cursor.key:
        return cursor.inclusive
    return key < cursor.key if direction == "desc" else key > cursor.key


async def loaded(logs: Logs, most: int, namespace: str = "") -> list[SessionId]:
    """The sessions of a namespace that are at work or wait for somebody, newest first; no ephemeral one."""
    ids = await logs.newest(LOOKED_THROUGH)
    found: list[SessionId] = []
    for start in range(0, len(ids), READ):
        heads = await readable(logs, ids[start : start + READ])
        found += [
            head.session
            for head in heads
            if _is_loaded(head) and head.labels.namespace == namespace and not head.labels.ephemeral
        ]
        if len(found) >= most:
            break
    return found[:most]


def _is_loaded(head: SessionHead) -> bool:
    # A session that waits for a person or for agents is held by nobody, and in the middle of a turn.
    return not head.let_go
