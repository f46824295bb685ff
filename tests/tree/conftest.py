"""A real server for all trees under test, emptied for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from tests.runtime.harness import opened
from tests.servers import RedisServer, start_redis
from tests.tree.harness import TreeHarness


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def trees(redis_server: RedisServer) -> AsyncIterator[TreeHarness]:
    with closing(redis_server.client()) as client:
        client.flushall()
    async with opened(redis_server.url) as harness:
        trees = TreeHarness(harness)
        yield trees
        await trees.close()
