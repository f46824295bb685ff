"""A real server for all tests of the runtime, emptied for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from tests.runtime.harness import Harness, opened
from tests.servers import RedisServer, start_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def harness(redis_server: RedisServer) -> AsyncIterator[Harness]:
    with closing(redis_server.client()) as client:
        client.flushall()
    async with opened(redis_server.url) as harness:
        yield harness
        # Whoever lists a session that rests sees it as it is.
        for head in await harness.broker.logs.sessions():
            if head.at_rest and head.parked:
                assert head.summary.get("seq", head.seq) == head.seq, f"{head.session} is listed as of before"
