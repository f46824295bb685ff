"""Followers at one place, who share what they read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.follow import BEGINNING, EqCursor, Followed, follow
from orchestrator.broker.logs import SharedReads
from orchestrator.broker.records import Claimed, Committed
from orchestrator.core.ids import SessionId
from tests.broker.actors import step, working

SESSION = SessionId("s")


class Slow:
    """A reader that counts, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = 0
        self.behind: list[EqCursor] = []
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def wait_eq(self, session: SessionId, after_n: int, timeout_s: float) -> Any:
        self.asked += 1
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def wait_behind(self, session: SessionId, at: EqCursor, timeout_s: float) -> Any:
        self.behind.append(at)
        return await asyncio.shield(self.answer)


def waiting(reads: SharedReads, after_n: int = 0) -> asyncio.Task[Any]:
    return asyncio.create_task(reads.wait_eq(SESSION, after_n, 5.0))


async def steps(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_followers_at_one_place_ask_once_and_those_elsewhere_for_themselves() -> None:
    slow = Slow()
    reads = SharedReads(cast(Any, slow))
    followers = [waiting(reads) for _ in range(100)] + [waiting(reads, 1)]
    await steps()
    assert slow.asked == 2
    slow.answer.set_result(("event",))
    assert await asyncio.gather(*followers) == [("event",)] * 101


async def test_followers_at_one_number_of_two_branches_share_no_read() -> None:
    slow = Slow()
    reads = SharedReads(cast(Any, slow))
    # Redis was put back: event 3 was written anew, and one of them still has the one of before.
    places = [EqCursor(3, 2, "a" * 8), EqCursor(3, 2, "b" * 8), EqCursor(3, 1, "a" * 8)]
    tasks = [asyncio.create_task(reads.wait_behind(SESSION, at, 5.0)) for at in (*places, places[0])]
    await steps()
    assert slow.behind == places
    slow.answer.set_result(None)
    await asyncio.gather(*tasks)


async def test_follower_that_leaves_takes_nothing_from_the_others_and_the_last_ends_the_read() -> None:
    slow = Slow()
    reads = SharedReads(cast(Any, slow))
    one, two = waiting(reads), waiting(reads)
    await steps()
    one.cancel()
    await steps()
    assert not two.done()
    two.cancel()
    late = waiting(reads)
    await steps()
    assert slow.cancelled == 1
    slow.answer.set_result(())
    assert await late == ()


async def test_followers_all_learn_that_redis_is_away() -> None:
    slow = Slow()
    reads = SharedReads(cast(Any, slow))
    followers = [waiting(reads) for _ in range(3)]
    await steps()
    slow.answer.set_exception(Unavailable("gone"))
    for follower in followers:
        with pytest.raises(Unavailable):
            await follower


async def test_many_followers_each_get_every_event_once(broker: Broker) -> None:
    held = await working(broker)
    reads = SharedReads(broker.logs)

    async def take() -> list[int]:
        found: list[int] = []
        async for item in follow(reads, held.claim.session, BEGINNING):
            assert isinstance(item, Followed)
            found += [event.n for event in item.events]
            if len(found) == 3:
                break
        return found

    followers = [asyncio.create_task(take()) for _ in range(20)]
    at: Claimed | Committed = held
    for number in range(3):
        done = await broker.commits.commit(step(at, held.claim, f"k{number}"))
        assert isinstance(done, Committed)
        at = done
    found = await asyncio.gather(*followers)
    assert found == [found[0]] * 20
    assert found[0] == sorted(set(found[0]))
