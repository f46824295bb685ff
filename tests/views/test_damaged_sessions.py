"""Damaged sessions hide no other in any list: each is left out, the log names it, and it comes back whole."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.broker.records import BrokerConfig, Claimed, Committed, Labels, NewTree, OpenApproval
from orchestrator.core.commit_parts import Approval
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.gateways.app_server.methods import v1
from orchestrator.gateways.app_server.methods.v1 import ListConversations, list_conversations
from orchestrator.gateways.resume import until_read
from orchestrator.gateways.window import feeds
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.views import decided_requests, readable
from orchestrator.views.approvals import asked_of, needed, open_requests_of
from orchestrator.views.fleet import Fleet, FleetFilter
from orchestrator.views.sessions import Filter, found_rows, sessions_listed, trees_listed
from orchestrator.views.thread_list import (
    Kind,
    ListAsked,
    ListCursor,
    SortKey,
    ThreadFilter,
    loaded,
    threads_page,
)
from orchestrator.views.thread_pages import Direction
from orchestrator.views.threads import ReadMark, mark_name, read_states
from orchestrator.views.tree import TreeReader
from tests.broker.actors import claimed, new_session, session_id, step, submitted
from tests.stated import StatedRedis

META = orjson.dumps({"title": "fix it", "model": "m", "cwd": "/work", "updated_ms": 1_000})
ASKS = orjson.dumps(
    {"event": {"type": "exec_approval_request", "call_id": "c", "command": ["ls"], "cwd": "/"}}
)

Damages = Callable[[Broker, str], Awaitable[Any]]


def sets(field: str, value: str | bytes) -> Damages:
    return lambda broker, key: broker.command("HSET", key, field, value)


async def _replaces(broker: Broker, key: str) -> None:
    await broker.command("DEL", key)
    await broker.command("SET", key, "no hash")


DAMAGE: dict[str, Damages] = {
    "no number": sets("seq", "many"),
    "no text": sets("status", b"\xff"),
    "half a summary": sets("meta", '{"title'),
    "a summary that is no object": sets("meta", "[]"),
    "a summary with a folder that is no text": sets("meta", '{"cwd": 5}'),
    "half a note of its repository": sets("note:git", '{"branch'),
    "states of agents that are none": sets("states", "0:x:idle|idle=1"),
    "no hash": _replaces,
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    double = StatedRedis()
    opened = Broker(Connection(double, double), BrokerConfig(lease_s=60.0), lambda: 0.0)
    await opened.open()
    readable._told.clear()
    yield opened
    await opened.aclose()


async def born(broker: Broker, count: int = 1, namespace: str = "") -> list[SessionId]:
    """Trees in which somebody has spoken, the oldest first, in several shards."""
    made = [new_session(session_id(shard % 3), meta=META) for shard in range(count)]
    for one in made:
        await broker.commits.create(NewTree(one, labels=Labels(namespace=namespace)))
    return [one.session for one in made]


async def damaged(broker: Broker, how: str, those: Collection[SessionId]) -> None:
    for one in those:
        await DAMAGE[how](broker, broker.keys.session(one))


async def _sessions(broker: Broker) -> list[str]:
    return [str(row["session_id"]) for row in (await sessions_listed(broker, Filter(), 20, all=False)).rows]


async def _trees(broker: Broker) -> list[str]:
    listing = await trees_listed(broker, Filter(), 20, all=True)
    assert listing.whole
    return [str(tree.root["session_id"]) for tree in listing.trees]


async def _found(broker: Broker) -> list[str]:
    return [str(head.session) async for _, head in found_rows(broker, 20)]


async def _fleet(broker: Broker) -> list[str]:
    fleet = Fleet(broker, "")
    page = await fleet.page(FleetFilter(), (), "ann")
    await fleet.aclose()
    return [str(row.tree) for row in page.rows]


async def _loaded(broker: Broker) -> list[str]:
    return list(map(str, await loaded(broker.logs, 20)))


async def _conversations(broker: Broker) -> list[str]:
    ports, client = SimpleNamespace(found=SimpleNamespace(broker=broker)), SimpleNamespace(namespace=None)
    door, cursor, found = cast(Any, SimpleNamespace(ports=ports, client=client)), None, list[str]()
    while True:
        page = await list_conversations(door, ListConversations(page_size=1, cursor=cursor))
        found += [str(one["conversationId"]) for one in cast(Any, page)["items"]]
        cursor = cast(Any, page).get("nextCursor")
        if cursor is None:
            return found


def _pages(
    sort: SortKey, direction: Direction, kinds: Sequence[Kind]
) -> Callable[[Broker], Awaitable[list[str]]]:
    async def read(broker: Broker) -> list[str]:
        """Pages of one thread each: a page of damaged ones alone is no end."""
        wanted, cursor, found = ThreadFilter(frozenset(kinds)), None, list[str]()
        while True:
            page = await threads_page(broker, ListAsked(1, sort, direction, cursor, "", wanted))
            found += [str(one.id) for one in page.threads]
            if page.next is None:
                return found
            cursor = ListCursor.of(str(page.next), sort)

    return read


LISTS: dict[str, Callable[[Broker], Awaitable[list[str]]]] = {
    "dendro sessions --json": _sessions,
    "dendro sessions": _trees,
    "dendro search": _found,
    "fleet/list": _fleet,
    "thread/loaded/list": _loaded,
    "listConversations": _conversations,
    "thread/list": _pages("created", "desc", ("cli",)),
    "thread/list, oldest first": _pages("created", "asc", ("cli",)),
    "thread/list, by last use": _pages("recency", "desc", ("cli",)),
    "thread/list, with agents": _pages("created", "desc", ("cli", "agent")),
}


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    async def path(door: Any, head: Any) -> str:
        return ""

    async def pools(claims: Any) -> frozenset[str]:
        return frozenset()

    monkeypatch.setattr(v1, "_path", path)
    monkeypatch.setattr("orchestrator.views.fleet.serving_pools", pools)


@pytest.mark.parametrize(
    ("of", "how"),
    [*product(LISTS, ["no number", "half a summary", "no hash"]), *product(["thread/list"], DAMAGE)],
)
async def test_list_has_all_sessions_but_the_damaged_ones_and_all_again_when_they_are_whole(
    of: str, how: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    made = await born(broker, 8)
    if of == "thread/loaded/list":
        for one in made:
            await submitted(broker, one)
    whole = await LISTS[of](broker)
    assert sorted(whole) == sorted(made)
    # The first and the last of an order, and some that stand side by side in it.
    bad = {made[0], made[3], made[4], made[5], made[7]}
    fields: dict[SessionId, Any] = {
        one: await broker.command("HGETALL", broker.keys.session(one)) for one in bad
    }
    await damaged(broker, how, bad)
    with caplog.at_level(logging.WARNING, "dendro.lists"):
        for _ in range(2):
            assert await LISTS[of](broker) == [one for one in whole if one not in bad]
    told = [record.getMessage() for record in caplog.records if record.name == "dendro.lists"]
    assert len(told) == len(bad), "each is told of once"
    assert all(any(one in line and broker.keys.session(one) in line for line in told) for one in bad)
    for one, known in fields.items():
        await broker.command("DEL", broker.keys.session(one))
        flat = [part for pair in known.items() for part in pair]
        await broker.command("HSET", broker.keys.session(one), *flat)
    assert await LISTS[of](broker) == whole


@pytest.mark.parametrize("how", DAMAGE)
async def test_tree_that_is_damaged_while_the_fleet_is_followed_leaves_it_and_comes_back(
    how: str, broker: Broker
) -> None:
    first, second, third = await born(broker, 3)
    (foreign,) = await born(broker, 1, "acme")
    fleet = Fleet(broker, "")
    before = await fleet.page(FleetFilter(), (), "ann")
    assert ({row.head.session for row in before.rows}, before.damaged) == ({first, second, third}, ())
    keys = {one: broker.keys.session(one) for one in (second, foreign)}
    known: dict[SessionId, Any] = {one: await broker.command("HGETALL", key) for one, key in keys.items()}
    await damaged(broker, how, keys)
    for one in keys:
        await broker.command("XADD", broker.keys.changed(broker.keys.shard_of(one)), "*", "s", one)
    for _ in range(2):
        page = await fleet.page(FleetFilter(), (), "ann")
        assert ({row.head.session for row in page.rows}, page.damaged) == ({first, third}, (second,))
        assert page.damaged == tuple(fleet.damaged)
        assert sum(page.counts.values()) == 2
    for one, key in keys.items():
        await broker.command("DEL", key)
        await broker.command("HSET", key, *[part for pair in known[one].items() for part in pair])
        await broker.command("XADD", broker.keys.changed(broker.keys.shard_of(one)), "*", "s", one)
    page = await fleet.page(FleetFilter(), (), "ann")
    assert ({row.head.session for row in page.rows}, page.damaged) == ({first, second, third}, ())
    await fleet.aclose()


@pytest.mark.parametrize("gone", [True, False])
async def test_damaged_tree_is_named_until_it_is_gone_or_read_by_who_begins_anew(
    gone: bool, broker: Broker
) -> None:
    first, second = await born(broker, 2)
    await damaged(broker, "no number", [second])
    fleet = Fleet(broker, "")
    assert (await fleet.page(FleetFilter(), (), "ann")).damaged == (second,)
    other = Fleet(broker, "acme")
    assert (await other.page(FleetFilter(), (), "ann")).damaged == (), "another namespace learns of nothing"
    if gone:
        await broker.command("DEL", broker.keys.session(second))
        shard = broker.keys.shard_of(second)
        await broker.command("XADD", broker.keys.changed(shard), "*", "s", second)
    else:
        await broker.command("HSET", broker.keys.session(second), "seq", 0)
        fleet._anew = True
    page = await fleet.page(FleetFilter(), (), "ann")
    trees = {row.head.session for row in page.rows}
    assert (trees, page.damaged) == ({first} if gone else {first, second}, ())
    for one in (fleet, other):
        await one.aclose()


async def family(broker: Broker) -> tuple[SessionId, list[SessionId]]:
    """A root with three agents."""
    root = new_session(session_id(1), meta=META)
    await broker.commits.create(NewTree(root))
    await submitted(broker, root.session)
    at: Claimed | Committed = await claimed(broker, root.session)
    held, children = cast(Claimed, at), list[SessionId]()
    for number in (1, 2, 3):
        child = new_session(
            session_id(1),
            tree=TreeId(root.session),
            agent_id=AgentId(number),
            parent=root.session,
            meta=META,
        )
        record = {
            "agent_id": number, "session_id": child.session, "parent_agent_id": 0, "turn": "",
            "agent_path": f"0/{number}", "parent_session_id": root.session, "status": "running",
            "origin": "spawn",
        }  # fmt: skip
        said = {f"a:{number}": orjson.dumps(record)}
        done = await broker.commits.commit(
            step(at, held.claim, f"k{number}", [b"{}"], children=(child,), summary=said)
        )
        assert isinstance(done, Committed)
        at = done
        children.append(child.session)
    return root.session, children


@pytest.mark.parametrize("how", [*DAMAGE, "a log of which an entry is none"])
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_damaged_agent_hides_no_other_of_its_tree(which: int, how: str, broker: Broker) -> None:
    root, children = await family(broker)
    bad = children[which]
    if how in DAMAGE:
        await damaged(broker, how, [bad])
    else:
        await broker.command("XADD", broker.keys.rollout(bad), "1-0", "p", "no entry")
        await broker.command("HSET", broker.keys.session(bad), "seq", 1)
    picture = await TreeReader(broker, TreeId(root)).picture()
    there = {agent.session for agent in picture.agents.values()}
    assert there == {root, *children} - ({bad} if how in DAMAGE else set())
    page = await threads_page(broker, ListAsked(10, wanted=ThreadFilter(parent=root)))
    assert {one.id for one in page.threads} == set(children) - ({bad} if how in DAMAGE else set())
    fleet = Fleet(broker, "")
    (row,) = (await fleet.page(FleetFilter(), (), "ann")).rows
    assert row.head.session == root
    await fleet.aclose()


@pytest.mark.parametrize("how", ["half a record", "no record", "no hash", "no number"])
@pytest.mark.parametrize("bad", [0, 1])
async def test_registry_of_a_tree_that_is_damaged_hides_no_other_tree(
    bad: int, how: str, broker: Broker
) -> None:
    trees = [await family(broker) for _ in range(2)]
    (root, children), (other, others) = trees[bad], trees[1 - bad]
    key = broker.keys.agents(TreeId(root))
    if how == "no hash":
        await _replaces(broker, key)
    elif how == "no number":
        await broker.command("HSET", key, "spent:tokens", "many")
    else:
        await broker.command("HSET", key, "a:2", '{"agent' if how == "half a record" else '{"agent_id":2}')
    everybody = {root, other, *children, *others}
    rows = [row async for row in found_rows(broker, 100)]
    assert {head.session for _, head in rows} == everybody
    assert {row["status"] for row, head in rows if head.session in others} == {"running"}
    page = await threads_page(broker, ListAsked(10, wanted=ThreadFilter(parent=other)))
    assert {one.id for one in page.threads} == set(others)
    fleet = Fleet(broker, "")
    assert {row.head.session for row in (await fleet.page(FleetFilter(), (), "ann")).rows} == {root, other}
    await fleet.aclose()
    source = cast(Any, SimpleNamespace(broker=broker, large_texts=_no_texts))
    asked = [await asked_of(source, OpenApproval(one, "c", ASKS, 5)) for one in (*children, *others)]
    assert len(await needed(source, [one for one in asked if one is not None])) == 6


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("bad", [(0,), (2,), (0, 1)])
async def test_requests_of_all_other_sessions_wait_for_people_though_one_that_asks_is_damaged(
    bad: tuple[int, ...], how: str, broker: Broker
) -> None:
    asking = list[SessionId]()
    for one in await born(broker, 4):
        await submitted(broker, one)
        held = await claimed(broker, one)
        opened = step(
            held, held.claim, "k", [b"{}"], approvals_open=(Approval("c", ASKS),), cursor=held.sq_tip
        )
        await broker.commits.commit(opened)
        asking.append(one)
    source = cast(Any, SimpleNamespace(broker=broker, large_texts=_no_texts))
    whole = await open_requests_of(source, None)
    assert {one.session for one in whole} == set(asking)
    await damaged(broker, how, [asking[at] for at in bad])
    left = [one for at, one in enumerate(asking) if at not in bad]
    found = await open_requests_of(source, None)
    assert {one.session for one in found} == set(left)
    assert [one.asked for one in await needed(source, whole)] == whole, "what is put already stays"
    assert {one.folder for one in await needed(source, found)} == {"/work"}
    fleet = Fleet(broker, "")
    page = await fleet.page(FleetFilter(), (), "ann")
    assert {row.head.session for row in page.rows if row.state == "needs"} == set(left)
    await fleet.aclose()
    head = await broker.logs.head(left[-1])
    assert head is not None
    assert await until_read(source, head)
    roots = [root.session async for root in decided_requests._newest_roots(source)]
    assert sorted(roots) == sorted(left)


@pytest.mark.parametrize("how", ["no number", "no text", "no hash"])
@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_request_of_a_damaged_session_is_nobody_s_to_answer_and_all_others_are_told(
    bad: int, how: str, broker: Broker
) -> None:
    """Readers of the queue look at each that opens by itself: one of them must not end that."""
    source = cast(Any, SimpleNamespace(broker=broker, large_texts=_no_texts))
    sessions = await born(broker, 3)
    opened = [OpenApproval(one, "c", ASKS, 5) for one in sessions]
    await damaged(broker, how, [sessions[bad]])
    found = [await asked_of(source, one) for one in opened]
    wanted = [None if at == bad else one for at, one in enumerate(sessions)]
    assert [None if one is None else one.session for one in found] == wanted
    ports = cast(Any, SimpleNamespace(found=source))
    rows = [await feeds._ended(ports, one, "c") for one in sessions]
    assert [(row["threadId"], row["decision"]) for row in rows] == [(one, None) for one in sessions]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"{}:d", b"no time"),
        (b"{}:d", b"many:%b" % ASKS),
        (b"\xff:d", b"5:%b" % ASKS),
        (b"{}:d", b"5:half a reque"),
        (b"{}:d", b"5:[]"),
        (b"{}:d", b"5:{}"),
        (b"{}:d", b'5:{"event":{}}'),
    ],
)
async def test_request_that_cannot_be_read_hides_no_other(field: bytes, value: bytes, broker: Broker) -> None:
    """All requests of a shard lie in one hash, those of other people too."""
    (session,) = await born(broker, 1)
    await submitted(broker, session)
    held = await claimed(broker, session)
    asks = tuple(Approval(key, ASKS) for key in ("c", "e"))
    await broker.commits.commit(step(held, held.claim, "k", [b"{}"], approvals_open=asks, cursor=held.sq_tip))
    key = broker.keys.approvals(broker.keys.shard_of(session))
    await broker.command("HSET", key, field.replace(b"{}", session.encode(), 1), value)
    source = cast(Any, SimpleNamespace(broker=broker, large_texts=_no_texts))
    found = await open_requests_of(source, None)
    assert {one.call_id for one in found} == {"c", "e"}
    opened = {one.key: one for one in await broker.requests.approvals()}
    told = [await asked_of(source, one) for one in opened.values()]
    assert {one.call_id for one in told if one is not None} == {"c", "e"}
    assert (await broker.requests.askers())[session] >= 2


async def _no_texts(tree: Any, digests: Any) -> dict[str, str]:
    return {}


@pytest.mark.parametrize(
    "how", [ArchiveUnavailable("away"), BrokenArchive("a part is broken"), ValueError("x")]
)
@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_read_states_of_all_threads_are_told_but_of_one_whose_log_cannot_be_read(
    bad: int, how: Exception, broker: Broker
) -> None:
    threads = await born(broker, 3)
    for one in threads:
        await broker.command("HSET", broker.keys.session(one), "seq", 9)
        await broker.requests.note(one, mark_name("ann"), ReadMark(1, 3).note, b"")

    async def log(session: SessionId, through: int, after: int) -> AsyncIterator[Any]:
        if session == threads[bad]:
            raise how
        entries: tuple[Any, ...] = ()
        for entry in entries:
            yield entry

    states = await read_states(cast(Any, SimpleNamespace(broker=broker, log=log)), threads, "ann")
    assert set(states) == {one for at, one in enumerate(threads) if at != bad}


@pytest.mark.parametrize("error", [Unavailable("away"), BrokerError("WRONG credentials")])
async def test_list_that_redis_does_not_answer_is_no_list_of_damaged_sessions(
    error: BrokerError, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await born(broker, 3)

    async def fails(rows: Any) -> Any:
        raise error

    monkeypatch.setattr(broker.logs._connection, "commands", fails)
    monkeypatch.setattr(broker.logs._connection, "command", fails)
    with pytest.raises(BrokerError) as caught:
        await readable.readable(broker.logs, made)
    assert caught.value is error


async def test_so_many_damaged_sessions_are_told_of_once_and_the_first_again_behind_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(readable, "MOST_TOLD", 2)
    made = await born(broker, 3)
    await damaged(broker, "no number", made)
    with caplog.at_level(logging.WARNING, "dendro.lists"):
        for some in (made[:2], made[:2], made[2:], made[1:], made[:1]):
            assert await readable.readable(broker.logs, some) == ()
    told = [
        next(at for at, one in enumerate(made) if one in record.getMessage()) for record in caplog.records
    ]
    assert told == [0, 1, 2, 0]
