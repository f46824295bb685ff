"""A cancel ends whomever it is meant for: further below, and where nobody serves any more."""

from __future__ import annotations

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.core.rules_standing import REAP_BELOW_TIMER, REAP_TIMER
from tests.runtime.players import calls, message
from tests.runtime.wires import Gate
from tests.tree.forest import Forest, asks

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
    cancel = [leaf.reached, asks("x", "cancel", agent_id=2)]
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, [message("ok")])
    await forest.plant()
    forest.start()
    await never.reached.wait()
    await forest.hurry(REAP_BELOW_TIMER)
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
    cancel = [told, asks("x", "cancel", agent_id=1)]
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
