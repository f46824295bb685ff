"""A Redis for the commands' tests; each test has a machine, a home and sessions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.machine import Machine
from tests.servers import RedisServer, start_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, redis_server: RedisServer) -> Machine:
    """A machine whose deployment is empty."""
    with redis_server.client() as client:
        client.flushall()
    return Machine.at(tmp_path, redis_server.url)
