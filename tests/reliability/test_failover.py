"""A primary that dies under load: Sentinel promotes a replica, and everybody finds it.

What the replica had is there. What it lacked is lost, and told: nothing of it has had effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.driver import CrashHarness, House, Play, harness_on, rested, violations
from tests.crash.people import Person, watching
from tests.servers import RedisServer, free_ports, start_redis, start_sentinel

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 60.0
SETTINGS = {
    "DENDRO_EFFECTS": "wait",
    "DENDRO_REDIS_WAIT_TIMEOUT_S": "0.3",
    "DENDRO_WORKER_LEASE_S": "3",
    "DENDRO_WORKER_TRUST_S": "2",
    "DENDRO_WORKER_RENEW_S": "1",
    "DENDRO_WORKER_STALL_S": "1",
}


@dataclass(frozen=True, slots=True)
class Servers:
    """A primary and its replicas."""

    primary: RedisServer
    replicas: tuple[RedisServer, RedisServer]

    def cut_off(self) -> None:
        """From now on the replicas hear nothing of the primary, which serves on."""
        for replica in self.replicas:
            _replicate(replica, 1)


def _replicate(replica: RedisServer, port: int) -> None:
    with closing(replica.client()) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", port)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    prompt = {"repl-diskless-sync-delay": "0"}
    with ExitStack() as stack:
        primary, *replicas = (
            stack.enter_context(start_redis(tmp_path / str(port), config=prompt, port=port))
            for port in free_ports(3)
        )
        for replica in replicas:
            _replicate(replica, primary.port)
        yield Servers(primary, (replicas[0], replicas[1]))


@pytest.fixture
def sentinel_url(servers: Servers, tmp_path: Path) -> Iterator[str]:
    with start_sentinel(tmp_path / "sentinel", servers.primary.port) as sentinel:
        yield f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0"


async def everybody_runs(harness: CrashHarness) -> None:
    await asyncio.gather(*(person.until("exec_command_begin") for person in harness.people))


def told_of_the_loss(person: Person) -> bool:
    """Forgets what was shown before a loss was told, as a user interface would."""
    rewound = [
        number
        for number, event in enumerate(person.events)
        if event.type == "warning" and "earlier moment" in event.msg["message"]
    ]
    if rewound:
        del person.events[: rewound[-1] + 1]
    return bool(rewound)


async def test_a_failover_forgets_nothing_that_has_had_effects_and_tells_what_it_forgot(
    servers: Servers, sentinel_url: str, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(WITHIN_S),
        harness_on(House(_empty(tmp_path), servers.primary, sentinel_url, SETTINGS), Play(8, 2)) as harness,
        watching(harness.people),
    ):
        for _ in range(2):
            await harness.fork_server.start()
        enough = asyncio.Event()
        lives = asyncio.gather(*(person.live(enough) for person in harness.people))
        for _ in range(2):
            await everybody_runs(harness)
        await asyncio.to_thread(servers.cut_off)
        for _ in range(2):
            await everybody_runs(harness)
        servers.primary.kill()
        lost = [await person.say_again() for person in harness.people]
        enough.set()
        await lives
        await rested(harness)
        told = [told_of_the_loss(person) for person in harness.people]
        assert any(lost)
        assert all(told)
        assert await violations(harness) == []


def _empty(tmp_path: Path) -> Path:
    folder = tmp_path / "house"
    folder.mkdir()
    return folder


@dataclass
class Address:
    """A port in front of several servers: the operator chooses the server that it leads to."""

    target: int
    port: int = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def address_of(server: RedisServer) -> AsyncIterator[Address]:
    address = Address(server.port)
    listening = await asyncio.start_server(address.relay, "127.0.0.1")
    async with listening:
        address.port = listening.sockets[0].getsockname()[1]
        yield address


async def test_a_planned_switch_behind_one_address_loses_nothing(servers: Servers, tmp_path: Path) -> None:
    primary, replica = servers.primary, servers.replicas[0]
    async with (
        asyncio.timeout(WITHIN_S),
        address_of(primary) as address,
        harness_on(
            House(_empty(tmp_path), primary, f"redis://127.0.0.1:{address.port}", SETTINGS), Play(9, 1)
        ) as harness,
        watching(harness.people),
    ):
        await harness.fork_server.start()
        enough = asyncio.Event()
        lives = asyncio.gather(*(person.live(enough) for person in harness.people))
        await everybody_runs(harness)
        with closing(primary.client()) as operator:
            operator.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port)
        address.target = replica.port
        await everybody_runs(harness)
        enough.set()
        await lives
        await rested(harness)
        assert await violations(harness) == []
