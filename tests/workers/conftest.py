"""A real Redis, an archive in a folder, and upkeep's view of both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from orchestrator.broker.connection import Connection, connect
from orchestrator.config_keys import RedisSettings
from orchestrator.rollouts.archive import Storage
from tests.servers import RedisServer, start_redis
from tests.workers.actors import mover_of, storage_over
from workers.upkeep_sealing import Mover


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def server(shared_server: RedisServer) -> RedisServer:
    """A running server with nothing in it."""
    client = Redis.from_url(shared_server.url)
    await client.flushall()
    await client.aclose()
    return shared_server


@pytest.fixture
async def connection(server: RedisServer) -> AsyncIterator[Connection]:
    opened = connect(RedisSettings(url=server.url))
    yield opened
    await opened.aclose()


@pytest.fixture
async def storage(connection: Connection, tmp_path: Path) -> Storage:
    opened = storage_over(connection, tmp_path / "archive")
    await opened.broker.open()
    return opened


@pytest.fixture
def mover(storage: Storage) -> Mover:
    return mover_of(storage)
