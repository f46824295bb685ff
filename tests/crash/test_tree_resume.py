"""Every process of a deployment ends in the middle of a tree, and is started again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, projected
from tests.crash.driver import CrashHarness, crash_harness, rested, violations
from tests.crash.people import watching
from tests.crash.tree_audit import read_tree

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 90.0


async def registry(harness: CrashHarness) -> RegistryView:
    return projected((await read_tree(harness.deployment, TreeId(harness.people[0].session))).fields)


async def deadlines(harness: CrashHarness) -> dict[bytes, float]:
    """Every timer of the tree, and when it fires."""
    broker, root = harness.deployment.broker, harness.people[0].session
    flat: Any = await broker.command(
        "ZRANGE", broker.keys.timers(broker.keys.shard_of(root)), 0, -1, "WITHSCORES"
    )
    return {member: float(at) for member, at in zip(flat[::2], flat[1::2], strict=True)}


async def everybody_waits_for_the_stuck_one(harness: CrashHarness) -> SessionId:
    """Returns when the root is parked and its second child's command runs; answers that child's session."""
    while True:
        agents, head = (
            (await registry(harness)).agents,
            await harness.people[0].client.head(harness.people[0].session),
        )
        assert head is not None
        if head.status == "waiting" and 1 in agents and agents[1].status == "idle":
            stuck = SessionId(agents[2].session)
            if any(session == stuck for session, _ in harness.ledger.executions()):
                return stuck
        await asyncio.sleep(0.02)


async def claimed_after(harness: CrashHarness, session: SessionId, epoch: int) -> None:
    while (await epoch_of(harness, session)) <= epoch:
        await asyncio.sleep(0.05)


async def epoch_of(harness: CrashHarness, session: SessionId) -> int:
    head = await harness.deployment.broker.logs.head(session)
    assert head is not None
    return head.epoch


async def test_a_tree_goes_on_after_every_process_was_ended_and_started_again() -> None:
    async with (
        asyncio.timeout(WITHIN_S),
        crash_harness(4, sessions=1, trees=True) as harness,
        watching(harness.people),
    ):
        person = harness.people[0]
        workers = [await harness.fork_server.start(), await harness.fork_server.start()]
        asked = asyncio.create_task(person.ask("tree 1: leaf stuck watch gather leaf gather unwatch exec"))
        stuck = await everybody_waits_for_the_stuck_one(harness)
        before, epoch, timers = (
            await registry(harness),
            await epoch_of(harness, stuck),
            await deadlines(harness),
        )
        assert len(timers) == 2, "the root's wait and its watchdog"
        for worker in workers:
            worker.kill_group()
        await asyncio.gather(*(worker.ended for worker in workers))
        await asyncio.to_thread(harness.redis.terminate)
        await asyncio.to_thread(harness.redis.start)
        assert await registry(harness) == before
        await harness.fork_server.start()
        await claimed_after(harness, stuck, epoch)
        assert await deadlines(harness) == timers, "who waits, waits no longer than was said"
        await asked
        await rested(harness)
        after = await registry(harness)
        assert sorted(after.agents) == [1, 2, 3], "numbers go on where they were"
        assert {agent.status for agent in after.agents.values()} == {"idle"}
        assert len(harness.ledger.told) == 1, "the command that was killed is in doubt"
        assert await deadlines(harness) == {}
        assert await violations(harness) == []
