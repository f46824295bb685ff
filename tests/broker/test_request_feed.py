"""The feed of requests to people: opened and settled ones are told, whatever happened to the notices."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.open_requests import Opened, RequestFeed, Settled
from orchestrator.broker.records import Claimed, Committed, Labels, NewTree
from orchestrator.core.commit_parts import Approval
from tests.broker.actors import claimed, created, new_session, session_id, step, submitted


async def asks(broker: Broker, at: Claimed | Committed, held: Claimed, key: str) -> Committed:
    opens = (Approval(key, b"may I?"),)
    done = await broker.commits.commit(step(at, held.claim, f"asks {key}", approvals_open=opens))
    assert isinstance(done, Committed)
    return done


async def settles(broker: Broker, at: Committed, held: Claimed, key: str) -> Committed:
    done = await broker.commits.commit(step(at, held.claim, f"settles {key}", approvals_close=(key,)))
    assert isinstance(done, Committed)
    return done


async def told(feed: RequestFeed, timeout_s: float = 5.0) -> list[str]:
    return [
        f"+{change.request.key}" if isinstance(change, Opened) else f"-{change.key}"
        for change in await feed.changes(timeout_s)
    ]


async def working(broker: Broker, namespace: str = "") -> Claimed:
    born = new_session()
    await broker.commits.create(NewTree(born, labels=Labels(namespace)))
    await submitted(broker, born.session)
    return await claimed(broker, born.session)


async def test_feed_tells_what_is_open_and_then_each_change_as_it_is_committed(broker: Broker) -> None:
    held = await working(broker)
    at = await asks(broker, held, held, "c1")
    feed = broker.requests.request_feed()
    assert await told(feed) == ["+c1"]
    waiting = asyncio.create_task(told(feed, 30.0))
    at = await asks(broker, at, held, "c2")
    assert await waiting == ["+c2"]
    at = await settles(broker, at, held, "c1")
    assert await told(feed) == ["-c1"]
    await feed.aclose()


async def test_feed_loses_nothing_where_the_notices_are_gone(broker: Broker) -> None:
    held = await working(broker)
    at = await asks(broker, held, held, "c1")
    feed = broker.requests.request_feed()
    assert await told(feed) == ["+c1"]
    at = await settles(broker, at, held, "c1")
    await asks(broker, at, held, "c2")
    await broker.command("DEL", broker.keys.asked(broker.keys.shard_of(held.claim.session)))
    assert await told(feed, 0.05) == ["-c1", "+c2"]
    await feed.aclose()


async def test_request_that_was_settled_and_asked_anew_between_two_looks_is_told_as_it_is_now(
    broker: Broker,
) -> None:
    held = await working(broker)
    at = await asks(broker, held, held, "c1")
    feed = broker.requests.request_feed()
    assert await told(feed) == ["+c1"]
    at = await settles(broker, at, held, "c1")
    anew = step(at, held.claim, "asks anew", approvals_open=(Approval("c1", b"without the sandbox?"),))
    assert isinstance(await broker.commits.commit(anew), Committed)
    (change,) = await feed.changes()
    assert isinstance(change, Opened)
    assert (change.request.key, change.request.payload) == ("c1", b"without the sandbox?")
    await feed.aclose()


async def test_feed_of_a_namespace_tells_of_no_other(broker: Broker) -> None:
    ours, theirs = await working(broker, "ours"), await working(broker, "theirs")
    await asks(broker, ours, ours, "mine")
    await asks(broker, theirs, theirs, "other")
    feed = broker.requests.request_feed("ours")
    assert await told(feed) == ["+mine"]
    await feed.aclose()


async def test_deleted_session_s_requests_are_settled(broker: Broker) -> None:
    held = await working(broker)
    at = await asks(broker, held, held, "c1")
    feed = broker.requests.request_feed()
    assert await told(feed) == ["+c1"]
    done = await broker.commits.commit(step(at, held.claim, "rests", cursor=held.sq_tip, release="park"))
    assert isinstance(done, Committed)
    await broker.trees.delete_session(held.claim.session)
    assert await feed.changes() == (Settled(held.claim.session, "c1"),)
    assert await created(broker) != held.claim.session
    await feed.aclose()


async def _in_shard(broker: Broker, shard: int, namespace: str = "") -> Claimed:
    born = new_session(session_id(shard))
    await broker.commits.create(NewTree(born, labels=Labels(namespace)))
    await submitted(broker, born.session)
    return await claimed(broker, born.session)


@pytest.mark.parametrize("shards", [(3, 3), (1, 3), (3, 1), (0, 15)])
async def test_feed_tells_each_change_once_whichever_shards_the_others_are_in(
    broker: Broker, shards: tuple[int, int]
) -> None:
    one, other = [await _in_shard(broker, shard) for shard in shards]
    first, second = await asks(broker, one, one, "of one"), await asks(broker, other, other, "of other")
    feed = broker.requests.request_feed()
    assert sorted(await told(feed)) == ["+of one", "+of other"]
    first = await settles(broker, first, one, "of one")
    assert await told(feed) == ["-of one"]
    second = await asks(broker, second, other, "again")
    assert await told(feed) == ["+again"]
    await settles(broker, second, other, "of other")
    await asks(broker, first, one, "of one")
    found = await told(feed)
    while len(found) < 2:
        found += await told(feed)
    assert sorted(found) == ["+of one", "-of other"]
    assert await told(feed, 0.0) == []
    await feed.aclose()


async def test_feed_that_was_cut_off_tells_what_happened_meanwhile_and_nothing_twice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other = await _in_shard(broker, 3, "ours"), await _in_shard(broker, 1, "ours")
    feed = broker.requests.request_feed("ours")

    async def is_away(*_: object) -> NoReturn:
        raise Unavailable("it is away")

    async def fails(of: object, read: str) -> None:
        with monkeypatch.context() as away:
            away.setattr(of, read, is_away)
            with pytest.raises(Unavailable):
                await told(feed, 0.0)

    at, there = await asks(broker, held, held, "c1"), await asks(broker, other, other, "o1")
    await fails(broker.requests, "approvals_of")
    await fails(broker.logs, "namespace")
    assert sorted(await told(feed)) == ["+c1", "+o1"]
    at = await settles(broker, at, held, "c1")
    await fails(broker.requests, "approvals_of")
    at = await asks(broker, at, held, "c2")
    await settles(broker, there, other, "o1")
    await fails(broker.logs, "namespace")
    assert sorted(await told(feed)) == ["+c2", "-c1", "-o1"]
    await asks(broker, at, held, "c3")
    assert await told(feed) == ["+c3"]
    await feed.aclose()


async def test_feed_of_a_namespace_is_told_of_no_change_of_another_and_misses_none_of_its_own(
    broker: Broker,
) -> None:
    ours, theirs = await _in_shard(broker, 3, "ours"), await _in_shard(broker, 3, "theirs")
    feed, all_of_them = broker.requests.request_feed("ours"), broker.requests.request_feed()
    assert await told(feed, 0.0) == await told(all_of_them, 0.0) == []
    at, there = await asks(broker, ours, ours, "c"), await asks(broker, theirs, theirs, "c")
    assert list(await feed.changes(0.0)) == [
        Opened(one) for one in await broker.requests.approvals(ours.claim.session)
    ]
    await settles(broker, there, theirs, "c")
    assert await told(feed, 0.0) == []
    await settles(broker, at, ours, "c")
    assert await feed.changes(0.0) == (Settled(ours.claim.session, "c"),)
    assert await told(all_of_them, 0.0) == [], "opened and settled between two looks"
    for one in (feed, all_of_them):
        await one.aclose()
