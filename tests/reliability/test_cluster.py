"""Sessions and trees on a cluster, while the slot that holds them moves from one node to another."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.driver import House, Play, harness_on, rested, violations
from tests.crash.people import CAST, watching
from tests.servers import RedisServer, start_cluster
from tests.slot_moves import Move, node_of, slot_of

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 60.0
ENDED = "exec_command_end"
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


BRIEF = {
    "DENDRO_WORKER_LEASE_S": "3",
    "DENDRO_WORKER_TRUST_S": "2",
    "DENDRO_WORKER_RENEW_S": "1",
    "DENDRO_WORKER_STALL_S": "1",
    "DENDRO_REDIS_COMMAND_TIMEOUT_S": "2",
}


async def test_node_that_does_not_answer_costs_trees_of_other_nodes_nothing(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    with start_cluster(tmp_path / "cluster", covered=False) as nodes:
        house = House(tmp_path / "house", nodes[0], nodes[0].url, {**SETTINGS, **BRIEF})
        async with (
            asyncio.timeout(WITHIN_S),
            harness_on(house, Play(seed=5, sessions=6)) as harness,
            watching(harness.people),
        ):
            await harness.fork_server.start()
            keys = harness.deployment.broker.keys
            at = {one.session: node_of(nodes, slot_of(keys.session(one.session))) for one in harness.people}
            stuck = at[harness.people[0].session]
            there = [one for one in harness.people if at[one.session] is stuck]
            elsewhere = [one for one in harness.people if at[one.session] is not stuck]
            for person in harness.people:
                person.character = CAST[0]
                person.errands = lambda _, number: f"errand {number}: {'long' if number == 1 else 'exec'}"
            at_work = {one.session: asyncio.create_task(one.errand()) for one in harness.people}
            await asyncio.gather(*(person.until("exec_command_begin") for person in harness.people))
            os.kill(stuck.pid, signal.SIGSTOP)
            # Their commands run for nine seconds, four times as long as a claim is trusted without a renewal.
            await asyncio.gather(*(at_work[one.session] for one in elsewhere))
            assert not any(at_work[one.session].done() for one in there)
            for _ in range(2):
                await asyncio.gather(*(one.errand() for one in elsewhere))
            ended = [
                event.msg["exit_code"] for one in elsewhere for event in one.events if event.type == ENDED
            ]
            assert ended == [0] * 3 * len(elsewhere)
            os.kill(stuck.pid, signal.SIGCONT)
            await asyncio.gather(*at_work.values())
            await rested(harness)
            assert await violations(harness) == []
