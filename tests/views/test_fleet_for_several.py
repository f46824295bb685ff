"""The fleet's list for several who ask at once: each gets a whole one, and no change of it is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.broker.fleet_feed import ANEW, FleetChanges
from orchestrator.broker.records import Labels, SessionHead, StoredEntry, TreeAccount
from orchestrator.broker.trees import IndexPlace
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.views import fleet
from orchestrator.views.fleet import Fleet, FleetFilter, Sort
from tests.views.test_fleet_rows import Redis, _pools, id_of, root

__all__ = ["_pools"]
MOST = 6


class Busy(Redis):
    """A Redis whose answers let others go on first."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Exception | None = None
        self.waits: asyncio.Event | None = None

    async def _others_go_on(self) -> None:
        if self.waits is not None:
            await self.waits.wait()
        if (fails := self.fails) is not None:
            self.fails = None
            raise fails
        await asyncio.sleep(0)

    async def listed(self, wanted: Any, place: Any, most: int) -> list[IndexPlace]:
        await self._others_go_on()
        shelved = wanted.shelved
        return [IndexPlace(1, one) for one, head in sorted(self.roots.items()) if head.shelved is shelved]

    async def heads(self, sessions: Sequence[SessionId], damaged: Any = None) -> list[SessionHead]:
        await self._others_go_on()
        return [self.roots[one] for one in sessions if one in self.roots]

    async def notes(self, name: str, sessions: Sequence[SessionId]) -> list[bytes]:
        await self._others_go_on()
        return await super().notes(name, sessions)

    async def accounts(self, trees: Sequence[TreeId]) -> list[TreeAccount]:
        await self._others_go_on()
        return await super().accounts(trees)

    async def askers(self) -> dict[SessionId, int]:
        await self._others_go_on()
        return self.asking

    async def read_rollout(self, session: SessionId, *_: Any) -> list[StoredEntry]:
        await self._others_go_on()
        return []

    def fleet_feed(self, namespace: str) -> Feed:
        return Feed()


class Feed:
    """A feed of the changes that a test makes, each told once."""

    def __init__(self) -> None:
        self.changes_ = deque[FleetChanges]([ANEW])

    async def changes(self, timeout_s: float) -> FleetChanges:
        await asyncio.sleep(0)
        return self.changes_.popleft() if self.changes_ else FleetChanges(told=False)

    async def aclose(self) -> None: ...


def changes(redis: Busy, fleet_: Fleet, what: str, number: int) -> None:
    """Changes a tree, and has the feed tell of it."""
    feed, session = cast(Feed, fleet_._feed), id_of(number)
    if what == "gone":
        redis.roots.pop(session, None)
        feed.changes_.append(FleetChanges(gone=(session,)))
        return
    before = redis.roots.get(session) or root(number, ended_seq=5)
    redis.roots[session] = replace(before, seq=before.seq + 1, ended_seq=before.ended_seq + 1)
    feed.changes_.append(ANEW if what == "anew" else FleetChanges((redis.roots[session],)))


@pytest.mark.parametrize("what", ["another", "gone", "anew"])
@pytest.mark.parametrize("sort", ["activity", "cost"])
async def test_clients_who_ask_at_once_while_trees_change_each_get_a_whole_list(
    what: str, sort: Sort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_PEOPLE", 3)
    redis = Busy()
    redis.roots = {id_of(number): root(number, ended_seq=5) for number in range(1, MOST + 1)}
    found = Fleet(cast(Any, redis), "")
    await found.page(FleetFilter(), (), "ann", sort)
    for number in range(1, MOST):
        asking = [
            asyncio.ensure_future(found.page(FleetFilter(), (), f"{person}{number}", sort))
            for person in ("ann", "ben", "eve")
        ]
        for _ in range(number):
            await asyncio.sleep(0)
        before = len(redis.roots)
        changes(redis, found, what, number)
        asking += [asyncio.ensure_future(found.page(FleetFilter(), (), one, sort)) for one in ("ann", "kim")]
        for page in await asyncio.gather(*asking):
            assert sum(page.counts.values()) == len(page.rows), "each tree that is counted is shown"
            assert len(page.rows) in (before, len(redis.roots))
            assert {row.state for row in page.rows} == {"ready"}
    last = await found.page(FleetFilter(), (), "ann", sort)
    assert {row.head for row in last.rows} == set(redis.roots.values())


@pytest.mark.parametrize("how", ["Redis is away", "its client leaves"])
@pytest.mark.parametrize("of", ["an agent", "a root", "all"])
async def test_change_that_is_cut_off_while_it_is_taken_in_is_shown_to_who_asks_next(
    of: str, how: str
) -> None:
    redis = Busy()
    redis.roots = {id_of(number): root(number, ended_seq=5) for number in (1, 2, 3)}
    found = Fleet(cast(Any, redis), "")
    await found.page(FleetFilter(), (), "ann")
    redis.roots[id_of(2)] = replace(redis.roots[id_of(2)], seq=7, status="running")
    told = redis.roots[id_of(2)]
    if of == "an agent":
        told = replace(root(21), tree=TreeId(id_of(2)), agent_id=AgentId(1))
    feed = cast(Feed, found._feed)
    feed.changes_.append(ANEW if of == "all" else FleetChanges((told,)))
    if how == "Redis is away":
        redis.fails = Unavailable("gone")
        with pytest.raises(Unavailable):
            await found.page(FleetFilter(), (), "ann")
    else:
        redis.waits = asyncio.Event()
        asking = asyncio.ensure_future(found.page(FleetFilter(), (), "ann"))
        for _ in range(10):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        redis.waits = None
    page = await found.page(FleetFilter(), (), "ben")
    assert {row.head.session: row.state for row in page.rows} == {
        id_of(1): "ready",
        id_of(2): "working",
        id_of(3): "ready",
    }


async def test_list_that_could_not_be_read_anew_leaves_out_no_tree_for_who_waited_behind() -> None:
    redis = Busy()
    redis.roots = {id_of(number): root(number, shelved=number > 2) for number in (1, 2, 3)}
    found = Fleet(cast(Any, redis), "")
    await found.page(FleetFilter(), (), "ann")
    redis.waits = looks = asyncio.Event()
    first = asyncio.ensure_future(found.page(FleetFilter(), (), "ann"))
    for _ in range(10):
        await asyncio.sleep(0)
    # Behind the look of one client at what has changed another one reads all, and leaves in the midst of it.
    cast(Feed, found._feed).changes_.append(ANEW)
    second = asyncio.ensure_future(found.page(FleetFilter(), (), "ben"))
    redis.waits = reads = asyncio.Event()
    looks.set()
    for _ in range(10):
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    reads.set()
    assert [row.head.session for row in (await first).rows] == [id_of(2), id_of(1)]
    assert len((await found.page(FleetFilter(shelved=True), (), "ann")).rows) == 1


async def test_tree_that_no_list_has_is_taken_in_by_none_however_it_is_told() -> None:
    redis = Busy()
    redis.roots = {id_of(1): root(1), id_of(2): root(2, labels=Labels(ephemeral=True))}
    found = Fleet(cast(Any, redis), "")
    for _ in range(2):
        assert [row.head.session for row in (await found.page(FleetFilter(), (), "ann")).rows] == [id_of(1)]
        changes(redis, found, "another", 2)
    changes(redis, found, "anew", 2)
    assert [row.head.session for row in (await found.page(FleetFilter(), (), "ann")).rows] == [id_of(1)]
