"""Deadlines: set and cleared by commits, fired once by whoever looks, by Redis's clock."""

from __future__ import annotations

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import (
    BrokerConfig,
    BudgetWait,
    Committed,
    Reservation,
    Settlement,
    Spend,
)
from orchestrator.core.commit_parts import REAP_BELOW_TIMER, REAP_MS, REAP_TIMER, Timer
from tests.broker.actors import POOL, SHARD, session_id, step, submitted, working
from tests.broker.doubles import FakeClock, redis_time
from tests.broker.families import root_of
from tests.stated import StatedRedis

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


async def test_each_deadline_that_has_passed_fires_whatever_became_of_those_before(broker: Broker) -> None:
    keys, held = broker.keys, [await working(broker) for _ in range(5)]
    for number, one in enumerate(held):
        timers = tuple(Timer(id, 1, LONG_AGO + 2 * number + at) for at, id in enumerate(("a", "b")))
        later = (Timer("later", 1, FAR_OFF),)
        await broker.commits.commit(step(one, one.claim, "k", timers_set=(*timers, *later)))
    await broker.command("ZADD", keys.timers(SHARD), 1, f"{session_id()}:a")
    await broker.command("DEL", keys.session(held[0].claim.session))
    await broker.command("DEL", keys.timer(held[2].claim.session))
    living = [held[number].claim.session for number in (1, 3, 4)]
    fired = [(one.session, one.timer, one.sq_id) for one in await broker.claims.fire(SHARD)]
    expected = [(session, id, n) for session in living for id, n in (("a", "2-0"), ("b", "3-0"))]
    assert fired == expected
    assert await broker.claims.fire(SHARD) == ()
    left = await broker.command("ZRANGE", keys.timers(SHARD), 0, -1)
    assert isinstance(left, list)
    assert {f"{session}:later".encode() for session in living} <= set(left)
    assert not [name for name in left if not name.endswith(b":later")]


async def test_holder_of_a_session_whose_deadline_passes_is_told(broker: Broker) -> None:
    held, other = await working(broker), await working(broker)
    await broker.commits.commit(step(held, held.claim, "k", timers_set=(Timer("t", 1, LONG_AGO),)))
    cursors = (await broker.claims.wait_for_notices(POOL, "w1", {}, 0.01)).cursors
    assert len(await broker.claims.fire(SHARD)) == 1
    assert (await broker.claims.wait_for_notices(POOL, "w1", cursors, 5.0)).notified == (held.claim.session,)
    assert other.claim.session != held.claim.session


async def test_deadline_of_an_archived_session_wakes_nobody_and_is_taken_off(broker: Broker) -> None:
    root = await root_of(broker)
    await root.does(timers_set=(Timer("t", 1, FAR_OFF),))
    await root.is_archived()
    await broker.command("ZADD", broker.keys.timers(SHARD), LONG_AGO, f"{root.session}:t")
    assert await broker.claims.fire(SHARD) == ()
    assert await broker.command("ZCARD", broker.keys.timers(SHARD)) == 0
    head = await broker.logs.head(root.session)
    assert head is not None
    assert not head.has_unread
    assert not (await broker.logs.serving([head]))[root.session].due


@pytest.mark.parametrize("id", [REAP_TIMER, REAP_BELOW_TIMER, "once"])
async def test_deadline_that_stands_until_it_is_cleared_comes_again_and_is_queued_where_nothing_waits(
    id: str,
) -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(lease_s=1e6), clock.monotonic)
        held = await working(broker)
        timer = Timer(id, 3, clock.now_ms())
        at = await broker.commits.commit(step(held, held.claim, "k0", cursor="1-0", timers_set=(timer,)))
        stands = id != "once"
        tips = []
        for number in range(4):
            fired = await broker.claims.fire(SHARD)
            assert [(one.timer, one.generation) for one in fired] == (
                [(id, 3)] if stands or not number else []
            )
            assert await broker.claims.fire(SHARD) == ()
            tips += [one.sq_id for one in fired]
            if number == 1 and stands:
                assert isinstance(at, Committed)
                at = await broker.commits.commit(step(at, held.claim, "k1", cursor=tips[-1]))
            clock.advance(REAP_MS / 1000 - 0.5)
            assert await broker.claims.fire(SHARD) == ()
            clock.advance(0.5)
        assert tips == (["2-0", "2-0", "3-0", "3-0"] if stands else ["2-0"])
        if stands:
            assert isinstance(at, Committed)
            await broker.commits.commit(step(at, held.claim, "k2", timers_clear=(id,)))
            clock.advance(REAP_MS / 1000)
            assert await broker.claims.fire(SHARD) == ()
        await broker.aclose()


async def test_deadline_of_a_damaged_session_keeps_no_other_from_firing(broker: Broker) -> None:
    held = [await working(broker) for _ in range(4)]
    for number, one in enumerate(held):
        timers = (Timer("t", 1, LONG_AGO + number),)
        await broker.commits.commit(step(one, one.claim, "k", timers_set=timers))
    for bad in (held[0], held[2]):
        await broker.command("XADD", broker.keys.sq(bad.claim.session), "99-0", "p", "from nowhere")
    with pytest.raises(Corrupt, match=held[0].claim.session):
        await broker.claims.fire(SHARD)
    for one in (held[1], held[3]):
        queued = await broker.logs.read_sq(one.claim.session)
        assert [entry.submission for entry in queued] == ["s1", "t"]
    damaged: list[Corrupt] = []
    assert await broker.claims.fire(SHARD, damaged=damaged) == ()
    keys = [broker.keys.sq(bad.claim.session) for bad in (held[0], held[2])]
    assert [error.key for error in damaged] == keys


async def test_step_that_wakes_who_waits_stands_though_a_deadline_of_a_damaged_session_has_passed(
    broker: Broker,
) -> None:
    damaged = await working(broker)
    await broker.commits.commit(step(damaged, damaged.claim, "k", timers_set=(Timer("t", 1, LONG_AGO),)))
    await broker.command("XADD", broker.keys.sq(damaged.claim.session), "99-0", "p", "from nowhere")
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=Reservation("1", Spend(90, 0, 1)))
    waits = BudgetWait(Spend(50, 0, 1), "budget")
    await child.parks(budget_wait=waits, timers_set=(Timer("budget", 1, FAR_OFF),))
    await root.does(settlements=(Settlement("1", Spend(20, 0, 1)),))
    await child.claims_again()
    assert [entry.submission for entry in child.held.first] == ["budget"]
