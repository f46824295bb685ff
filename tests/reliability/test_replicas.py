"""`effects = wait`: no command begins before replicas know that it was decided."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Claim, Committed
from tests.broker.actors import step, working
from tests.runtime.harness import open_broker
from tests.servers import RedisServer, free_ports, start_redis

pytestmark = pytest.mark.realredis


def follows(replica: RedisServer, primary: RedisServer | None) -> None:
    """Makes a server the replica of another, or of nobody."""
    whom = ("127.0.0.1", primary.port) if primary else ("NO", "ONE")
    with closing(replica.client()) as client:
        client.execute_command("REPLICAOF", *whom)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[tuple[RedisServer, ...]]:
    """A primary, its replica, and the replica's own replica."""
    prompt = {"repl-diskless-sync-delay": "0"}
    ports = free_ports(3)
    with ExitStack() as stack:
        servers = tuple(
            stack.enter_context(start_redis(tmp_path / str(port), config=prompt, port=port)) for port in ports
        )
        for primary, replica in pairwise(servers):
            follows(replica, primary)
        yield servers


async def until_confirmed(broker: Broker, claim: Claim, seq: int) -> None:
    while not await broker.claims.confirmed(claim, seq, 1, 1.0):
        pass


async def test_a_replica_that_stands_still_confirms_nothing_on_any_connection(
    chain: tuple[RedisServer, ...],
) -> None:
    primary, replica, _ = chain
    async with (
        aclosing(open_broker(primary.url, shards=16)) as writer,
        aclosing(open_broker(primary.url, shards=16)) as asker,
    ):
        held = await working(writer)
        await until_confirmed(asker, held.claim, held.seq)
        os.kill(replica.pid, signal.SIGSTOP)
        try:
            begun = await writer.commits.commit(step(held, held.claim, "begin"))
            assert isinstance(begun, Committed)
            # Another connection than the one that wrote: of itself it has nothing to wait for.
            assert not await asker.claims.confirmed(held.claim, begun.seq, 1, 0.1)
        finally:
            os.kill(replica.pid, signal.SIGCONT)
        await until_confirmed(asker, held.claim, begun.seq)


async def test_a_promoted_replica_confirms_nothing_that_it_never_had(chain: tuple[RedisServer, ...]) -> None:
    primary, replica, _ = chain
    async with (
        aclosing(open_broker(primary.url, shards=16)) as before,
        aclosing(open_broker(replica.url, shards=16)) as after,
    ):
        held = await working(before)
        await until_confirmed(before, held.claim, held.seq)
        follows(replica, None)
        lost = await before.commits.commit(step(held, held.claim, "begin"))
        assert isinstance(lost, Committed)
        # Its own replica has everything that it has, so WAIT alone would say yes.
        await until_confirmed(after, held.claim, held.seq)
        assert not await after.claims.confirmed(held.claim, lost.seq, 1, 1.0)
        assert not await after.claims.confirmed(replace(held.claim, claim_id="other"), held.seq, 1, 1.0)


async def test_a_server_that_does_not_answer_confirms_nothing(chain: tuple[RedisServer, ...]) -> None:
    primary, *_ = chain
    async with aclosing(open_broker(primary.url, shards=16)) as broker:
        held = await working(broker)
        primary.kill()
        assert not await broker.claims.confirmed(held.claim, held.seq, 1, 0.1)
