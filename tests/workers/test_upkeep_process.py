"""The upkeep process itself: arq, its crons and its queue on real servers; killed, starved, restarted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import orjson
import pytest
from redis.asyncio import Redis

from orchestrator.config_keys import RedisSettings
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.runtime.worker import Worker
from orchestrator.wiring.deployment import deployment
from tests.broker.actors import holder_died
from tests.servers import RedisServer, start_redis
from tests.workers.actors import NOON_MS, Author, head_of, in_redis, log_of, mover_of, some_entries, state_of
from tests.workers.upkeep_process import environment_for, running_upkeep, settings_of
from workers.upkeep import Upkeep, look, seal, upkeep_queue

pytestmark = [pytest.mark.realredis, pytest.mark.slow]


@pytest.fixture
def environ(server: RedisServer, tmp_path: Path) -> dict[str, str]:
    return environment_for(server.url, tmp_path, DENDRO_UPKEEP_URL=f"{server.url}?db=1")


@asynccontextmanager
async def _opened(environ: dict[str, str]) -> AsyncIterator[Storage]:
    """Redis and archive by the settings of an environment."""
    settings = settings_of(environ)
    assert settings.redis.url is not None
    async with deployment(settings, settings.redis.url) as opened:
        yield Storage(opened.broker, opened.blobs, Archive.at(settings.upkeep.archive_url))


@pytest.fixture
async def deployed(environ: dict[str, str]) -> AsyncIterator[Storage]:
    """The same deployment as the process sees it."""
    async with _opened(environ) as storage:
        yield storage


async def _ripe(storage: Storage, count: int) -> list[Author]:
    """Sessions with something to seal."""
    authors = [await Author(storage).is_born() for _ in range(count)]
    for author in authors:
        await (await author.writes(some_entries(40))).snapshots()
    return authors


async def _rests_since(storage: Storage, author: Author, at_ms: int) -> None:
    """Sets Redis to where the session's tree was closed at that time."""
    keys = storage.broker.keys
    key = keys.to_archive(keys.shard_of(author.session))
    await storage.broker.command("ZADD", key, at_ms, author.session)


async def test_process_seals_and_archives_what_is_due(environ: dict[str, str], deployed: Storage) -> None:
    authors = await _ripe(deployed, 3)
    ended = await (await (await Author(deployed).is_born()).writes(some_entries(30))).closes()
    await _rests_since(deployed, ended, NOON_MS)
    logs = {a.session: await log_of(deployed, a.session) for a in (*authors, ended)}
    async with running_upkeep(environ) as upkeep:
        await upkeep.saw("sealed through 40", times=3)
        await upkeep.saw("archived")
        assert await upkeep.is_told_to_end() == 0
    assert (await head_of(deployed, ended.session)).archived
    for author in authors:
        assert await in_redis(deployed, author.session) == []
        await author.writes(some_entries(1))
    assert {a.session: (await log_of(deployed, a.session))[:40] for a in authors} == {
        a.session: logs[a.session] for a in authors
    }
    assert await log_of(deployed, ended.session) == logs[ended.session]


async def test_process_that_is_killed_has_lost_nothing(
    environ: dict[str, str], deployed: Storage, server: RedisServer
) -> None:
    authors = await _ripe(deployed, 12)
    states = [await state_of(deployed, author.session) for author in authors]
    logs = [await log_of(deployed, author.session) for author in authors]
    async with running_upkeep(environ) as upkeep:
        await upkeep.saw("sealed through")
        await upkeep.is_killed()
    assert [await log_of(deployed, author.session) for author in authors] == logs
    await _time_passes(deployed, authors, server)
    left = [a for a in authors if (await head_of(deployed, a.session)).sealed_seq == 0]
    async with running_upkeep(environ) as upkeep:
        await upkeep.saw("sealed through", times=len(left))
    assert [await log_of(deployed, author.session) for author in authors] == logs
    assert [await state_of(deployed, author.session) for author in authors] == states


async def _time_passes(storage: Storage, authors: list[Author], server: RedisServer) -> None:
    """Ends all that runs out by itself after a death: arq's marks of running jobs, and the leases."""
    queue = Redis.from_url(f"{server.url}?db=1")
    for mark in await queue.keys("arq:in-progress:*"):
        await queue.delete(mark)
    await queue.aclose()
    for author in authors:
        if (await head_of(storage, author.session)).holder is not None:
            await holder_died(storage.broker, author.session)
            held = await storage.broker.claims.claim_session(author.session, "w1", "c1")
            assert held is not None
            await storage.broker.claims.release(held.claim, park_at=held)


async def test_lost_queue_loses_nothing(
    environ: dict[str, str], deployed: Storage, server: RedisServer
) -> None:
    authors = await _ripe(deployed, 2)
    queue = Redis.from_url(f"{server.url}?db=1")
    async with running_upkeep(environ) as upkeep:
        await upkeep.saw("sealed through", times=2)
        assert await upkeep.is_told_to_end() == 0
    await queue.flushdb()
    for author in authors:
        await (await author.writes(some_entries(20))).snapshots()
    async with running_upkeep(environ) as upkeep:
        await upkeep.saw("sealed through 60", times=2)
    await queue.aclose()


async def test_process_outlives_its_redis(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis", config={"appendonly": "yes"}) as server:
        environ = environment_for(server.url, tmp_path)
        async with _opened(environ) as storage, running_upkeep(environ) as upkeep:
            (first,) = await _ripe(storage, 1)
            await upkeep.saw("sealed through")
            server.terminate()
            await upkeep.saw("trying again")
            server.start()
            await (await first.writes(some_entries(40))).snapshots()
            await upkeep.saw("sealed through 80")
            assert await upkeep.is_told_to_end() == 0


def _no_worker() -> AbstractAsyncContextManager[Worker]:
    raise AssertionError("nothing was cancelled")


async def test_session_is_queued_once_and_as_json(storage: Storage, server: RedisServer) -> None:
    (author,) = await _ripe(storage, 1)
    queue = upkeep_queue(RedisSettings(url=f"{server.url}?db=1", prefix=storage.broker.config.prefix))
    ctx = {"redis": queue, "upkeep": Upkeep(mover_of(storage), None, 0, _no_worker)}
    await look(ctx)
    await look(ctx)
    (job,) = await queue.queued_jobs()
    assert (job.function, list(job.args)) == ("seal", [author.session])
    (key,) = await queue.keys("arq:job:*")
    assert key.decode() == f"arq:job:{storage.broker.config.prefix}seal:{author.session}"
    stored = await queue.get(key)
    assert stored is not None
    assert orjson.loads(stored)["a"] == [author.session]
    assert await seal(ctx, author.session) == "done"
    await queue.aclose(close_connection_pool=True)
