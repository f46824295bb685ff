"""Sessions that are announced before they are created: born once, or given up and never born."""

from __future__ import annotations

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.commits import MOST_LISTED
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import BirthGivenUp
from orchestrator.broker.records import BrokerConfig, NewTree
from orchestrator.core.ids import SessionId
from tests.broker.actors import new_session, session_id
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis


async def announced(broker: Broker) -> SessionId:
    session = session_id()
    await broker.commits.announce(session)
    return session


async def listed(broker: Broker, after_ms: int = 1) -> tuple[SessionId, ...]:
    return await broker.commits.unborn(broker.now_ms() + after_ms)


async def test_session_is_announced_from_its_first_announcement_until_it_is_created(broker: Broker) -> None:
    root = new_session()
    announced_ms = await broker.commits.announce(root.session)
    first_ms = broker.now_ms()
    assert await broker.commits.announce(root.session) == announced_ms
    assert await broker.commits.unborn(first_ms + 1) == (root.session,)
    assert await broker.commits.unborn(first_ms - 60_000) == ()
    assert await broker.commits.create(NewTree(root, announced_ms=announced_ms))
    assert await listed(broker) == ()
    assert not await broker.commits.create(NewTree(root, announced_ms=announced_ms))


async def test_session_that_was_given_up_or_never_announced_is_not_created(broker: Broker) -> None:
    given_up, never = new_session(), new_session()
    announced_ms = await broker.commits.announce(given_up.session)
    since_ms = await broker.commits.give_up(given_up.session)
    assert since_ms is not None
    for root in (given_up, never):
        with pytest.raises(BirthGivenUp, match=root.session):
            await broker.commits.create(NewTree(root, announced_ms=announced_ms))
        assert await broker.logs.head(root.session) is None
    with pytest.raises(BirthGivenUp, match=given_up.session):
        await broker.commits.announce(given_up.session)
    assert await broker.commits.give_up(given_up.session) == since_ms, "it counts from the first time"
    assert set(await broker.commits.unborn(1)) == {given_up.session, never.session}, (
        "what is given up stays so"
    )
    for root in (given_up, never):
        await broker.commits.forget_unborn(root.session)
    assert await listed(broker) == ()


async def test_session_that_is_there_is_not_given_up(broker: Broker) -> None:
    root = new_session()
    assert await broker.commits.create(NewTree(root)), "what begins with nothing stored needs no announcement"
    await broker.commits.announce(root.session)
    assert await broker.commits.give_up(root.session) is None
    assert await listed(broker) == ()


async def test_announcement_that_came_behind_the_one_given_up_makes_no_session_of_that_one() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        root = new_session()
        announced_ms = await broker.commits.announce(root.session)
        await broker.commits.give_up(root.session)
        await broker.commits.forget_unborn(root.session)
        clock.advance(1.0)
        late_ms = await broker.commits.announce(root.session)
        assert late_ms == announced_ms + 1_000
        for other_ms in (announced_ms, late_ms - 1, late_ms + 1):
            with pytest.raises(BirthGivenUp, match=root.session):
                await broker.commits.create(NewTree(root, announced_ms=other_ms))
        assert await broker.logs.head(root.session) is None
        assert await broker.commits.create(NewTree(root, announced_ms=late_ms))
        await broker.aclose()


async def test_announced_sessions_of_every_shard_are_listed_by_when_they_were_announced() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        announced = []
        for shard in (15, 3, 0, 3, 15):
            announced.append(session_id(shard))
            await broker.commits.announce(announced[-1])
            clock.advance(1.0)
        before_ms = clock.now_ms() - 2_000
        assert set(await broker.commits.unborn(before_ms)) == set(announced[:4])
        assert set(await broker.commits.unborn(before_ms - 1)) == set(announced[:3])
        await broker.commits.give_up(announced[4])
        found = await broker.commits.unborn(before_ms - 3_000)
        assert found == (announced[4], announced[0]), "those that are given up come first"
        await broker.aclose()


async def test_round_takes_a_bounded_number_of_each_shard(broker: Broker) -> None:
    first = [await announced(broker) for _ in range(3)]
    assert MOST_LISTED >= 3
    assert set(await listed(broker)) == set(first)
