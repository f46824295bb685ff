"""A cancel ends whomever it is meant for: further below, and where nobody serves any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.core.commit_parts import REAP_BELOW_TIMER, REAP_TIMER
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime.worker import Worker
from tests.runtime.connections import Gate
from tests.runtime.players import calls, message
from tests.tree.harness import Cue, TreeHarness, asks
from workers.upkeep_cancels import end_cancelled

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


def three_generations(trees: TreeHarness, leaf: Gate) -> None:
    """The root spawns `a`, which spawns `b`; both wait for what is below, and the root then cancels."""
    trees.tools.gates["c1"] = leaf
    trees.models.will("a", [asks("b", "spawn", prompt="[b] run")], WAITS)
    trees.models.will("b", [calls("c1")])


async def _parked(trees: TreeHarness, session: SessionId) -> None:
    while True:
        head = await trees.harness.broker.logs.head(session)
        assert head is not None
        if head.status == "waiting" and not head.holder:
            return


async def test_stuck_grandchild_that_the_root_cancels_is_taken_from_its_worker(trees: TreeHarness) -> None:
    leaf, never = Gate(), Gate()
    three_generations(trees, leaf)
    trees.tools.deaths["c1"] = never
    cancel: list[Cue] = [leaf.reached, asks("x", "cancel", agent_id=2)]
    trees.models.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, [message("ok")])
    await trees.plant()
    trees.start()
    await never.reached.wait()
    await trees.hurry(REAP_BELOW_TIMER)
    await trees.outlast(await trees.session_of(2))
    while (event := (await trees.harness.until(trees.root, "subagent_lifecycle"))[-1].msg).get(
        "status"
    ) != "canceled":
        pass
    assert (event["agent_id"], event["cancel"]) == (2, "presumed")
    never.open()
    await trees.check()


async def test_cancelled_agent_whose_pool_nobody_serves_is_ended_by_whoever_cancels(
    trees: TreeHarness,
) -> None:
    leaf = Gate()
    three_generations(trees, leaf)
    told = Gate()
    cancel: list[Cue] = [told, asks("x", "cancel", agent_id=1)]
    trees.models.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, WAITS, [message("ok")])
    await trees.plant()
    trees.start()
    await leaf.reached.wait()
    await told.reached.wait()
    child = await trees.session_of(1)
    await _parked(trees, child)
    await trees.harness.broker.command("HSET", trees.harness.broker.keys.session(child), "pool", "gone")
    told.open()
    while (await trees.harness.until(trees.root, "subagent_lifecycle"))[-1].msg.get("agent_id") != 2:
        pass
    await trees.hurry(REAP_TIMER)
    await trees.harness.until(trees.root, "task_complete")
    assert {agent.status for agent in (await trees.registry()).agents.values()} == {"canceled"}
    assert await trees.counter("slots") == 0
    await trees.check()


async def _cancelled_before_all_workers_died(trees: TreeHarness) -> None:
    """A person cancels the upper of two agents; the marks stand, and nobody has read a message."""
    leaf = Gate()
    three_generations(trees, leaf)
    trees.models.will("root", [asks("a", "spawn", prompt="[a] run")], WAITS)
    await trees.plant()
    trees.start()
    await leaf.reached.wait()
    await _parked(trees, trees.root)
    await _parked(trees, await trees.session_of(1))
    dead = trees.dies_at(1, told=True)
    await trees.harness.submit(trees.root, ops.CancelAgent(agent_id=1, reason="enough"))
    await dead.wait()
    await trees.bury()
    assert all(agent.marked and agent.active for agent in (await trees.registry()).agents.values())


async def _over(trees: TreeHarness) -> None:
    while {agent.status for agent in (await trees.registry()).agents.values()} != {"canceled"}:
        await trees.harness.ports.sleep(0.01)
    assert await trees.counter("slots") == 0
    await trees.check()


async def test_cancel_that_was_begun_is_ended_by_a_worker_of_any_pool(trees: TreeHarness) -> None:
    await _cancelled_before_all_workers_died(trees)
    asked = len(trees.models.prompts)
    await trees.hurry(REAP_TIMER)
    trees.start(pools=("another",), reap_grace_ms=0)
    await _over(trees)
    assert len(trees.models.prompts) == asked, "it begins nothing that is not its pool's"


async def test_timer_of_a_cancel_is_not_lost_with_the_worker_that_fired_it(trees: TreeHarness) -> None:
    await _cancelled_before_all_workers_died(trees)
    broker, shard = trees.harness.broker, trees.harness.broker.keys.shard_of(trees.root)
    for _ in range(3):
        await trees.hurry(REAP_TIMER)
        (fired,) = await broker.claims.fire(shard)
        assert fired.timer == REAP_TIMER
    queue = [entry for entry in await broker.logs.read_sq(trees.root) if entry.kind == "timer"]
    assert len(queue) == 1, "who reads nothing is told once"
    await trees.hurry(REAP_TIMER)
    trees.start(reap_grace_ms=0)
    await _over(trees)
    timers = broker.keys.timers(shard)
    while await broker.command("ZSCORE", timers, f"{trees.root}:{REAP_TIMER}"):
        await trees.harness.ports.sleep(0.01)


async def test_cancel_that_was_begun_is_ended_by_upkeep_where_no_worker_is_left(trees: TreeHarness) -> None:
    await _cancelled_before_all_workers_died(trees)

    @asynccontextmanager
    async def reaping() -> AsyncIterator[Worker]:
        trees.start(pools=())
        yield trees.youngest

    assert await end_cancelled(trees.harness.broker, trees.tree, reaping)
    await _over(trees)
