"""The fleet's index: pages of roots in order, kept by what changes them, seen by their namespace alone."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import BrokerConfig, Claimed, Committed, Labels, NewTree
from orchestrator.broker.trees import IndexPlace, Listed, Order
from orchestrator.core.ids import AgentId, SessionId, TreeId
from tests.broker.actors import claimed, created, new_session, session_id, step, submitted
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis


async def labelled(broker: Broker, shard: int = 3, **labels: Any) -> SessionId:
    born = new_session(session_id(shard))
    await broker.commits.create(NewTree(born, labels=Labels(**labels)))
    return born.session


async def ids(broker: Broker, wanted: Listed, after: IndexPlace | None = None) -> list[SessionId]:
    return [place.session for place in await broker.trees.listed(wanted, after)]


async def used(broker: Broker, session: SessionId, time: int = 1) -> Committed:
    """A submission comes in, and a worker takes it and parks."""
    await submitted(broker, session, f"s{time}")
    held = await claimed(broker, session, claim_id=f"c{time}")
    done = await broker.commits.commit(step(held, held.claim, f"k{time}", cursor=held.sq_tip, release="park"))
    assert isinstance(done, Committed)
    return done


async def test_pages_of_all_shards_follow_each_other_in_both_directions(broker: Broker) -> None:
    made = [await labelled(broker, shard=number % 5) for number in range(12)]
    for descending in (True, False):
        wanted = Listed(order="creation", descending=descending)
        whole = await broker.trees.listed(wanted, limit=100)
        assert {place.session for place in whole} == set(made)
        times = [(place.at_ms, place.session) for place in whole]
        assert times == sorted(times, reverse=descending)
        pages: list[IndexPlace] = []
        after: IndexPlace | None = None
        while page := await broker.trees.listed(wanted, after, 5):
            pages += page
            after = IndexPlace.parse(str(page[-1]))
        assert pages == list(whole)


@pytest.mark.parametrize("order", ["recency", "creation"])
@pytest.mark.parametrize("descending", [True, False])
async def test_sessions_of_several_sources_and_shards_follow_each_other_by_time_on_every_page(
    order: Order, descending: bool
) -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        made = []
        for number in range(9):
            source = ("cli", "exec", "cli")[number % 3]
            made.append(await labelled(broker, shard=(3, 5)[number % 2], source=source))
            await labelled(broker, shard=3, source=source, namespace="theirs")
            clock.advance(1.0)
        wanted = Listed(sources=("exec", "cli", "exec"), order=order, descending=descending)
        expected = made[::-1] if descending else made
        assert await ids(broker, wanted) == expected
        for size in (1, 2, 5):
            pages: list[IndexPlace] = []
            while page := await broker.trees.listed(wanted, pages[-1] if pages else None, size):
                assert len(page) <= size
                pages += page
            assert [place.session for place in pages] == expected
        heads = await broker.trees.listed_heads(wanted, limit=4)
        assert [head.session for _, head in heads] == expected[:4]
        await broker.aclose()


async def test_session_that_is_used_goes_to_the_front_and_no_other_is_seen_twice(broker: Broker) -> None:
    made = [await labelled(broker) for _ in range(4)]
    first = await broker.trees.listed(Listed(), limit=2)
    rest = [session for session in made if session not in {place.session for place in first}]
    for time in count(1):
        done = await used(broker, rest[0], time)
        if done.now_ms > first[0].at_ms:
            # Within one millisecond the ids decide.
            break
    assert (await broker.trees.listed(Listed(), limit=1))[0] == IndexPlace(done.now_ms, rest[0])
    assert await ids(broker, Listed(), first[-1]) == [rest[1]]
    head = await broker.logs.head(rest[0])
    assert head is not None
    assert head.recency_ms == done.now_ms


async def test_step_that_takes_nothing_in_and_keeps_its_claim_changes_no_list(broker: Broker) -> None:
    session = await labelled(broker)
    before = await broker.trees.listed(Listed())
    await submitted(broker, session)
    held = await claimed(broker, session)
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k")), Committed)
    assert await broker.trees.listed(Listed()) == before


async def test_lists_are_of_one_namespace_and_of_the_sources_that_are_asked_for(broker: Broker) -> None:
    plain = await labelled(broker)
    theirs = await labelled(broker, namespace="team-a")
    ran = await labelled(broker, source="exec")
    await labelled(broker, ephemeral=True)
    assert await ids(broker, Listed()) == [plain]
    assert await ids(broker, Listed(namespace="team-a")) == [theirs]
    assert await ids(broker, Listed(namespace="team")) == []
    assert set(await ids(broker, Listed(sources=("cli", "exec")))) == {plain, ran}
    assert await ids(broker, Listed(sources=())) == []


async def test_agents_are_in_no_list_and_have_their_root_s_namespace(broker: Broker) -> None:
    root = await labelled(broker, namespace="team-a", who="ann")
    await submitted(broker, root)
    held = await claimed(broker, root)
    born = new_session(tree=TreeId(root), parent=root, agent_id=AgentId(1))
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k", children=(born,))), Committed)
    head = await broker.logs.head(born.session)
    assert head is not None
    assert head.labels == Labels("team-a", "agent", "ann")
    assert await broker.logs.namespace(born.session) == "team-a"
    assert not await broker.trees.enlist(born.session, shelve=False)
    assert not await broker.trees.enlist(born.session, shelve=True)
    for shelved in (False, True):
        listed = Listed(namespace="team-a", sources=("cli", "agent"), shelved=shelved)
        assert await ids(broker, listed) == ([] if shelved else [root])


async def test_session_that_was_put_away_is_in_a_list_of_its_own_until_it_is_put_back(broker: Broker) -> None:
    session, other = await labelled(broker), await labelled(broker)
    for _ in range(2):
        assert await broker.trees.enlist(session, shelve=True)
        assert await ids(broker, Listed()) == [other]
        assert await ids(broker, Listed(shelved=True)) == [session]
    await used(broker, session)
    assert await ids(broker, Listed(shelved=True, order="creation")) == [session]
    # New or known, who hands something in is told so, and words bring it back.
    told = [await submitted(broker, one, id) for one, id in ((session, "s1"), (session, "s2"), (other, "s1"))]
    assert [(one.shelved, one.duplicate) for one in told] == [(True, True), (True, False), (False, False)]
    assert await broker.trees.enlist(session, shelve=False)
    assert not (await submitted(broker, session, "s3")).shelved
    assert set(await ids(broker, Listed())) == {session, other}
    assert await ids(broker, Listed(shelved=True)) == []
    with pytest.raises(UnknownSession):
        await broker.trees.enlist(session_id(), shelve=True)


async def test_session_of_an_earlier_version_gets_into_the_index_by_upkeep_or_its_next_use(
    broker: Broker,
) -> None:
    old, used_one = await created(broker), await created(broker)
    for session in (old, used_one):
        await broker.command("HDEL", broker.keys.session(session), "recency", "namespace", "source")
    await broker.command("DEL", broker.keys.index(3))
    changed = await broker.command("ZSCORE", broker.keys.sessions(3), old)
    assert isinstance(changed, (bytes, float))
    assert await broker.trees.enlist_missing(await broker.logs.sessions()) == 2
    assert await broker.trees.enlist_missing(await broker.logs.sessions()) == 0
    await broker.command("DEL", broker.keys.index(3))
    await broker.command("HDEL", broker.keys.session(used_one), "recency")
    await broker.command("HDEL", broker.keys.session(old), "recency")
    assert await broker.trees.enlist(old)
    assert await broker.trees.listed(Listed()) == (IndexPlace(int(float(changed)), old),)
    await used(broker, used_one)
    assert set(await ids(broker, Listed())) == {old, used_one}
    assert set(await ids(broker, Listed(order="creation"))) == {old, used_one}


async def test_deleted_session_leaves_the_index(broker: Broker) -> None:
    session, other = await labelled(broker), await labelled(broker)
    await broker.trees.delete_session(session)
    for wanted in (Listed(), Listed(order="creation")):
        assert await ids(broker, wanted) == [other]
    assert await broker.command("ZCARD", broker.keys.index(3)) == 2


async def test_page_is_full_though_its_last_sessions_were_deleted_while_it_was_read(broker: Broker) -> None:
    made = [await labelled(broker) for _ in range(5)]
    wanted = Listed(order="creation", descending=False)
    order = await ids(broker, wanted)
    assert set(order) == set(made)
    for session in (order[0], order[2]):
        await broker.command("DEL", broker.keys.session(session))
    async with asyncio.timeout(5):
        first = await broker.trees.listed_heads(wanted, limit=1)
        page = await broker.trees.listed_heads(wanted, limit=2)
    assert [head.session for _, head in first] == [order[1]]
    assert [head.session for _, head in page] == [order[1], order[3]]


async def test_name_is_in_the_head_with_the_commit_that_gives_it(broker: Broker) -> None:
    session = await labelled(broker)
    await submitted(broker, session)
    held: Claimed = await claimed(broker, session)
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k", name="the parser")), Committed)
    ((_, head),) = await broker.trees.listed_heads(Listed())
    assert head.name == "the parser"


@pytest.mark.parametrize("name", ["Team", "a/b", "-a", "a" * 64, "a\n", "ä"])
async def test_namespace_that_could_be_read_as_two_is_refused(broker: Broker, name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        await labelled(broker, namespace=name)


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "a" * 63])
async def test_namespace_that_is_one_word_is_taken(broker: Broker, name: str) -> None:
    session = await labelled(broker, namespace=name)
    assert await ids(broker, Listed(namespace=name)) == [session]
    assert await broker.logs.namespace(session) == name


@pytest.mark.parametrize("text", ["", "1", "x/" + "a" * 36, "1/short", "9" * 16 + "/" + "a" * 36])
def test_place_that_no_list_gave_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="place"):
        IndexPlace.parse(text)
