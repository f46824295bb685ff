"""Hundreds of calls of one response on a real server: made, parked, stopped, and taken over in between."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.core.decide.task import BY_USER
from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls
from tests.tree.harness import TreeHarness, asks

pytestmark = pytest.mark.realredis
MANY = 300


async def test_one_response_makes_hundreds_of_agents(trees: TreeHarness) -> None:
    spawns = [asks(f"s{n}", "spawn", prompt=f"part {n}") for n in range(MANY)]
    trees.models.will("root", [*spawns, asks("w", "await")])
    await trees.plant(slots=MANY, spawned=MANY)
    assert await trees.harness.run(trees.root) is Ended.PARKED
    assert sorted((await trees.registry()).agents) == list(range(1, MANY + 1))
    assert await trees.counter("slots") == MANY
    assert await trees.harness.digest(trees.root) == await trees.harness.live_digest(trees.root)
    await trees.check()


@pytest.mark.parametrize("told", [False, True])
async def test_interrupted_task_of_hundreds_of_calls_is_closed_to_its_end_by_the_next_worker(
    trees: TreeHarness, told: bool
) -> None:
    asked = [calls(f"c{n}", ask=True) for n in range(MANY)]
    trees.models.will("root", asked)
    harness, root = trees.harness, await trees.plant(policy="untrusted")
    trees.start()
    await harness.until(root, "exec_approval_request")
    reached = trees.dies_at(2, told=told)
    await harness.submit(root, ops.Interrupt())
    await reached.wait()
    await trees.bury()
    position = await harness.replayed(root)
    assert position.state.task is not None
    assert position.state.task.ending
    trees.start()
    await harness.until(root, "turn_aborted")
    await _all_closed(trees)


async def _all_closed(trees: TreeHarness) -> None:
    state = (await trees.harness.replayed(trees.root)).state
    assert state.task is None
    asked = [item["call_id"] for item in state.history if item.get("type") in CALL_KINDS]
    outputs = [item for item in state.history if item.get("type") in OUTPUT_KINDS]
    assert len(asked) == MANY
    assert Counter(asked) == Counter(item["call_id"] for item in outputs)
    assert {item["output"] for item in outputs} == {BY_USER}
    assert await trees.harness.broker.requests.approvals() == ()
