"""Sessions and trees on a cluster, while the slot that holds them moves from one node to another."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.driver import House, Play, harness_on, rested, violations
from tests.crash.people import watching
from tests.servers import RedisServer, start_cluster
from tests.slot_moves import Move, node_of, slot_of

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 60.0
SETTINGS = {
    "DENDRO_REDIS_CLUSTER": "true",
    # Nobody works on it here.
    "DENDRO_UPKEEP_URL": "redis://127.0.0.1:1",
}


def redirected(node: RedisServer, how: str) -> int:
    """How many commands a node has refused for its slots' sake."""
    with closing(node.client()) as client:
        found = client.info("errorstats").get(f"errorstat_{how}", {"count": 0})
    return int(found["count"])


async def met(node: RedisServer, how: str) -> None:
    while not redirected(node, how):
        await asyncio.sleep(0.01)


async def test_a_tree_goes_on_while_its_slot_moves(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    with start_cluster(tmp_path / "cluster") as nodes:
        house = House(tmp_path / "house", nodes[0], nodes[0].url, SETTINGS)
        async with (
            asyncio.timeout(WITHIN_S),
            harness_on(house, Play(seed=3, sessions=1, trees=True)) as harness,
            watching(harness.people),
        ):
            for _ in range(2):
                await harness.fork_server.start()
            enough, (person,) = asyncio.Event(), harness.people
            person.errands = lambda random, number: f"tree {number}: leaf exec leaf gather exec"
            life = asyncio.create_task(person.live(enough))
            slot = slot_of(harness.deployment.broker.keys.session(person.session))
            source = node_of(nodes, slot)
            target = next(node for node in nodes if node is not source)
            move = Move(slot, source, target, nodes)
            await person.until("exec_command_begin")
            move.begin()
            keys = move.left()
            # Half of them are there and half are here: no script that needs both can run.
            move.keys(keys[::2])
            await met(source, "TRYAGAIN")
            move.keys(move.left())
            # All are there, and the slot is not: everybody is sent on at each command.
            await met(source, "ASK")
            move.end()
            await person.until("exec_command_begin")
            enough.set()
            await life
            await rested(harness)
            assert await violations(harness) == []
