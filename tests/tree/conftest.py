"""A real server for all trees under test, emptied for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from tests.runtime.stage import opened
from tests.servers import RedisServer, start_redis
from tests.tree.forest import Forest


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def forest(redis_server: RedisServer) -> AsyncIterator[Forest]:
    with closing(redis_server.client()) as client:
        client.flushall()
    async with opened(redis_server.url) as stage:
        forest = Forest(stage)
        yield forest
        await forest.close()
