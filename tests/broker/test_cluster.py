"""A cluster whose nodes vanish and whose slots move: commands find their keys, or say that they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.errors import Misconfigured, Unavailable
from orchestrator.config_keys import RedisSettings
from tests.servers import RedisServer, await_agreement, free_ports, start_cluster, start_redis
from tests.slot_moves import Move, node_of, slot_of

pytestmark = pytest.mark.realredis
KEY, OTHER = "{s3}:key", "{s3}:other"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with start_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
async def connection(nodes: list[RedisServer]) -> AsyncIterator[Connection]:
    # A test before this one may have killed them, and a busy machine makes them doubt each other.
    await_agreement(nodes)
    async with aclosing(dial(nodes)) as connection:
        yield connection


def dial(nodes: list[RedisServer]) -> Connection:
    return connect(RedisSettings(url=nodes[0].url, cluster=True, command_timeout_s=2.0))


@pytest.fixture
def move(nodes: list[RedisServer]) -> Iterator[Move]:
    """The slot of the keys, about to go from its node to another; empty before and after."""
    slot = slot_of(KEY)
    source = node_of(nodes, slot)
    target = next(node for node in nodes if node is not source)
    move = Move(slot, source, target, nodes)
    yield move
    move.end()
    with closing(target.client()) as client:
        client.flushall()


async def test_keys_are_found_before_while_and_after_their_slot_moves(
    connection: Connection, move: Move
) -> None:
    await connection.command("SET", KEY, "a")
    await connection.command("SET", OTHER, "b")
    move.begin()
    move.keys([KEY])
    # Enough at once to need several connections: each must say ASKING before it asks.
    asked = await asyncio.gather(*(connection.command("GET", KEY) for _ in range(20)))
    assert asked == [b"a"] * 20
    assert await connection.command("GET", OTHER) == b"b"
    with pytest.raises(Unavailable, match="cluster"):
        await connection.command("MGET", KEY, OTHER)
    move.keys([OTHER])
    assert await connection.command("MGET", KEY, OTHER) == [b"a", b"b"]
    move.end()
    assert await connection.command("MGET", KEY, OTHER) == [b"a", b"b"]


async def test_a_waiting_reader_follows_the_slot_of_its_stream(connection: Connection, move: Move) -> None:
    reading = asyncio.create_task(connection.wait("XREAD", "BLOCK", 10_000, "STREAMS", KEY, "0"))
    with closing(move.source.client()) as look:
        while int(look.info("clients")["blocked_clients"]) == 0:
            await asyncio.sleep(0.01)
    move.begin()
    move.end()
    await connection.command("XADD", KEY, "1-1", "a", "b")
    assert await reading == [[KEY.encode(), [(b"1-1", {b"a": b"b"})]]]


async def test_commands_together_share_one_connection_to_the_node_of_their_slot(
    connection: Connection, move: Move
) -> None:
    rows: list[tuple[Any, ...]] = [("SET", KEY, "a"), ("CLIENT", "ID"), ("CLUSTER", "MYID"), ("CLIENT", "ID")]
    _, first, node, second = await connection.together(rows)
    assert first == second
    assert node.decode() == move.id_of(move.source)
    move.begin()
    move.keys([KEY])
    move.end()
    _, _, node, _ = await connection.together(rows)
    assert node.decode() == move.id_of(move.target)


async def test_a_cluster_that_was_away_as_a_whole_is_found_again(
    connection: Connection, nodes: list[RedisServer]
) -> None:
    await connection.command("SET", KEY, "a")
    for node in nodes:
        node.kill()
    for _ in range(5):
        with pytest.raises(Unavailable):
            await connection.command("SET", KEY, "b")
    for node in nodes:
        node.start()
    async with asyncio.timeout(20):
        while not await _answered(connection, KEY):
            await asyncio.sleep(0.05)


async def _answered(connection: Connection, key: str) -> bool:
    try:
        return bool(await connection.command("TYPE", key))
    except Unavailable:
        return False


async def test_a_server_that_is_no_cluster_is_a_misconfiguration(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with start_redis(tmp_path, port=port) as server:
        async with aclosing(dial([server])) as connection:
            with pytest.raises(Misconfigured, match=r"redis\.cluster"):
                await connection.command("GET", KEY)


def test_a_cluster_is_not_reached_by_a_socket_or_through_sentinels() -> None:
    for url in ("unix:///path", "redis+sentinel://host/main"):
        with pytest.raises(Misconfigured, match=r"redis\.url"):
            connect(RedisSettings(url=url, cluster=True))
