"""A worker's look at all shards of its pools: what it finds, and what stands for the looks of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.broker.records import BrokerConfig, Committed, Look
from orchestrator.broker.redis_keys import CONTROL_SHARD
from orchestrator.core.commit_parts import Timer
from tests.broker.actors import (
    POOL,
    SHARD,
    Backend,
    created,
    lease_runs_out,
    session_id,
    step,
    submitted,
    working,
)

POOLS = (POOL, "other")
PLACE = (POOL, SHARD)


async def _forgotten(broker: Broker) -> None:
    """No look was ever made."""
    for shard in range(broker.config.shards):
        await broker.command("DEL", broker.keys.looked(shard))


async def test_look_tells_where_a_session_is_due(broker: Broker) -> None:
    await submitted(broker, await created(broker))
    assert await broker.claims.look(POOLS) == Look(claimable=(PLACE,))
    assert await broker.claims.look(("other",)) == Look(), "of the pools that the worker serves"


async def test_look_tells_where_a_lease_ran_out(broker: Broker) -> None:
    held = await working(broker)
    assert await broker.claims.look(POOLS) == Look(), "its holder lives"
    await lease_runs_out(broker, held.claim.session)
    await _forgotten(broker)
    assert await broker.claims.look(POOLS) == Look(claimable=(PLACE,))


async def test_look_tells_of_timers_that_are_due_and_of_no_others(broker: Broker) -> None:
    held = await working(broker)
    soon, late = Timer("soon", 1, 1_000), Timer("late", 1, 1 << 45)
    done = await broker.commits.commit(step(held, held.claim, "k", cursor="1-0", timers_set=(late,)))
    assert isinstance(done, Committed)
    assert await broker.claims.look(POOLS) == Look()
    await broker.commits.commit(step(done, held.claim, "k2", timers_set=(soon,)))
    await _forgotten(broker)
    assert await broker.claims.look(POOLS) == Look(timed=(SHARD,))


async def test_look_tells_that_jobs_wait(broker: Broker) -> None:
    await broker.jobs.offer_job("other", "j", b"look", 60_000)
    assert await broker.claims.look(POOLS) == Look(jobs=True)
    assert await broker.claims.look((POOL,)) == Look()


async def test_look_that_found_nothing_stands_for_others_for_half_a_second(
    broker: Broker, backend: Backend
) -> None:
    other = backend.broker()
    session = await created(broker)
    assert await broker.claims.look(POOLS) == Look()
    await submitted(broker, session)
    assert await other.claims.look((POOL,)) == Look(), "somebody has looked"
    looked = broker.keys.looked(SHARD if backend.name == "cluster" else 0)
    before: Any = await broker.command("HGET", looked, POOL)
    await broker.command("HSET", looked, POOL, int(before) - 500)
    assert await other.claims.look((POOL,)) == Look(claimable=(PLACE,))
    assert await broker.claims.look(POOLS) == Look(claimable=(PLACE,)), "what is found is told to everybody"
    await other.aclose()


async def test_look_finds_what_waits_in_the_pool_that_nobody_has_just_looked_at(broker: Broker) -> None:
    for first, other in (POOLS, POOLS[::-1]):
        await _forgotten(broker)
        assert await broker.claims.look((first,)) == Look()
        for pool in POOLS:
            await submitted(broker, await created(broker, pool=pool))
        assert await broker.claims.look(POOLS) == Look(claimable=((other, SHARD),))
        for pool in POOLS:
            assert await broker.claims.claim(pool, "w", f"{first} {pool}", SHARD) is not None


@pytest.mark.parametrize("found", ["session", "timer", "job"])
async def test_look_that_found_something_stands_for_no_look_at_any_pool(broker: Broker, found: str) -> None:
    session = await created(broker)
    if found == "session":
        await submitted(broker, session)
    elif found == "timer":
        await broker.command("ZADD", broker.keys.timers(SHARD), 1_000, f"{session}:t")
    else:
        await broker.jobs.offer_job(POOL, "j", b"look", 60_000)
    seen = await broker.claims.look(POOLS)
    assert seen != Look()
    # Of a cluster each shard is looked at by itself, and jobs are with one of them.
    shard = CONTROL_SHARD if found == "job" else SHARD
    await submitted(broker, await created(broker, session_id(shard), pool="other"))
    assert (await broker.claims.look(("other",))).claimable == (("other", shard),)
    again = await broker.claims.look(POOLS)
    assert (again.timed, again.jobs) == (seen.timed, seen.jobs)
    assert set(again.claimable) == {*seen.claimable, ("other", shard)}


async def test_look_reaches_every_shard_and_pool_however_many_there_are(backend: Backend) -> None:
    broker = backend.broker(BrokerConfig(shards=600, lease_s=60.0))
    pools = [f"p{number}" for number in range(10)]
    assert await broker.claims.look(pools) == Look()
    await _forgotten(broker)
    places = [(pool, shard) for pool in (pools[0], pools[9]) for shard in (0, 255, 256, 511, 512, 599)]
    for pool, shard in places:
        await submitted(broker, await created(broker, session_id(shard), pool=pool))
    for shard in (255, 599):
        await broker.command("ZADD", broker.keys.timers(shard), 1_000, f"{session_id(shard)}:t")
    seen = await broker.claims.look(pools)
    assert (set(seen.claimable), set(seen.timed), seen.errors) == (set(places), {255, 599}, ())
    await broker.aclose()


async def test_look_is_made_again_after_redis_put_its_clock_back(broker: Broker) -> None:
    await submitted(broker, await created(broker))
    for shard in range(broker.config.shards):
        await broker.command("HSET", broker.keys.looked(shard), POOL, 1 << 45)
    assert await broker.claims.look((POOL,)) == Look(claimable=(PLACE,))


async def test_key_of_another_type_hides_nobody_and_its_claim_says_what_is_wrong(broker: Broker) -> None:
    await broker.command("SET", broker.keys.due(5, POOL), "x")
    await submitted(broker, await created(broker))
    found = await broker.claims.look((POOL,))
    assert set(found.claimable) == {(POOL, 5), PLACE}
    with pytest.raises(BrokerError, match="WRONGTYPE"):
        await broker.claims.claim(POOL, "w", "c", 5)


async def test_look_goes_on_where_a_full_server_takes_no_writes(server: Backend) -> None:
    broker = server.broker()
    await submitted(broker, await created(broker))
    await broker.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert await broker.claims.look(("other",)) == Look()
        assert await broker.claims.look(POOLS) == Look(claimable=(PLACE,))
    finally:
        await broker.command("CONFIG", "SET", "maxmemory", "0")
        await broker.aclose()


async def test_idle_look_costs_as_many_commands_with_256_shards_as_with_16(server: Backend) -> None:
    async def commands(broker: Broker) -> int:
        stats: Any = await broker.command("INFO", "commandstats")
        return sum(int(one["calls"]) for name, one in stats.items() if name != "cmdstat_info")

    for shards in (16, 256):
        broker = server.broker(BrokerConfig(shards=shards, prefix=f"of{shards}:"))
        await broker.claims.look(POOLS)
        await _forgotten(broker)
        before = await commands(broker)
        await broker.claims.look(POOLS)
        assert await commands(broker) - before == len(("EVALSHA", "TIME", "HMGET", "EXISTS", "HSET"))
        await broker.aclose()


class _NodeAway(Connection):
    """A cluster of which the node of one shard does not answer."""

    clustered = True

    def __init__(self, inner: Connection, shard: int) -> None:
        self._inner, self._away = inner, f"{{s{shard}}}"

    async def run(self, call: ScriptCall) -> list[Any]:
        if any(self._away in key for key in call.keys):
            raise Unavailable("it is away")
        return await self._inner.run(call)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return [await self.run(call) for call in calls]

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_node_that_is_away_hides_no_shard_of_the_others(broker: Broker, backend: Backend) -> None:
    await submitted(broker, await created(broker))
    partly = backend.broker(connection=_NodeAway(backend.connect(), shard=7))
    found = await partly.claims.look((POOL,))
    assert found.claimable == (PLACE,)
    assert [str(error) for error in found.errors] == ["it is away"]
    await partly.aclose()
