"""The list of threads: who is on it, in which order, and page after page while sessions change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import Labels, SessionHead
from orchestrator.broker.trees import IndexPlace, Listed
from orchestrator.core.ids import AgentId, SessionId, new_session_id
from orchestrator.views.thread_list import ListAsked, ListCursor, SortKey, ThreadFilter, loaded, threads_page
from orchestrator.views.thread_pages import BadCursor, Direction
from tests.views.test_threads import RESTED, head


def numbered(n: int) -> SessionId:
    """A session of the nth second."""
    return new_session_id(n * 1_000, 0, n)


@dataclass
class Fleet:
    """Sessions, and when each changed last."""

    heads_of: dict[SessionId, SessionHead] = field(default_factory=dict)
    changes: dict[SessionId, int] = field(default_factory=dict)
    read: int = 0

    @property
    def trees(self) -> Fleet:
        return self

    @property
    def logs(self) -> Fleet:
        return self

    def add(self, n: int, changed: int, meta: dict[str, Any] | None = None, **facts: Any) -> SessionId:
        session = numbered(n)
        facts = {"tree": session, "created_ms": n * 1_000, "recency_ms": changed} | facts
        self.heads_of[session] = head({**RESTED, **(meta or {})}, session=session, **facts)
        self.changes[session] = changed
        return session

    async def listed_heads(
        self, wanted: Listed, after: IndexPlace | None, limit: int, damaged: Any
    ) -> list[tuple[IndexPlace, SessionHead]]:
        """As the fleet's index does it: the keys of its sets, in their order."""
        found = [
            (self.place(wanted, one), one)
            for one in self.heads_of.values()
            if one.agent_id == 0 and not one.labels.ephemeral and self.is_in(wanted, one)
        ]
        found.sort(key=lambda pair: pair[0].key, reverse=wanted.descending)
        if after is not None:
            found = [
                pair
                for pair in found
                if (pair[0].key < after.key if wanted.descending else pair[0].key > after.key)
            ]
        self.read += len(found[:limit])
        return found[:limit]

    def is_in(self, wanted: Listed, one: SessionHead) -> bool:
        labels = one.labels
        known = (labels.namespace, one.shelved) == (wanted.namespace, wanted.shelved)
        return known and labels.source in wanted.sources

    def place(self, wanted: Listed, one: SessionHead) -> IndexPlace:
        at_ms = one.recency_ms if wanted.order == "recency" else one.created_ms
        return IndexPlace(at_ms, one.session)

    async def head(self, session: SessionId) -> SessionHead | None:
        return self.heads_of.get(session)

    async def agents(self, tree: Any) -> dict[str, bytes]:
        below = [one for one in self.heads_of.values() if one.tree == tree and one.agent_id]
        records = {
            one.agent_id: {
                "agent_id": one.agent_id,
                "session_id": one.session,
                "agent_path": self.path(one),
                "status": "idle",
                "turn": 1,
            }
            for one in below
        }
        return {f"a:{id}": orjson.dumps(record) for id, record in records.items()}

    def path(self, one: SessionHead) -> str:
        above = None if one.parent is None else self.heads_of[one.parent]
        return str(one.agent_id) if above is None else f"{self.path(above)}/{one.agent_id}"

    async def newest(self, limit: int) -> list[SessionId]:
        return sorted(self.changes, key=lambda one: -self.changes[one])[:limit]

    async def heads(self, sessions: list[SessionId], damaged: Any) -> list[SessionHead]:
        self.read += len(sessions)
        return [self.heads_of[session] for session in sessions if session in self.heads_of]

    async def registries(self, trees: list[Any]) -> list[dict[str, bytes]]:
        return [{} for _ in trees]


def asked(limit: int = 3, **more: Any) -> ListAsked:
    return ListAsked(limit, **more)


async def pages(fleet: Fleet, **more: Any) -> list[list[int]]:
    """All pages, by the seconds in which their threads were created."""
    found, cursor = [], None
    while True:
        page = await threads_page(cast(Any, fleet), asked(cursor=cursor, **more))
        found.append([one.created_ms // 1_000 for one in page.threads])
        if page.next is None:
            return found
        cursor = ListCursor.of(str(page.next), more.get("sort", "created"))


async def test_pages_have_each_thread_once_in_both_orders_and_directions() -> None:
    fleet = Fleet()
    for n in range(1, 8):
        fleet.add(n, changed=100 - n if n % 2 else 50)
    assert await pages(fleet) == [[7, 6, 5], [4, 3, 2], [1]]
    assert await pages(fleet, direction="asc") == [[1, 2, 3], [4, 5, 6], [7]]
    assert await pages(fleet, sort="recency") == [[1, 3, 5], [7, 6, 4], [2]]
    assert await pages(fleet, sort="recency", direction="asc") == [[2, 4, 6], [7, 5, 3], [1]]


async def test_thread_that_changes_between_two_pages_moves_to_the_front_and_none_is_left_out() -> None:
    fleet = Fleet()
    for n in range(1, 7):
        fleet.add(n, changed=n)
    first = await threads_page(cast(Any, fleet), asked(sort="recency"))
    assert [one.recency_ms for one in first.threads] == [6, 5, 4]
    fleet.heads_of[numbered(1)] = replace(fleet.heads_of[numbered(1)], recency_ms=99)
    fleet.add(9, changed=100)
    second = await threads_page(cast(Any, fleet), asked(sort="recency", cursor=first.next))
    assert [one.recency_ms for one in second.threads] == [3, 2]
    back = asked(sort="recency", direction="asc", cursor=second.back)
    newer = await threads_page(cast(Any, fleet), back)
    assert [one.recency_ms for one in newer.threads] == [3, 4, 5]


async def test_list_has_what_people_began_unless_others_are_asked_for() -> None:
    fleet = Fleet()
    root = fleet.add(1, 1)
    agent = fleet.add(2, 2, tree=root, parent=root, agent_id=AgentId(1))
    below = fleet.add(3, 3, tree=root, parent=agent, agent_id=AgentId(2))
    fleet.add(4, 4, shelved=True)
    assert await pages(fleet) == [[1]]
    assert await pages(fleet, wanted=ThreadFilter(kinds=frozenset({"agent"}))) == [[3, 2]]
    assert await pages(fleet, wanted=ThreadFilter(parent=root)) == [[2]]
    assert await pages(fleet, wanted=ThreadFilter(ancestor=root)) == [[3, 2]]
    assert await pages(fleet, wanted=ThreadFilter(archived=True)) == [[4]]
    assert await pages(fleet, wanted=ThreadFilter(kinds=frozenset({"exec"}))) == [[]]
    fleet.add(5, 5, labels=Labels(source="exec"))
    assert await pages(fleet, wanted=ThreadFilter(kinds=frozenset({"exec"}))) == [[5]]
    assert await pages(fleet) == [[1]]
    both = ThreadFilter(kinds=frozenset({"cli", "agent"}), without=frozenset({below}))
    assert await pages(fleet, wanted=both) == [[2, 1]]


async def test_list_of_a_namespace_has_nothing_of_another() -> None:
    fleet = Fleet()
    root = fleet.add(1, 1)
    fleet.add(2, 2, labels=Labels("eve"), holder="w1")
    fleet.add(3, 3, tree=root, parent=root, agent_id=AgentId(1), holder="w1")
    assert await pages(fleet) == [[1]]
    assert await pages(fleet, namespace="eve") == [[2]]
    agents = ThreadFilter(kinds=frozenset({"agent", "cli"}))
    assert await pages(fleet, namespace="eve", wanted=agents) == [[2]]
    assert await pages(fleet, namespace="eve", wanted=ThreadFilter(ancestor=root)) == [[]]
    assert await loaded(cast(Any, fleet), 10, "eve") == [numbered(2)]


async def test_list_is_narrowed_by_folder_provider_and_words() -> None:
    fleet = Fleet()
    fleet.add(1, 1, {"cwd": "/work/a", "name": "Parser"})
    fleet.add(2, 2, {"cwd": "/work/b", "model_provider": "own", "name": None, "preview": "PARSER bug"})
    assert await pages(fleet, wanted=ThreadFilter(cwds=frozenset({"/work/a/"}))) == [[1]]
    assert await pages(fleet, wanted=ThreadFilter(providers=frozenset({"own"}))) == [[2]]
    assert await pages(fleet, wanted=ThreadFilter(text="parser")) == [[2, 1]]
    assert await pages(fleet, wanted=ThreadFilter(text="nowhere")) == [[]]


BARE = {"name": None, "title": "", "preview": "", "outcome": ""}


async def test_thread_without_a_word_is_in_no_list_and_pages_stay_whole() -> None:
    fleet = Fleet()
    for n in range(1, 10):
        fleet.add(n, n, BARE if n % 2 else None)
    assert await pages(fleet) == [[8, 6, 4], [2]]
    assert await pages(fleet, direction="asc", sort="recency") == [[2, 4, 6], [8]]
    assert await pages(fleet, wanted=ThreadFilter(archived=True)) == [[]]


@pytest.mark.parametrize(
    ("meta", "facts"),
    [
        ({"name": "Mine"}, {}),
        ({"preview": "hello"}, {}),
        ({"outcome": "interrupted"}, {}),
        ({"forked_from": "01a1f8a1-c5d0-7001-97bc-c80be6a60f79"}, {}),
        ({}, {"name": "Mine"}),
        ({}, {"status": "running"}),
        ({}, {"status": "awaiting_approval"}),
        ({}, {"sq_tip": "5-0"}),
    ],
)
async def test_thread_is_listed_as_soon_as_anything_was_said_or_done_in_it(
    meta: dict[str, Any], facts: dict[str, Any]
) -> None:
    fleet = Fleet()
    fleet.add(1, 1, BARE | meta, **facts)
    assert await pages(fleet) == [[1]]


async def test_page_costs_what_it_shows_and_not_the_fleet() -> None:
    fleet = Fleet()
    for n in range(1, 2_000):
        fleet.add(n, n)
    await threads_page(cast(Any, fleet), asked(50))
    assert fleet.read <= 51


@pytest.mark.parametrize("text", ["", "x", "bC5h", "é", "l" * 9_999])
def test_text_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        ListCursor.of(text, "created")


async def test_place_of_another_order_is_refused() -> None:
    fleet = Fleet()
    for n in range(1, 6):
        fleet.add(n, n)
    page = await threads_page(cast(Any, fleet), asked())
    with pytest.raises(BadCursor, match="another order"):
        ListCursor.of(str(page.next), "recency")


async def test_loaded_threads_are_held_or_owe_something() -> None:
    fleet = Fleet()
    fleet.add(1, 1)
    held = fleet.add(2, 2, holder="w1")
    owing = fleet.add(3, 3, sq_tip="2-0")
    assert await loaded(cast(Any, fleet), 10) == [owing, held]
    assert await loaded(cast(Any, fleet), 1) == [owing]


@pytest.mark.parametrize("status", ["awaiting_approval", "awaiting_answer", "waiting", "paused"])
async def test_thread_that_waits_for_a_person_or_agents_is_loaded(status: str) -> None:
    fleet = Fleet()
    fleet.add(1, 1, status="closed")
    waits = fleet.add(2, 2, status=status)
    assert await loaded(cast(Any, fleet), 10) == [waits]


def family() -> tuple[Fleet, dict[str, SessionId]]:
    """Two trees, one with agents of agents, beside a foreign, an archived and an ephemeral session.

    Several changed at one moment, and the ids of the agents are those of one second.
    """
    fleet, named = Fleet(), dict[str, SessionId]()

    def add(name: str, n: int, changed: int, above: str = "", **facts: Any) -> None:
        if above:
            root = fleet.heads_of[named[above]].tree
            number = AgentId(
                1 + sum(one.tree == root and one.agent_id > 0 for one in fleet.heads_of.values())
            )
            facts |= {"tree": root, "parent": named[above], "agent_id": number}
        named[name] = fleet.add(n, changed, **facts)

    add("root", 1, 50)
    add("child", 9, 50, "root")
    add("second", 8, 70, "root")
    add("grandchild", 7, 50, "child")
    add("below", 6, 90, "grandchild")
    add("beside", 2, 50)
    add("niece", 5, 50, "beside")
    add("archived", 3, 60, shelved=True)
    add("its agent", 10, 50, "archived")
    add("foreign", 4, 50, labels=Labels("eve"))
    add("foreign agent", 11, 50, "foreign", labels=Labels("eve"))
    add("run", 12, 50, labels=Labels(source="exec"))
    add("for a moment", 13, 50, labels=Labels(ephemeral=True))
    add("its helper", 14, 50, "for a moment")
    return fleet, named


ROOTS = {"root", "beside"}
AGENTS = {"child", "second", "grandchild", "below", "niece"}
"""An agent is put away with its root."""
LISTS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("people's", {}, ROOTS),
    ("programs'", {"kinds": frozenset({"exec"})}, {"run"}),
    ("both", {"kinds": frozenset({"cli", "exec"})}, {*ROOTS, "run"}),
    ("agents", {"kinds": frozenset({"agent"})}, AGENTS),
    ("agents and people's", {"kinds": frozenset({"agent", "cli"})}, ROOTS | AGENTS),
    ("archived", {"archived": True}, {"archived"}),
    ("archived agents", {"archived": True, "kinds": frozenset({"agent"})}, {"its agent"}),
    (
        "archived, and agents",
        {"archived": True, "kinds": frozenset({"agent", "cli"})},
        {"archived", "its agent"},
    ),
    ("below an archived one", {"ancestor": "archived"}, {"its agent"}),
    ("below an archived one, archived", {"ancestor": "archived", "archived": True}, {"its agent"}),
    ("below an ephemeral one", {"ancestor": "for a moment"}, {"its helper"}),
    ("below the root", {"ancestor": "root"}, {"child", "second", "grandchild", "below"}),
    ("below an agent", {"ancestor": "child"}, {"grandchild", "below"}),
    ("below one that has none", {"ancestor": "second"}, set()),
    ("children of the root", {"parent": "root"}, {"child", "second"}),
    ("children of an agent", {"parent": "child"}, {"grandchild"}),
    ("below nobody", {"ancestor": str(numbered(99))}, set()),
]


@pytest.mark.parametrize(("about", "wanted", "found"), LISTS, ids=[row[0] for row in LISTS])
@pytest.mark.parametrize("sort", ["created", "recency"])
@pytest.mark.parametrize("direction", ["desc", "asc"])
async def test_every_list_has_each_of_its_threads_once_in_pages_of_every_size_and_the_same_way_back(
    about: str, wanted: dict[str, Any], found: set[str], sort: SortKey, direction: Direction
) -> None:
    fleet, named = family()
    meant = {
        name: named.get(str(value), value) for name, value in wanted.items() if name in ("parent", "ancestor")
    }
    more: dict[str, Any] = {"wanted": ThreadFilter(**(wanted | meant)), "sort": sort}

    def key(session: SessionId) -> tuple[int, str]:
        one = fleet.heads_of[session]
        return (one.recency_ms if sort == "recency" else one.created_ms), session

    expected = sorted((named[name] for name in found), key=key, reverse=direction == "desc")
    other: Direction = "asc" if direction == "desc" else "desc"
    for limit in range(1, len(found) + 2):
        seen: list[SessionId] = []
        cursor: ListCursor | None = None
        while True:
            page = await threads_page(
                cast(Any, fleet), ListAsked(limit, cursor=cursor, direction=direction, **more)
            )
            here = [one.id for one in page.threads]
            assert len(here) == min(limit, len(expected) - len(seen))
            seen += here
            if page.back is not None:
                back = ListAsked(len(found), cursor=page.back, direction=other, **more)
                way = [one.id for one in (await threads_page(cast(Any, fleet), back)).threads]
                assert way == expected[: expected.index(here[0]) + 1][::-1]
            if page.next is None:
                break
            cursor = ListCursor.of(str(page.next), sort)
        assert seen == expected


async def test_list_of_few_among_many_goes_on_behind_those_that_were_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page looks at so many threads and no more; the next one goes on there, and none is left out."""
    monkeypatch.setattr("orchestrator.views.thread_list.LOOKED_THROUGH", 500)
    fleet = Fleet()
    for n in range(1, 1_501):
        fleet.add(n, n)
    left = {numbered(n) for n in (3, 700, 1_499)}
    wanted = ThreadFilter(without=frozenset(fleet.heads_of) - left)
    reads = []
    found: list[int] = []
    cursor: ListCursor | None = None
    while True:
        before = fleet.read
        page = await threads_page(cast(Any, fleet), asked(wanted=wanted, cursor=cursor))
        reads.append(fleet.read - before)
        found += [one.created_ms // 1_000 for one in page.threads]
        if page.next is None:
            break
        cursor = ListCursor.of(str(page.next), "created")
    assert found == [1_499, 700, 3]
    assert max(reads) <= 750
    assert len(reads) >= 3


@pytest.mark.parametrize("most", [0, 1, 249, 250, 251, 600])
async def test_loaded_threads_are_as_many_as_may_be_shown_and_no_more_are_read(most: int) -> None:
    fleet = Fleet()
    for n in range(1, 600):
        fleet.add(n, n, holder="w1")
    found = await loaded(cast(Any, fleet), most)
    assert [fleet.heads_of[one].recency_ms for one in found] == list(range(599, max(599 - most, 0), -1))
    assert fleet.read <= most + 250
