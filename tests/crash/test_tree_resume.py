"""Every process of a deployment ends in the middle of a tree, and is started again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, projected
from tests.crash.driver import Theatre, rested, theatre, violations
from tests.crash.people import watching
from tests.crash.tree_audit import read_tree

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 90.0


async def registry(stage: Theatre) -> RegistryView:
    return projected((await read_tree(stage.deployment, TreeId(stage.people[0].session))).fields)


async def deadlines(stage: Theatre) -> dict[bytes, float]:
    """Every timer of the tree, and when it fires."""
    broker, root = stage.deployment.broker, stage.people[0].session
    flat: Any = await broker.command(
        "ZRANGE", broker.keys.timers(broker.keys.shard_of(root)), 0, -1, "WITHSCORES"
    )
    return {member: float(at) for member, at in zip(flat[::2], flat[1::2], strict=True)}


async def everybody_waits_for_the_stuck_one(stage: Theatre) -> SessionId:
    """Returns when the root is parked and its second child's command runs; answers that child's session."""
    while True:
        agents, head = (
            (await registry(stage)).agents,
            await stage.people[0].client.head(stage.people[0].session),
        )
        assert head is not None
        if head.status == "waiting" and 1 in agents and agents[1].status == "idle":
            stuck = SessionId(agents[2].session)
            if any(session == stuck for session, _ in stage.ledger.executions()):
                return stuck
        await asyncio.sleep(0.02)


async def claimed_after(stage: Theatre, session: SessionId, epoch: int) -> None:
    while (await epoch_of(stage, session)) <= epoch:
        await asyncio.sleep(0.05)


async def epoch_of(stage: Theatre, session: SessionId) -> int:
    head = await stage.deployment.broker.head(session)
    assert head is not None
    return head.epoch


async def test_a_tree_goes_on_after_every_process_was_ended_and_started_again() -> None:
    async with (
        asyncio.timeout(WITHIN_S),
        theatre(4, sessions=1, trees=True) as stage,
        watching(stage.people),
    ):
        person = stage.people[0]
        workers = [await stage.nursery.start(), await stage.nursery.start()]
        asked = asyncio.create_task(person.ask("grove 1: leaf stuck watch gather leaf gather unwatch exec"))
        stuck = await everybody_waits_for_the_stuck_one(stage)
        before, epoch, timers = await registry(stage), await epoch_of(stage, stuck), await deadlines(stage)
        assert len(timers) == 2, "the root's wait and its watchdog"
        for worker in workers:
            worker.kill_group()
        await asyncio.gather(*(worker.ended for worker in workers))
        await asyncio.to_thread(stage.redis.terminate)
        await asyncio.to_thread(stage.redis.start)
        assert await registry(stage) == before
        await stage.nursery.start()
        await claimed_after(stage, stuck, epoch)
        assert await deadlines(stage) == timers, "who waits, waits no longer than was said"
        await asked
        await rested(stage)
        after = await registry(stage)
        assert sorted(after.agents) == [1, 2, 3], "numbers go on where they were"
        assert {agent.status for agent in after.agents.values()} == {"idle"}
        assert len(stage.ledger.told) == 1, "the command that was killed is in doubt"
        assert await deadlines(stage) == {}
        assert await violations(stage) == []
