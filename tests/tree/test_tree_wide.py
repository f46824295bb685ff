"""Hundreds of calls of one response on a real server: made, parked, stopped, and taken over in between."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS
from orchestrator.core.rules_ending import BY_USER
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls
from tests.tree.forest import Forest, asks

pytestmark = pytest.mark.realredis
MANY = 300


async def test_one_response_makes_hundreds_of_agents(forest: Forest) -> None:
    spawns = [asks(f"s{n}", "spawn", prompt=f"part {n}") for n in range(MANY)]
    forest.minds.will("root", [*spawns, asks("w", "await")])
    await forest.plant(slots=MANY, spawned=MANY)
    assert await forest.stage.run(forest.root) is Ended.PARKED
    assert sorted((await forest.registry()).agents) == list(range(1, MANY + 1))
    assert await forest.counter("slots") == MANY
    assert await forest.stage.digest(forest.root) == await forest.stage.live_digest(forest.root)
    await forest.check()


@pytest.mark.parametrize("told", [False, True])
async def test_interrupted_task_of_hundreds_of_calls_is_closed_to_its_end_by_the_next_worker(
    forest: Forest, told: bool
) -> None:
    asked = [calls(f"c{n}", ask=True) for n in range(MANY)]
    forest.minds.will("root", asked)
    stage, root = forest.stage, await forest.plant(policy="untrusted")
    forest.start()
    await stage.until(root, "exec_approval_request")
    reached = forest.dies_at(2, told=told)
    await stage.submit(root, ops.Interrupt())
    await reached.wait()
    await forest.bury()
    position = await stage.replayed(root)
    assert position.state.task is not None
    assert position.state.task.ending
    forest.start()
    await stage.until(root, "turn_aborted")
    await _all_closed(forest)


async def _all_closed(forest: Forest) -> None:
    state = (await forest.stage.replayed(forest.root)).state
    assert state.task is None
    asked = [item["call_id"] for item in state.history if item.get("type") in CALL_KINDS]
    outputs = [item for item in state.history if item.get("type") in OUTPUT_KINDS]
    assert len(asked) == MANY
    assert Counter(asked) == Counter(item["call_id"] for item in outputs)
    assert {item["output"] for item in outputs} == {BY_USER}
    assert await forest.stage.broker.approvals() == ()
