"""Deadlines: set and cleared by commits, fired once by whoever looks, by Redis's clock."""

from __future__ import annotations

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Committed
from orchestrator.core.commit_parts import Timer
from tests.broker.actors import POOL, SHARD, step, submitted, working

LONG_AGO = 1_000
FAR_OFF = 1 << 45


async def test_due_timer_becomes_an_entry_with_its_generation_and_wakes_the_session(broker: Broker) -> None:
    held = await working(broker)
    timer = Timer("await", 7, LONG_AGO)
    await broker.commits.commit(
        step(held, held.claim, "k", cursor="1-0", timers_set=(timer,), release="park")
    )
    fired = await broker.claims.fire(SHARD)
    assert [(f.session, f.timer, f.generation) for f in fired] == [(held.claim.session, "await", 7)]
    found = await broker.claims.claim(POOL, "w2", "c2", SHARD)
    assert found is not None
    entry = found.first[0]
    assert (entry.kind, entry.submission, entry.generation, entry.payload) == (
        "timer",
        "await",
        7,
        b"",
    )
    assert await broker.claims.fire(SHARD) == ()


async def test_timer_of_the_future_does_not_fire(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.commit(step(held, held.claim, "k", timers_set=(Timer("t", 1, FAR_OFF),)))
    assert await broker.claims.fire(SHARD) == ()


async def test_cleared_timer_does_not_fire_and_a_replaced_one_fires_as_the_last(broker: Broker) -> None:
    held = await working(broker)
    both = (Timer("a", 1, LONG_AGO), Timer("b", 1, LONG_AGO))
    done = await broker.commits.commit(step(held, held.claim, "k1", timers_set=both))
    assert isinstance(done, Committed)
    again = (Timer("b", 2, LONG_AGO),)
    await broker.commits.commit(step(done, held.claim, "k2", timers_clear=("a", "b"), timers_set=again))
    assert [(f.timer, f.generation) for f in await broker.claims.fire(SHARD)] == [("b", 2)]


async def test_two_workers_fire_a_timer_once(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.commit(step(held, held.claim, "k", timers_set=(Timer("t", 1, LONG_AGO),)))
    first = await broker.claims.fire(SHARD)
    assert len(first) == 1
    assert await broker.claims._fire(held.claim.session, "t") is None


async def test_timer_of_a_deleted_session_disappears(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.commit(
        step(held, held.claim, "k", cursor="1-0", timers_set=(Timer("t", 1, LONG_AGO),), release="park")
    )
    await broker.trees.delete_session(held.claim.session)
    assert await broker.claims.fire(SHARD) == ()


async def test_full_queue_does_not_stop_a_deadline(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.commit(step(held, held.claim, "k", timers_set=(Timer("t", 1, LONG_AGO),)))
    for number in range(2, 1_001):
        await submitted(broker, held.claim.session, f"s{number}")
    assert len(await broker.claims.fire(SHARD)) == 1


async def test_deadline_whose_session_or_timer_is_gone_is_taken_off(broker: Broker) -> None:
    keys = broker.keys
    for gone in (keys.session, keys.timer):
        held = await working(broker)
        session = held.claim.session
        await broker.commits.commit(step(held, held.claim, "k", timers_set=(Timer("t", 1, LONG_AGO),)))
        await broker.command("DEL", gone(session))
        assert await broker.claims.fire(SHARD) == ()
        assert await broker.command("ZCARD", keys.timers(SHARD)) == 0
