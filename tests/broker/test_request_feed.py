"""The feed of requests to people: opened and settled ones are told, whatever happened to the notices."""

from __future__ import annotations

import asyncio

from orchestrator.broker.broker import Broker
from orchestrator.broker.open_requests import Opened, RequestFeed, Settled
from orchestrator.broker.records import Claimed, Committed, Labels, NewTree
from orchestrator.core.commit_parts import Approval
from tests.broker.actors import claimed, created, new_session, step, submitted


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
