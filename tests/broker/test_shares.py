"""Shares of shards: whose notices a worker of a cluster waits for, and where it looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import fakeredis
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import Shares
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.worker_state import SILENT_MS
from orchestrator.core.ids import SessionId
from tests.broker.actors import POOL, claimed, created, session_id, submitted
from tests.broker.doubles import FakeClock, redis_time
from tests.broker.families import OP
from tests.stated import StatedRedis


def fleet(workers: int, shards: int) -> list[Shares]:
    found = [Shares(shards) for _ in range(workers)]
    for rank, shares in enumerate(found):
        shares.note([POOL], [(rank, workers)])
    return found


@pytest.mark.parametrize("shards", [1, 2, 7, 64])
@pytest.mark.parametrize("workers", [2, 3, 8, 100, 300])
def test_each_shard_has_two_workers_that_wait_for_it(workers: int, shards: int) -> None:
    waits = [shard for shares in fleet(workers, shards) for shard in shares.own(POOL)]
    assert sorted(waits) == sorted([*range(shards), *range(shards)])


@pytest.mark.parametrize("shards", [1, 2, 7, 64])
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 100])
def test_looks_of_a_fleet_reach_every_shard_each_time_and_cost_a_few_for_each(
    workers: int, shards: int
) -> None:
    everybody = fleet(workers, shards)
    for _ in range(3):
        looks = [list(shares.next_looks([POOL])) for shares in everybody]
        assert {shard for some in looks for shard in some} == set(range(shards))
        assert sum(map(len, looks)) <= 4 * (shards + workers)


@pytest.mark.parametrize("shards", [2, 7, 64])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_looks_in_turn_reach_every_shard_each_time_beside_the_looks_at_their_own(
    workers: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers of a shard may be lost, or busy."""
    monkeypatch.setattr(Shares, "own", lambda shares, pool: [])
    everybody = fleet(workers, shards)
    for _ in range(3):
        looks = [list(shares.next_looks([POOL])) for shares in everybody]
        assert {shard for some in looks for shard in some} == set(range(shards))


@pytest.mark.parametrize(("workers", "shards"), [(3, 2), (8, 64), (64, 7)])
def test_worker_looks_at_every_shard_in_turn_whoever_else_is_there(workers: int, shards: int) -> None:
    shares = fleet(workers, shards)[1]
    seen = {shard for _ in range(max(workers, shards)) for shard in shares.next_looks([POOL])}
    assert seen == set(range(shards))


def test_worker_that_was_answered_nothing_yet_looks_after_all_shards() -> None:
    shares = Shares(5)
    assert shares.own(POOL) == list(range(5))
    assert shares.next_looks([POOL, "gpu"]) == {shard: [POOL, "gpu"] for shard in range(5)}


def test_pools_are_looked_after_each_by_its_own_workers() -> None:
    shares = Shares(8)
    shares.note([POOL, "gpu"], [(0, 8), (0, 1)])
    looks = shares.next_looks([POOL, "gpu"])
    assert [shard for shard, pools in looks.items() if POOL in pools] == [0, 4]
    assert all("gpu" in looks[shard] for shard in range(8))


# ── by heartbeats ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def double() -> AsyncIterator[fakeredis.FakeAsyncRedis]:
    found = fakeredis.FakeAsyncRedis()
    yield found
    await found.aclose()


def process(double: fakeredis.FakeAsyncRedis, *, clustered: bool = True) -> Broker:
    return Broker(Connection(double, double, clustered=clustered), BrokerConfig(shards=8), lambda: 0.0)


async def places(double: fakeredis.FakeAsyncRedis, *workers: str) -> list[int]:
    """How many shards each waits for, as its heartbeat is answered now."""
    found = []
    for worker in workers:
        broker = process(double)
        await broker.claims.heartbeat(worker, b"{}", pools=(POOL,))
        found.append(len(broker.claims._shares.own(POOL)))
    return found


async def test_workers_share_the_shards_once_all_have_been_heard(double: fakeredis.FakeAsyncRedis) -> None:
    await places(double, "d", "c", "b", "a")
    assert await places(double, "a", "b", "c", "d") == [4, 4, 4, 4]


async def test_worker_that_has_left_is_counted_no_more(double: fakeredis.FakeAsyncRedis) -> None:
    await places(double, "a", "b", "c", "d")
    for gone in ("b", "c"):
        await process(double).claims.heartbeat(gone, b"{}", pools=(POOL,), left=True)
    assert await places(double, "a", "d") == [8, 8]


@pytest.mark.parametrize("silent", [("b", "c"), ("a",), ("d",), ("a", "b", "c")])
async def test_workers_that_fell_silent_leave_the_row_at_the_heartbeat_before_them(
    double: fakeredis.FakeAsyncRedis, silent: tuple[str, ...]
) -> None:
    await places(double, "a", "b", "c", "d")
    _, heard, _ = process(double).keys.workers()
    for worker in silent:
        await double.zadd(heard, {worker: int(await double.zscore(heard, worker)) - SILENT_MS})
    living = [worker for worker in "abcd" if worker not in silent]
    await places(double, *living)
    row = await double.zrange(process(double).keys.serving(POOL), 0, -1)
    assert sorted(row) == [worker.encode() for worker in living]


async def test_one_server_keeps_no_row(double: fakeredis.FakeAsyncRedis) -> None:
    await process(double, clustered=False).claims.heartbeat("a", b"{}", pools=(POOL,))
    assert not await double.exists(process(double).keys.serving(POOL))


async def test_worker_is_told_of_its_own_shards_and_of_those_that_become_its_own(
    double: fakeredis.FakeAsyncRedis,
) -> None:
    broker = process(double)
    broker.claims._shares.note([POOL], [(1, 8)])
    first = await broker.claims.wait_for_notices(POOL, "w1", {}, 0.01)
    assert first.shards == (1, 5)
    sessions = {broker.keys.shard_of(made): made for made in [await created(broker) for _ in range(1)]}
    shard, session = sessions.popitem()
    broker.claims._shares.note([POOL], [(shard, 16)])
    second = await broker.claims.wait_for_notices(POOL, "w1", first.cursors, 0.01)
    assert second.shards == (() if shard in (1, 5) else (shard,)), "it has not heard of that one, and looks"
    await submitted(broker, session)
    told = await broker.claims.wait_for_notices(POOL, "w1", second.cursors, 5.0)
    assert told.named == {shard: session}
    await broker.aclose()


# ── servers of a cluster ──────────────────────────────────────────────────────────────────────────


def clustered(client: StatedRedis, monotonic: Callable[[], float], watch_s: float = 0.0) -> Broker:
    config = BrokerConfig(shards=8, lease_s=6.0, watch_s=watch_s)
    return Broker(Connection(client, client, clustered=True), config, monotonic)


async def test_clock_of_one_server_of_a_cluster_bears_out_no_lease_of_another() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker, other = clustered(client, clock.monotonic, watch_s=6.0), clustered(client, clock.monotonic)
        sessions = {shard: await created(other, session_id(shard), submissions=OP) for shard in (1, 2)}
        for shard, session in sessions.items():
            await claimed(other, session, "lost", f"claim of {shard}")
        for _ in range(6):
            assert await broker.claims.claim(POOL, "w", "c1", 1) is None
            clock.advance(1.0)
        found = await broker.claims.claim(POOL, "w", "c1", 1)
        assert found is not None
        assert found.claim.session == sessions[1]
        for second in range(7):
            taken = await broker.claims.claim(POOL, "w", "c2", 2)
            assert (taken is not None) == (second == 6), "it was not watched before"
            clock.advance(1.0)
        await broker.aclose()


async def test_worker_of_a_cluster_looks_for_jobs_where_they_are_whatever_its_share() -> None:
    with redis_time(FakeClock()) as clock:
        broker = clustered(StatedRedis(), clock.monotonic)
        for rank in range(8):
            broker.claims._shares.note([POOL], [(rank, 8)])
            await broker.jobs.offer_job(POOL, f"j{rank}", b"look", 60_000)
            await submitted(broker, await created(broker, session_id(rank)))
            jobs, claimable = False, set[tuple[str, int]]()
            for _ in range(8):
                look = await broker.claims.look((POOL,), "w")
                jobs, claimable = jobs or look.jobs, claimable | set(look.claimable)
                clock.advance(1.0)
            assert (jobs, claimable) == (True, {(POOL, rank)})
            assert await broker.jobs.take_job(POOL, f"j{rank}", "w") == b"look"
            assert await broker.claims.claim(POOL, "w", f"c{rank}", rank) is not None
            clock.advance(-8.0)
        await broker.aclose()


async def test_notices_of_each_server_of_a_cluster_are_heard_whichever_is_first() -> None:
    broker = clustered(StatedRedis(), lambda: 0.0)
    cursors = (await broker.claims.wait_for_notices(POOL, "w1", {}, 0.01)).cursors
    waits = asyncio.create_task(broker.claims.wait_for_notices(POOL, "w1", cursors, 5.0))
    due = {shard: await created(broker, session_id(shard)) for shard in (5, 1, 7)}
    heard: dict[int, SessionId] = {}
    for session in due.values():
        await submitted(broker, session)
    while len(heard) < len(due):
        notices = await waits
        assert not heard.keys() & notices.named.keys(), "none is told twice"
        heard |= notices.named
        waits = asyncio.create_task(broker.claims.wait_for_notices(POOL, "w1", notices.cursors, 5.0))
    assert heard == due
    again = await created(broker, session_id(1))
    await submitted(broker, again)
    assert (await waits).named == {1: again}
    await broker.aclose()
