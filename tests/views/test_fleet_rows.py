"""The fleet's list in memory: the state of each tree by all that is known of it, its order, and its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.fleet_feed import FleetChanges
from orchestrator.broker.records import Labels, SessionHead, Spend, StoredEntry, TreeAccount, Unserved
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.views import fleet
from orchestrator.views.fleet import Fleet, FleetFilter, State
from orchestrator.views.threads import ReadMark
from tests.views.test_threads import head

STATUSES = ("running", "waiting", "retrying", "awaiting_approval", "paused", "idle", "closed")
SERVED = "pool that is served"


def id_of(number: int) -> SessionId:
    return SessionId(f"01a1f8a1-c5d0-7001-97bc-c80be6{number:06}")


def root(number: int, meta: dict[str, Any] | None = None, **facts: Any) -> SessionHead:
    told = {"title": "fix it", "updated_ms": 1, **(meta or {})}
    named = {"pool": "nobody's", "labels": Labels(who="ann"), "seq": 0, **facts}
    return head(told, session=id_of(number), tree=TreeId(id_of(number)), **named)


class Redis:
    """Short sets beside the hashes: who asks, who was lost, what is due, what was read."""

    def __init__(self, *agents: tuple[SessionId, SessionId]) -> None:
        self.parents = dict(agents)
        self.asking: dict[SessionId, int] = {}
        self.unserved_ = Unserved()
        self.costs: dict[str, int] = {}
        self.read: dict[tuple[str, SessionId], int] = {}
        self.roots: dict[SessionId, SessionHead] = {}
        self.said: dict[SessionId, str] = {}
        self.requests = self.claims = self.logs = self.trees = self

    async def askers(self) -> dict[SessionId, int]:
        return self.asking

    async def unserved(self, pools: Sequence[str]) -> Unserved:
        return self.unserved_

    async def place(self, session: SessionId) -> Any:
        if session not in self.parents:
            raise UnknownSession(session)
        return SimpleNamespace(tree=self.parents[session])

    async def accounts(self, trees: Sequence[TreeId]) -> list[TreeAccount]:
        return [TreeAccount(Spend(cost=self.costs.get(tree, 0))) for tree in trees]

    async def notes(self, name: str, sessions: Sequence[SessionId]) -> list[bytes]:
        marks = (self.read.get((name, one)) for one in sessions)
        return [ReadMark(1, seq).note if seq else b"" for seq in marks]

    async def read_rollout(self, session: SessionId, *_: Any) -> list[StoredEntry]:
        if session not in self.said:
            return []
        told = Entry(EVENT_MSG, {"type": "agent_message", "message": self.said[session]})
        return [StoredEntry(1, 1, encode_entry(told, 7, {}).line, b"", b"")]

    async def heads(self, sessions: Sequence[SessionId], damaged: Any = None) -> list[SessionHead]:
        return [self.roots[one] for one in sessions]

    async def recount(self, tree: TreeId) -> str:
        return ""


class Watched(Fleet):
    """A fleet of which nothing changes while it is looked at."""

    async def refresh(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _pools(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serving_pools(claims: Any) -> frozenset[str]:
        return frozenset({SERVED})

    monkeypatch.setattr(fleet, "serving_pools", serving_pools)


def fleet_of(redis: Redis, *roots: SessionHead) -> Fleet:
    found = Watched(cast(Any, redis), "")
    for one in roots:
        found._keep(one)
    return found


BASES = {
    "running": "working", "waiting": "waiting", "retrying": "waiting", "awaiting_approval": "waiting",
    "paused": "paused", "idle": "idle", "closed": "idle",
}  # fmt: skip


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("status", STATUSES)
async def test_state_of_a_tree_is_the_first_that_a_person_has_to_know(status: str, outcome: str) -> None:
    """Put away, set aside, asked, lost, due; and what it is at, or how it ended unless that was read."""
    for values in product([False, True], repeat=6):
        shelved, quarantined, asks, lost, due, unread = values
        redis = Redis()
        one = root(
            1, {"outcome": outcome}, status=status, shelved=shelved, quarantined=quarantined, ended_seq=5
        )
        redis.asking = {id_of(1): 2} if asks else {}
        redis.unserved_ = Unserved({id_of(1): 7} if lost else {}, frozenset({id_of(1)} if due else ()))
        redis.read = {} if unread else {("read:ann", id_of(1)): 5}
        base = BASES[status]
        ended = base == "idle"
        last = ("failed" if outcome == "failed" else "ready") if ended and unread else base
        wanted = next(
            word
            for word, holds in (
                ("archived", shelved), ("quarantined", quarantined), ("needs", asks), ("lost", lost),
                ("due", due), (last, True),
            )
            if holds
        )  # fmt: skip
        found = fleet_of(redis, one)
        page = await found.page(FleetFilter(shelved=shelved), (), "ann")
        assert [row.state for row in page.rows] == [wanted], values
        assert page.counts == {wanted: 1}
        assert (await found.counts("ann")) == ({} if shelved else {wanted: 1})
        row = page.rows[0]
        assert (row.requests, row.lost_ms, row.unread) == (2 * asks, 7 if lost else None, unread)
        assert not (await found.page(FleetFilter(shelved=not shelved), (), "ann")).rows


@pytest.mark.parametrize("who", [1, 11, 12])
@pytest.mark.parametrize("what", ["needs", "lost", "due"])
async def test_tree_needs_what_any_of_its_sessions_needs_and_no_other_tree_does(what: str, who: int) -> None:
    redis = Redis(*((id_of(agent), id_of(agent // 10)) for agent in (11, 12, 21, 31)))
    found = fleet_of(redis, root(1), root(2))
    sessions = [id_of(who), id_of(31)]  # Of the third the list knows nothing.
    redis.asking = dict.fromkeys(sessions, 1) if what == "needs" else {}
    of_lost = dict.fromkeys(sessions, 5) if what == "lost" else {}
    redis.unserved_ = Unserved(of_lost, frozenset(sessions if what == "due" else ()))
    rows = await found.rows([id_of(1), id_of(2)], "ann")
    assert [row.state for row in rows] == [what, "idle"]


@pytest.mark.parametrize(
    ("facts", "due"),
    [({}, True), ({"pool": SERVED}, False), ({"pool": SERVED, "unsaved_on": "vm1"}, True)],
)
async def test_tree_is_due_where_no_worker_may_take_it(facts: dict[str, Any], due: bool) -> None:
    redis = Redis()
    redis.unserved_ = Unserved({}, frozenset({id_of(1)}))
    (row,) = await fleet_of(redis, root(1, **facts)).rows([id_of(1)], "ann")
    assert row.state == ("due" if due else "idle")


async def test_requests_of_all_sessions_of_a_tree_are_counted() -> None:
    redis = Redis((id_of(11), id_of(1)), (id_of(12), id_of(1)))
    redis.asking = {id_of(1): 1, id_of(11): 2, id_of(12): 4}
    (row,) = await fleet_of(redis, root(1)).rows([id_of(1)], "ann")
    assert row.requests == 7


ORDERS: dict[fleet.Sort, list[int]] = {
    "activity": [3, 5, 4, 2, 1], "created": [5, 4, 3, 1, 2], "cost": [2, 5, 4, 3, 1],
}  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("sort", ORDERS)
async def test_pages_have_each_tree_once_in_each_order_also_where_places_are_equal(
    sort: fleet.Sort, limit: int
) -> None:
    redis = Redis()
    times = {1: (10, 3), 2: (20, 2), 3: (40, 4), 4: (30, 5), 5: (30, 5)}
    roots = [root(n, recency_ms=used, created_ms=made) for n, (used, made) in times.items()]
    redis.costs = {id_of(2): 9, id_of(4): 5, id_of(5): 5}
    found = fleet_of(redis, *roots)
    seen, after, more = list[SessionId](), None, True
    while more:
        page = await found.page(FleetFilter(), (), "ann", sort, after, limit)
        seen += [row.head.session for row in page.rows]
        after, more = found.place(page.rows[-1], sort), page.more
        assert sum(page.counts.values()) == 5
    assert seen == [id_of(number) for number in ORDERS[sort]]


async def test_wanted_states_leave_out_rows_and_no_counts() -> None:
    redis = Redis()
    redis.asking = {id_of(1): 1}
    found = fleet_of(redis, root(1), root(2, status="running"), root(3, status="paused"))
    states: tuple[State, ...] = ("needs", "paused")
    page = await found.page(FleetFilter(), states, "ann")
    assert {row.head.session for row in page.rows} == {id_of(1), id_of(3)}
    assert page.counts == {"needs": 1, "working": 1, "paused": 1}


async def test_each_person_has_their_own_unread_trees_and_each_is_looked_at_anew_when_a_tree_changes() -> (
    None
):
    redis = Redis()
    found = fleet_of(redis, root(1, ended_seq=5), root(2, ended_seq=5), root(3))
    redis.read = {("read:ann", id_of(1)): 5, ("read:ben", id_of(2)): 6, ("read:eve", id_of(1)): 4}
    people = {"ann": {id_of(2)}, "ben": {id_of(1)}, "eve": {id_of(1), id_of(2)}}
    for person, unread in people.items():
        assert await found.unread(person) == unread
    redis.read |= {(f"read:{person}", id_of(1)): 5 for person in people}
    redis.read |= {(f"read:{person}", id_of(2)): 5 for person in people}
    await found._mark({id_of(1)})
    for person, unread in people.items():
        assert await found.unread(person) == unread - {id_of(1)}, "the other was not named"
    found._keep(root(1, ended_seq=9))
    await found._mark({id_of(1), id_of(2)})
    assert [await found.unread(person) for person in people] == [{id_of(1)}] * 3


class Feed:
    """A feed that tells of these sessions, as they are."""

    def __init__(self, *heads: SessionHead, told: bool) -> None:
        self.heads, self.told = heads, told

    async def changes(self, timeout_s: float) -> FleetChanges:
        return FleetChanges(self.heads, told=self.told)


@pytest.mark.parametrize("named", [(1,), (2,), (1, 2), (11,), (2, 11), (1, 11), (31,), (1, 31)])
@pytest.mark.parametrize("what", ["read by one", "read by all", "request", "nothing"])
async def test_tree_of_which_something_is_told_is_shown_anew_though_no_head_has_it(
    what: str, named: tuple[int, ...]
) -> None:
    """A mark of what a person has read, or a request, is in no session's hash; no list has the third tree."""
    redis = Redis(*((id_of(agent), id_of(agent // 10)) for agent in (11, 12, 31)))
    roots = {id_of(number): root(number, ended_seq=5) for number in (1, 2, 3)}
    roots[id_of(3)] = replace(roots[id_of(3)], labels=Labels(ephemeral=True))
    redis.roots = roots
    found = fleet_of(redis, roots[id_of(1)], roots[id_of(2)])
    people = ("ann", "ben", "eve")
    for person in people:
        assert await found.unread(person) == {id_of(1), id_of(2)}
    agents = {
        number: replace(root(number, ended_seq=5), tree=TreeId(id_of(number // 10))) for number in (11, 31)
    }
    agents = {number: replace(one, agent_id=AgentId(1)) for number, one in agents.items()}
    heads = [agents.get(number) or roots[id_of(number)] for number in named]
    readers = {"read by one": people[:1], "read by all": people}.get(what, ())
    redis.read = {(f"read:{person}", id_of(number)): 5 for person in readers for number in (1, 2)}
    redis.asking = {id_of(1): 1, id_of(2): 1} if what == "request" else {}
    found._feed, found._anew = cast(Any, Feed(*heads, told=True)), False
    meant = {id_of(number if number < 10 else number // 10) for number in named} - {id_of(3)}
    assert await found.follow(0.0) == frozenset(meant)
    for person in people:
        for row in await found.rows(sorted(meant), person):
            assert (row.unread, row.requests) == (person not in readers, int(what == "request"))
    found._feed = cast(Any, Feed(*heads, told=False))
    assert await found.follow(0.0) == frozenset(), "nothing has changed, and nobody said so"


@pytest.mark.parametrize(
    ("facts", "listed"),
    [
        ({}, True), ({"labels": Labels(ephemeral=True)}, False), ({"agent_id": AgentId(0)}, True),
        ({"meta": b'{"unspoken": true}'}, False), ({"meta": b'{"unspoken": true}', "sq_tip": "2-0"}, True),
    ],
)  # fmt: skip
async def test_tree_leaves_the_list_with_what_makes_it_unlisted(facts: dict[str, Any], listed: bool) -> None:
    redis = Redis()
    found = fleet_of(redis, root(1), root(2))
    await found.unread("ann")
    changed = root(1, status="closed")
    meta = facts.pop("meta", changed.meta)
    assert found._keep(replace(changed, meta=meta, **facts))
    assert found.lists(id_of(1)) is listed
    assert found.lists(id_of(2))
    assert len(await found.rows([id_of(1), id_of(2)], "ann")) == 1 + listed
    assert not found._keep(replace(changed, meta=meta, **facts)), "nothing has changed since"


@pytest.mark.parametrize("named", [1, 11])
async def test_order_by_cost_has_what_the_agents_of_a_tree_spent_though_no_hash_of_a_root_tells_it(
    named: int,
) -> None:
    redis = Redis((id_of(11), id_of(1)))
    redis.roots = {id_of(number): root(number) for number in (1, 2, 3)}
    found = fleet_of(redis, *redis.roots.values())
    redis.costs = {id_of(2): 5, id_of(3): 7}
    assert (await found.page(FleetFilter(), (), "ann", "cost", None, 2)).rows[0].head.session == id_of(3)
    redis.costs[id_of(1)] = 9
    agent = replace(root(named), tree=TreeId(id_of(1)), agent_id=AgentId(named // 10))
    found._feed, found._anew = cast(Any, Feed(agent, told=True)), False
    await found.follow(0.0)
    page = await found.page(FleetFilter(), (), "ann", "cost", None, 2)
    assert [row.head.session for row in page.rows] == [id_of(1), id_of(3)]


async def test_row_has_the_last_line_of_its_log_also_of_one_that_was_put_back_and_is_as_long_again() -> None:
    redis = Redis()
    found = fleet_of(redis, root(1, seq=1, head=b"a"), root(2, seq=1, head=b"a"))
    redis.said = {id_of(1): "first", id_of(2): "first"}
    assert [row.doing.last for row in await found.rows([id_of(1), id_of(2)], "ann")] == ["first", "first"]
    redis.said = {id_of(1): "second", id_of(2): "not read"}
    found._keep(root(1, seq=1, head=b"b"))
    assert [row.doing.last for row in await found.rows([id_of(1), id_of(2)], "ann")] == ["second", "first"]
