"""A cancel ends whomever it is meant for: further below, and where nobody serves any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.core.draft import REAP_BELOW_TIMER, REAP_TIMER
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime.worker import Worker
from tests.runtime.players import calls, message
from tests.runtime.wires import Gate
from tests.tree.forest import Cue, Forest, asks
from workers.upkeep_reaping import end_cancelled

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


def three_generations(forest: Forest, leaf: Gate) -> None:
    """The root spawns `a`, which spawns `b`; both wait for what is below, and the root then cancels."""
    forest.tools.gates["c1"] = leaf
    forest.minds.will("a", [asks("b", "spawn", prompt="[b] run")], WAITS)
    forest.minds.will("b", [calls("c1")])


async def _parked(forest: Forest, session: SessionId) -> None:
    while True:
        head = await forest.stage.broker.head(session)
        assert head is not None
        if head.status == "waiting" and not head.holder:
            return


async def test_stuck_grandchild_that_the_root_cancels_is_taken_from_its_worker(forest: Forest) -> None:
    leaf, never = Gate(), Gate()
    three_generations(forest, leaf)
    forest.tools.deaths["c1"] = never
    cancel: list[Cue] = [leaf.reached, asks("x", "cancel", agent_id=2)]
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, [message("ok")])
    await forest.plant()
    forest.start()
    await never.reached.wait()
    await forest.hurry(REAP_BELOW_TIMER)
    await forest.outlast(await forest.session_of(2))
    while (event := (await forest.stage.until(forest.root, "subagent_lifecycle"))[-1].msg).get(
        "status"
    ) != "canceled":
        pass
    assert (event["agent_id"], event["cancel"]) == (2, "presumed")
    never.open()
    await forest.check()


async def test_cancelled_agent_whose_pool_nobody_serves_is_ended_by_whoever_cancels(forest: Forest) -> None:
    leaf = Gate()
    three_generations(forest, leaf)
    told = Gate()
    cancel: list[Cue] = [told, asks("x", "cancel", agent_id=1)]
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, WAITS, [message("ok")])
    await forest.plant()
    forest.start()
    await leaf.reached.wait()
    await told.reached.wait()
    child = await forest.session_of(1)
    await _parked(forest, child)
    await forest.stage.broker.command("HSET", forest.stage.broker.keys.session(child), "pool", "gone")
    told.open()
    while (await forest.stage.until(forest.root, "subagent_lifecycle"))[-1].msg.get("agent_id") != 2:
        pass
    await forest.hurry(REAP_TIMER)
    await forest.stage.until(forest.root, "task_complete")
    assert {agent.status for agent in (await forest.registry()).agents.values()} == {"canceled"}
    assert await forest.counter("slots") == 0
    await forest.check()


async def _cancelled_before_all_workers_died(forest: Forest) -> None:
    """A person cancels the upper of two agents; the marks stand, and nobody has read a letter."""
    leaf = Gate()
    three_generations(forest, leaf)
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] run")], WAITS)
    await forest.plant()
    forest.start()
    await leaf.reached.wait()
    await _parked(forest, forest.root)
    await _parked(forest, await forest.session_of(1))
    dead = forest.dies_at(1, told=True)
    await forest.stage.submit(forest.root, ops.CancelAgent(agent_id=1, reason="enough"))
    await dead.wait()
    await forest.bury()
    assert all(agent.marked and agent.active for agent in (await forest.registry()).agents.values())


async def _over(forest: Forest) -> None:
    while {agent.status for agent in (await forest.registry()).agents.values()} != {"canceled"}:
        await forest.stage.ports.sleep(0.01)
    assert await forest.counter("slots") == 0
    await forest.check()


async def test_cancel_that_was_begun_is_ended_by_a_worker_of_any_pool(forest: Forest) -> None:
    await _cancelled_before_all_workers_died(forest)
    asked = len(forest.minds.prompts)
    await forest.hurry(REAP_TIMER)
    forest.start(pools=("another",), reap_grace_ms=0)
    await _over(forest)
    assert len(forest.minds.prompts) == asked, "it begins nothing that is not its pool's"


async def test_timer_of_a_cancel_is_not_lost_with_the_worker_that_fired_it(forest: Forest) -> None:
    await _cancelled_before_all_workers_died(forest)
    broker, shard = forest.stage.broker, forest.stage.broker.keys.shard_of(forest.root)
    for _ in range(3):
        await forest.hurry(REAP_TIMER)
        (fired,) = await broker.fire(shard)
        assert fired.timer == REAP_TIMER
    queue = [entry for entry in await broker.read_sq(forest.root) if entry.kind == "timer"]
    assert len(queue) == 1, "who reads nothing is told once"
    await forest.hurry(REAP_TIMER)
    forest.start(reap_grace_ms=0)
    await _over(forest)
    timers = broker.keys.timers(shard)
    while await broker.command("ZSCORE", timers, f"{forest.root}:{REAP_TIMER}"):
        await forest.stage.ports.sleep(0.01)


async def test_cancel_that_was_begun_is_ended_by_upkeep_where_no_worker_is_left(forest: Forest) -> None:
    await _cancelled_before_all_workers_died(forest)

    @asynccontextmanager
    async def reaping() -> AsyncIterator[Worker]:
        forest.start(pools=())
        yield forest.youngest

    assert await end_cancelled(forest.stage.broker, forest.tree, reaping)
    await _over(forest)
