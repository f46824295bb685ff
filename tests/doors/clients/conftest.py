"""A machine of one user for real clients, with Redis beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.machine import Machine
from tests.servers import RedisServer, start_redis


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, redis_server: RedisServer) -> Machine:
    with redis_server.client() as client:
        client.flushall()
    return Machine.at(tmp_path, redis_server.url)
