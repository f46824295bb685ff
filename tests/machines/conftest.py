"""Two machines with nothing in common but a Redis by TCP, a model, and one folder of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine
from tests.machines.host import Host, host
from tests.servers import RedisServer, free_ports, start_redis


@dataclass(frozen=True)
class Fleet:
    """The machines, and what they share."""

    one: Host
    two: Host
    common: Path
    """A folder that all machines see under this path: a mount, or the place of a store."""
    redis: RedisServer

    def under(self, **more: str) -> Fleet:
        """The same fleet with more environment variables everywhere."""
        return Fleet(self.one.under(**more), self.two.under(**more), self.common, self.redis)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    (port,) = free_ports(1)
    with start_redis(tmp_path_factory.mktemp("redis"), port=port) as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, redis_server: RedisServer) -> Iterator[Fleet]:
    with redis_server.client() as client:
        client.flushall()
    common = tmp_path / "common"
    common.mkdir()
    environ = {
        "DENDRO_REDIS_URL": redis_server.url,
        "DENDRO_POOL": "default",
        "DENDRO_WORKER_POOLS": "default",
        "DENDRO_UPKEEP_ARCHIVE_URL": f"file://{common}/archive",
        "OPENAI_API_KEY": "none",
    }
    with ExitStack() as stack:
        one, two = (stack.enter_context(host(tmp_path / name, name, environ)) for name in ("one", "two"))
        yield Fleet(one, two, common, redis_server)


def model(tmp_path: Path, *steps: dict[str, Any], agents: list[dict[str, Any]] | None = None) -> Any:
    """A model for the machines, scripted; `with` gives the machine whose environment names it."""
    folder = tmp_path / "model"
    folder.mkdir()
    return Machine.at(folder).playing(json.dumps({"steps": steps, "agents": agents or []}))
