"""A step of Redis's clock gives nothing away: an expiry counts as far as the claimer's clock bears it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.port import Witness
from orchestrator.broker.records import BrokerConfig, Look
from tests.broker.actors import POOL, SHARD, working
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis

LEASE_S = 6.0


class Clocks:
    """Redis's clock and a process's own, which go alike until one of them is set."""

    def __init__(self, redis: FakeClock) -> None:
        self.redis = redis
        self.own = FakeClock(0.0)

    def pass_s(self, seconds: float) -> None:
        self.redis.advance(seconds)
        self.own.advance(seconds)

    def opened(self, client: StatedRedis) -> Broker:
        config = BrokerConfig(lease_s=LEASE_S, watch_s=LEASE_S)
        return Broker(Connection(client, client), config, self.own.time)


@pytest.fixture
def clocks() -> Iterator[Clocks]:
    with redis_time(FakeClock()) as redis:
        yield Clocks(redis)


async def looks_for(broker: Broker, clocks: Clocks, seconds: int) -> str | None:
    """Looks each second; the worker's last look, or the claim that it got."""
    for _ in range(seconds):
        clocks.pass_s(1.0)
        found = await broker.claims.claim(POOL, "w2", "c2", SHARD)
        if found is not None:
            return found.claim.claim_id
    return None


async def test_worker_that_saw_the_clock_set_takes_nobodys_session_before_its_time(clocks: Clocks) -> None:
    client = StatedRedis()
    async with aclosing(clocks.opened(client)) as holder, aclosing(clocks.opened(client)) as other:
        assert await looks_for(other, clocks, 10) is None
        held = await working(holder)
        clocks.redis.advance(3600.0)
        assert await looks_for(other, clocks, 3) is None
        assert (await holder.claims.renew([held.claim]))[0]
        assert await looks_for(other, clocks, 5) is None
        assert await looks_for(other, clocks, 3) == "c2", "nobody renews any more"


async def test_worker_that_has_just_come_waits_before_it_takes_what_has_run_out(clocks: Clocks) -> None:
    client = StatedRedis()
    async with aclosing(clocks.opened(client)) as holder, aclosing(clocks.opened(client)) as other:
        held = await working(holder)
        clocks.redis.advance(3600.0)
        assert await looks_for(other, clocks, 3) is None
        assert (await holder.claims.renew([held.claim]))[0]
        clocks.pass_s(LEASE_S)
        assert await looks_for(other, clocks, 5) == "c2"


@pytest.mark.parametrize("cluster", [False, True])
async def test_worker_that_finds_nothing_by_its_looks_takes_at_once_what_then_runs_out(
    clocks: Clocks, cluster: bool
) -> None:
    client = StatedRedis()
    config = BrokerConfig(lease_s=LEASE_S, watch_s=LEASE_S, shards=8)
    connections = [Connection(client, client, clustered=cluster) for _ in range(2)]
    holder, other = [Broker(one, config, clocks.own.time) for one in connections]
    for _ in range(int(LEASE_S) + 1):
        assert await other.claims.look([POOL], "w2") == Look()
        clocks.pass_s(1.0)
    held = await working(holder)
    clocks.pass_s(LEASE_S - 1.0)
    assert await other.claims.look([POOL], "w2") == Look()
    clocks.pass_s(1.0)
    assert await other.claims.look([POOL], "w2") == Look(claimable=((POOL, SHARD),))
    found = await other.claims.claim(POOL, "w2", "c2", SHARD)
    assert found is not None
    assert found.claim.session == held.claim.session
    for one in (holder, other):
        await one.aclose()


async def test_worker_that_has_just_come_takes_at_once_what_is_due(clocks: Clocks) -> None:
    client = StatedRedis()
    async with aclosing(clocks.opened(client)) as holder, aclosing(clocks.opened(client)) as other:
        held = await working(holder)
        await holder.claims.release(held.claim)
        assert await looks_for(other, clocks, 1) == "c2"


async def test_revoke_behind_a_step_of_the_clock_still_waits_for_the_holder(clocks: Clocks) -> None:
    client = StatedRedis()
    async with aclosing(clocks.opened(client)) as holder, aclosing(clocks.opened(client)) as other:
        assert await looks_for(other, clocks, 10) is None
        held = await working(holder)
        clocks.redis.advance(3600.0)
        await other.trees.revoke(held.claim.session)
        assert await looks_for(other, clocks, 3) is None
        await holder.claims.release(held.claim)
        assert await looks_for(other, clocks, 1) == "c2"


async def test_reaper_behind_a_step_of_the_clock_takes_nothing(clocks: Clocks) -> None:
    client = StatedRedis()
    async with aclosing(clocks.opened(client)) as holder, aclosing(clocks.opened(client)) as other:
        assert await looks_for(other, clocks, 10) is None
        held = await working(holder)
        clocks.redis.advance(3600.0)
        (state,) = await other.trees.revoke_tree(held.claim.tree, [held.claim.session], silent_s=10.0)
        assert state.state == "held"


def test_witness_forgets_a_step_when_every_lease_of_before_is_over() -> None:
    clocks = Clocks(FakeClock(1_000_000.0))
    witness = Witness(clocks.own.time, LEASE_S)
    for _ in range(10):
        clocks.pass_s(1.0)
        witness.note(int(clocks.redis.time() * 1000))
    assert witness.certain_ms() == int(clocks.redis.time() * 1000)
    clocks.redis.advance(100.0)
    behind = []
    for _ in range(8):
        clocks.pass_s(1.0)
        witness.note(int(clocks.redis.time() * 1000))
        behind.append(round(clocks.redis.time() - witness.certain_ms() / 1000))
    assert behind == [100] * 6 + [0] * 2


def test_step_of_the_clock_right_behind_a_look_is_believed_no_more_than_another() -> None:
    own = FakeClock(100.0)
    witness = Witness(own.time, LEASE_S)
    witness.note(100_000)
    own.advance(0.25)
    witness.note(3_700_250)
    own.advance(LEASE_S - 0.25)
    assert witness.certain_ms() == 106_000
