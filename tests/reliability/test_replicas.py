"""`effects = wait`: no command begins before replicas know that it was decided."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.runtime.stage import open_broker
from tests.servers import RedisServer, free_ports, start_redis

pytestmark = pytest.mark.realredis


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master and its replica."""
    (port,) = free_ports(1)
    prompt = {"repl-diskless-sync-delay": "0"}
    with (
        start_redis(tmp_path / "master", config=prompt, port=port) as master,
        start_redis(tmp_path / "replica") as replica,
    ):
        with closing(replica.client()) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", port)
        yield master, replica


async def test_a_replica_that_stands_still_confirms_nothing_on_any_connection(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = pair
    writer, asker = open_broker(master.url), open_broker(master.url)
    try:
        while not await asker.confirmed(1, 1.0):
            pass
        os.kill(replica.pid, signal.SIGSTOP)
        await writer.open()
        await writer.command("HSET", "anything", "was", "written")
        # Another connection than the one that wrote: of itself it has nothing to wait for.
        assert not await asker.confirmed(1, 0.1)
        os.kill(replica.pid, signal.SIGCONT)
        while not await asker.confirmed(1, 1.0):
            pass
    finally:
        os.kill(replica.pid, signal.SIGCONT)
        await writer.aclose()
        await asker.aclose()


async def test_a_server_that_does_not_answer_confirms_nothing() -> None:
    nowhere = open_broker("unix:///nonexistent/socket")
    assert not await nowhere.confirmed(1, 0.1)
    await nowhere.aclose()
