"""The list of threads: filtered, ordered, a page at a time, stable while sessions come and go.

A place in the list is the key of the last thread that was shown: a thread that changes meanwhile moves to the
front, and none that stays is shown twice or left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple, TypeAlias

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, created_ms
from orchestrator.core.tree import ROOT
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


@dataclass(frozen=True, slots=True)
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

    def may_want(self, head: SessionHead) -> bool:
        """Whether a session's head alone does not rule it out."""
        if head.session in self.without or head.archived is not self.archived:
            return False
        if self.parent and head.parent != self.parent:
            return False
        if self.ancestor and (head.tree != self.ancestor or head.agent_id == ROOT):
            return False
        return bool(self.parent or self.ancestor) or self._of_a_kind(head)

    def _of_a_kind(self, head: SessionHead) -> bool:
        return ("agent" in self.kinds) if head.agent_id != ROOT else bool(self.kinds - {"agent"})

    def wants(self, thread: Thread) -> bool:
        """Whether the thread is one of them, by all that is known of it."""
        if thread.ephemeral or not self._is_of(thread):
            return False
        if self.cwds and not any(PurePath(thread.cwd) == PurePath(cwd) for cwd in self.cwds):
            return False
        if self.providers and thread.model_provider not in self.providers:
            return False
        return not self.text or any(self.text.casefold() in said.casefold() for said in _texts(thread))

    def _is_of(self, thread: Thread) -> bool:
        return thread.spawned is not None or bool(self.parent) or thread.source in self.kinds


def _texts(thread: Thread) -> Iterator[str]:
    yield thread.preview
    yield thread.name or ""
    yield thread.cwd


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ListAsked:
    """A page of the list that is asked for."""

    limit: int
    sort: SortKey = "created"
    direction: Direction = "desc"
    cursor: ListCursor | None = None
    wanted: ThreadFilter = field(default_factory=ThreadFilter)


@dataclass(frozen=True, slots=True)
class ThreadPage:
    """Threads, and the places behind the last and, for the other direction, before the first."""

    threads: tuple[Thread, ...] = ()
    next: ListCursor | None = None
    back: ListCursor | None = None


async def threads_page(broker: Broker, asked: ListAsked) -> ThreadPage:
    """The next threads of the order that are wanted."""
    changed = dict(await broker.changed())
    keys = _ordered(changed, asked)
    found: list[tuple[Key, Thread]] = []
    for start in range(0, len(keys), READ):
        stretch = keys[start : start + READ]
        for key, one in await _read(broker, stretch, asked.wanted):
            if len(found) == asked.limit:
                return _page(asked, found, found[-1][0])
            found.append((key, replace(one, recency_ms=changed[key.session])))
        if start + READ >= LOOKED_THROUGH and start + READ < len(keys):
            return _page(asked, found, stretch[-1])
    return _page(asked, found, None)


def _page(asked: ListAsked, found: Sequence[tuple[Key, Thread]], last: Key | None) -> ThreadPage:
    return ThreadPage(
        tuple(thread for _, thread in found),
        None if last is None else ListCursor(asked.sort, last),
        ListCursor(asked.sort, found[0][0], inclusive=True) if found else None,
    )


def _ordered(changed: Mapping[SessionId, int], asked: ListAsked) -> list[Key]:
    """The keys behind the cursor, in the order of the list."""
    by_change = asked.sort == "recency"
    keys = [Key(at_ms if by_change else created_ms(session), session) for session, at_ms in changed.items()]
    keys.sort(reverse=asked.direction == "desc")
    cursor = asked.cursor
    return keys if cursor is None else [key for key in keys if _behind(key, cursor, asked.direction)]


def _behind(key: Key, cursor: ListCursor, direction: Direction) -> bool:
    if key == cursor.key:
        return cursor.inclusive
    return key < cursor.key if direction == "desc" else key > cursor.key


async def _read(broker: Broker, keys: Sequence[Key], wanted: ThreadFilter) -> list[tuple[Key, Thread]]:
    by_session = {key.session: key for key in keys}
    heads = await broker.heads([key.session for key in keys])
    found = await threads(broker, [head for head in heads if wanted.may_want(head)])
    return [(by_session[one.id], one) for one in found if wanted.wants(one)]


async def loaded(broker: Broker, most: int) -> list[SessionId]:
    """The sessions that a worker holds, or that owe something, newest first."""
    ids = await broker.newest(LOOKED_THROUGH)
    found: list[SessionId] = []
    for start in range(0, len(ids), READ):
        heads = await broker.heads(ids[start : start + READ])
        found += [head.session for head in heads if head.holder or head.sq_tip != head.cursor]
        if len(found) >= most:
            break
    return found[:most]
