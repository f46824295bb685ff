"""When a process looks after a cancel, for how long, and which sessions it takes meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.records import Fired
from orchestrator.core.commit_parts import REAP_BELOW_TIMER, REAP_MS, REAP_TIMER
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.runtime import unserved_cancels
from orchestrator.runtime.unserved_cancels import Forsaken, Reaper, trees_with_cancels
from workers import upkeep_cancels
from workers.upkeep_cancels import end_cancelled

GRACE_MS = 1_000


def ids(*names: str) -> tuple[SessionId, ...]:
    return tuple(map(SessionId, names))


class Clock:
    """Redis's time as far as it is known."""

    def __init__(self) -> None:
        self.ms = 50_000

    def now_ms(self) -> int:
        return self.ms


class Looked:
    """The trees that were looked at, and what is found there next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.trees: list[str] = []
        self.finds: dict[str, Iterator[Forsaken]] = {}
        self.damaged: set[str] = set()
        monkeypatch.setattr(module, "forsaken", self.forsaken)

    async def forsaken(self, broker: Any, tree: TreeId) -> Forsaken:
        self.trees.append(tree)
        if tree in self.damaged:
            raise Corrupt(tree, "a field of it cannot be read")
        return next(self.finds[tree])


class Fleet:
    """A worker's reaper, told of trees by names of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.adopted = Clock(), list[SessionId]()
        self.looked = Looked(monkeypatch, unserved_cancels)
        broker: Any = SimpleNamespace(now_ms=self.clock.now_ms, logs=None)
        self.reaper = Reaper(broker, self.adopt, GRACE_MS)

        async def trees(logs: Any, fired: Sequence[Any]) -> Sequence[Any]:
            return fired

        monkeypatch.setattr(unserved_cancels, "trees_with_cancels", trees)

    def adopt(self, sessions: Sequence[SessionId]) -> None:
        self.adopted += sessions

    async def told(self, *trees: str) -> None:
        told: Any = trees
        await self.reaper.receive(told)

    async def polls(self) -> list[str]:
        """The trees that one poll looks at."""
        self.looked.trees.clear()
        await self.reaper.poll()
        return list(self.looked.trees)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(monkeypatch)


async def test_each_tree_has_its_own_grace_from_when_it_was_told_of_first(fleet: Fleet) -> None:
    left = Forsaken(True, ())
    fleet.looked.finds = {tree: iter([left] * 9) for tree in "ab"}
    await fleet.told("a")
    fleet.clock.ms += GRACE_MS // 2
    await fleet.told("a", "b")
    fleet.clock.ms += GRACE_MS // 2 - 1
    assert await fleet.polls() == []
    fleet.clock.ms += 1
    assert await fleet.polls() == ["a"], "that it was told of again gives the others no more time"
    fleet.clock.ms += GRACE_MS // 2
    assert sorted(await fleet.polls()) == ["a", "b"]


async def test_tree_has_no_more_than_its_grace_where_redis_s_clock_is_put_back(fleet: Fleet) -> None:
    fleet.looked.finds = {"a": iter([Forsaken(True, ())] * 9)}
    await fleet.told("a")
    fleet.clock.ms -= 40_000
    assert await fleet.polls() == []
    fleet.clock.ms += GRACE_MS
    assert await fleet.polls() == ["a"]


async def test_every_poll_takes_what_lies_in_each_tree_until_nothing_of_it_is_left(fleet: Fleet) -> None:
    fleet.looked.finds = {
        "a": iter([Forsaken(True, ids("a1", "a2")), Forsaken(True, ()), Forsaken(False, ids("a3"))]),
        "b": iter([Forsaken(False, ids("b1"))]),
        "c": iter([Forsaken(True, ids("c1")), Forsaken(True, ids("c1")), Forsaken(True, ids("c2"))]),
    }
    await fleet.told("a", "b", "c")
    fleet.clock.ms += GRACE_MS
    assert await fleet.polls() == ["a", "b", "c"]
    assert await fleet.polls() == ["a", "c"]
    assert await fleet.polls() == ["a", "c"]
    assert fleet.adopted == [*ids("a1", "a2", "b1", "c1", "c1", "a3", "c2")]
    fleet.looked.finds["c"] = iter([Forsaken(False, ())])
    assert await fleet.polls() == ["c"]
    assert await fleet.polls() == []


async def test_tree_is_given_up_behind_its_time_and_taken_up_again_when_it_is_told_of(fleet: Fleet) -> None:
    fleet.looked.finds = {"a": iter([Forsaken(True, ids(f"a{n}")) for n in range(9)])}
    await fleet.told("a")
    fleet.clock.ms += GRACE_MS + REAP_MS
    assert await fleet.polls() == ["a"]
    fleet.clock.ms += 1
    assert await fleet.polls() == ["a"], "what it finds then is taken still"
    assert await fleet.polls() == []
    assert fleet.adopted == [*ids("a0", "a1")]
    await fleet.told("a")
    assert await fleet.polls() == [], "the others have their time again"
    fleet.clock.ms += GRACE_MS
    assert await fleet.polls() == ["a"]


async def test_tree_that_cannot_be_read_hides_none_behind_it_and_is_given_up_in_time(fleet: Fleet) -> None:
    fleet.looked.finds = {"b": iter([Forsaken(True, ids("b1")), Forsaken(False, ())])}
    fleet.looked.damaged = {"a", "c"}
    await fleet.told("a", "b", "c")
    fleet.clock.ms += GRACE_MS
    assert await fleet.polls() == ["a", "b", "c"]
    assert fleet.adopted == [*ids("b1")]
    assert await fleet.polls() == ["a", "b", "c"]
    fleet.clock.ms += REAP_MS + 1
    assert await fleet.polls() == ["a", "c"]
    assert await fleet.polls() == []


async def test_timers_of_cancels_name_their_trees_once_and_no_other_timer_does() -> None:
    async def place(session: SessionId) -> Any:
        if session == "gone":
            raise UnknownSession(session)
        if session == "damaged":
            raise Corrupt(session, "a field of it cannot be read")
        return SimpleNamespace(tree=f"tree of {session[0]}")

    logs: Any = SimpleNamespace(place=place)
    fired: Any = [
        SimpleNamespace(timer=timer, session=SessionId(session))
        for timer, session in (
            ("wait:c1", "a0"),
            (REAP_BELOW_TIMER, "b1"),
            (REAP_TIMER, "gone"),
            (REAP_TIMER, "damaged"),
            (REAP_TIMER, "a1"),
            (REAP_TIMER, "b2"),
            ("watchdog:1", "d1"),
            (REAP_BELOW_TIMER, "a2"),
        )
    ]
    found: Sequence[Fired] = fired
    assert await trees_with_cancels(logs, found) == ["tree of b", "tree of a"]


# ── upkeep ────────────────────────────────────────────────────────────────────────────────────


class Brought:
    """The worker that upkeep brings along, once it is needed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.adopted: list[SessionId] = []

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[Any]:
        self.opened += 1
        yield self
        self.closed += 1

    def adopt(self, sessions: Sequence[SessionId]) -> None:
        self.adopted += sessions


ENDS: dict[str, tuple[list[Forsaken], bool, list[str], int, int]] = {
    "nothing was left": ([Forsaken(False, ())], True, [], 0, 1),
    "workers are at it": ([Forsaken(True, ())], False, [], 0, 1),
    "one lay": ([Forsaken(True, ids("a")), Forsaken(False, ())], True, ["a"], 1, 2),
    "it tells those above": (
        [
            Forsaken(True, ids("a", "b")),
            Forsaken(True, ()),
            Forsaken(True, ids("c")),
            Forsaken(True, ()),
            Forsaken(False, ()),
        ],
        True,
        ["a", "b", "c"],
        1,
        5,
    ),
    "the root alone lay": ([Forsaken(False, ids("r")), Forsaken(False, ())], True, ["r"], 1, 2),
}


@pytest.mark.parametrize("how", ENDS)
async def test_upkeep_brings_one_worker_where_somebody_lies_and_keeps_it_until_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    found, over, adopted, opened, looks = ENDS[how]
    monkeypatch.setattr(upkeep_cancels, "POLL_S", 1e-6)
    monkeypatch.setattr(upkeep_cancels, "AT_MOST_S", 9e-6)
    looked, brought = Looked(monkeypatch, upkeep_cancels), Brought()
    looked.finds = {"t": iter(found)}
    broker: Any = None
    assert await end_cancelled(broker, TreeId("t"), brought.opening) is over
    assert (brought.adopted, brought.opened, brought.closed) == ([*ids(*adopted)], opened, opened)
    assert looked.trees == ["t"] * looks


async def test_cancel_that_is_not_over_in_time_is_left_to_its_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_cancels, "POLL_S", 1e-4)
    monkeypatch.setattr(upkeep_cancels, "AT_MOST_S", 3e-4)
    looked, brought = Looked(monkeypatch, upkeep_cancels), Brought()
    looked.finds = {"t": iter([Forsaken(True, ids("a"))] * 9)}
    broker: Any = None
    assert not await end_cancelled(broker, TreeId("t"), brought.opening)
    assert len(looked.trees) in (2, 3)
    assert (brought.opened, brought.closed) == (1, 1)
