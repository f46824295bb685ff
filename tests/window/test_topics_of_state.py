"""Topics of state: whenever windows come, and however late each is told, all of them show the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.broker.errors import Unavailable
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.window import feeds
from orchestrator.gateways.window.feeds import Shared, Topic, Update
from orchestrator.gateways.window.stream import GAP_S, PACE_S, StateChannel

KEYS = "ab"


@dataclass
class Board:
    """All that there is of a topic, and the feed that tells of it."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    updates: asyncio.Queue[Update] = field(default_factory=asyncio.Queue)
    read: asyncio.Event = field(default_factory=asyncio.Event)

    async def feed(self, ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
        while True:
            if self.updates.empty():
                self.read.set()
            yield await self.updates.get()

    async def put(self, update: Update) -> None:
        """Changes what there is, and returns when all windows have been told."""
        if update.whole:
            self.rows = {}
        for key in update.gone:
            self.rows.pop(key, None)
        self.rows |= update.changed
        self.beside = dict(update.beside) or self.beside
        self.read.clear()
        self.updates.put_nowait(update)
        await self.read.wait()


@dataclass
class Window:
    """A window: its channel, and what its page makes of the events that it was sent."""

    channel: StateChannel
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)

    def reads(self, now: float) -> bool:
        """Whether there was something to read."""
        found = list(self.channel.taken(now))
        for sent in found:
            told = orjson.loads(sent.partition(b"data: ")[2])
            if told.pop("type") == "all":
                self.rows = {}
            self.rows |= {row["key"]: row for row in told.pop("data", told.pop("changed", []))}
            for row in told.pop("gone", []):
                self.rows.pop(row["key"], None)
            self.beside = told
        return bool(found)


ROWS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3))
GONE = st.sets(st.sampled_from(KEYS))
WHOLE = st.sampled_from([False, False, False, True])
COUNT = st.none() | st.integers(0, 9)
TOLD = st.tuples(ROWS, GONE, WHOLE, COUNT)
ACTS = st.lists(TOLD | TOLD | st.sampled_from(["comes", 0.0, GAP_S, PACE_S]), max_size=20)


def update(told: tuple[dict[str, int], set[str], bool, int | None]) -> Update:
    rows, gone, whole, count = told
    changed = {key: {"key": key, "value": value} for key, value in rows.items()}
    ended = {key: {"key": key} for key in sorted(gone - rows.keys())}
    return Update(changed, ended, whole, {} if count is None else {"count": count})


@given(TOLD, ACTS)
async def test_windows_that_come_at_any_time_show_what_there_is_as_soon_as_they_are_told(
    first: Any, acts: list[Any]
) -> None:
    board, now = Board(), 0.0
    topic = Topic(board.feed)
    shared = Shared(lambda: board.feed(cast(Any, None), "", ""))
    windows: list[Window] = []

    def comes() -> None:
        windows.append(Window(StateChannel("board", topic, cast(Any, None), lambda: None)))
        shared.join(windows[-1].channel)

    try:
        comes()
        await board.put(update((first[0], set(), True, first[3])))
        for act in (*acts, "comes", 10.0):
            if act == "comes":
                comes()
            elif isinstance(act, float):
                now += act
                for window in windows:
                    if window.reads(now):
                        assert (window.rows, window.beside) == (board.rows, board.beside)
            else:
                await board.put(update(act))
        assert all((window.rows, window.beside) == (board.rows, board.beside) for window in windows)
    finally:
        await shared.close()


SOME = [{}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}]


@dataclass
class Failing:
    """A feed that tells what there is, and fails when it is to; it is read anew then."""

    times: Iterator[dict[str, int]]
    fault: type[Exception]
    told: asyncio.Event = field(default_factory=asyncio.Event)
    fails: asyncio.Event = field(default_factory=asyncio.Event)

    async def feed(self, ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
        yield update((next(self.times), set(), True, None))
        self.told.set()
        await self.fails.wait()
        self.fails.clear()
        raise self.fault


@pytest.mark.parametrize("fault", [Unavailable, ValueError])
async def test_window_that_comes_when_a_feed_began_anew_is_shown_what_there_is_since(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As are those that were there: what went while the feed could not be read is shown to none."""
    monkeypatch.setattr(feeds, "RETRY_S", 0.0)
    for times in itertools.product(SOME, repeat=3):
        failing = Failing(iter(times), fault)
        topic, windows = Topic(failing.feed), []
        shared = Shared(lambda failing=failing: failing.feed(cast(Any, None), "", ""))  # type: ignore[misc]
        try:
            for count, there in enumerate(times):
                for before in (True, False):
                    windows.append(Window(StateChannel("board", topic, cast(Any, None), lambda: None)))
                    shared.join(windows[-1].channel)
                    if before:
                        if count:
                            failing.fails.set()
                        await failing.told.wait()
                        failing.told.clear()
                for window in windows:
                    window.reads(count * 100.0)
                    assert {key: row["value"] for key, row in window.rows.items()} == there, times
        finally:
            await shared.close()
