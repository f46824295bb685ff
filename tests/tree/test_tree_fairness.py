"""A tree of two hundred agents and twenty of one share a worker with few slots: the trees take turns."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.runtime.runner import Ended
from tests.tree.harness import TreeHarness, asks

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WIDE, SMALL, SLOTS = 200, 20, 2
A_RESPONSE = 100
"""Calls that one response may make."""


async def test_trees_of_one_agent_do_not_queue_behind_a_tree_of_two_hundred(trees: TreeHarness) -> None:
    spawns = [asks(f"s{n}", "spawn", prompt=f"[wide{n}] work") for n in range(WIDE)]
    for first in range(0, WIDE, A_RESPONSE):
        trees.models.will("root", spawns[first : first + A_RESPONSE])
    trees.models.will("root", [asks("w", "await", agent_ids=[WIDE])])
    await trees.plant(slots=WIDE, spawned=WIDE)
    assert await trees.harness.run(trees.root) is Ended.PARKED
    assert await trees.counter("slots") == WIDE, "all of them wait for a worker"
    small = [await trees.harness.session() for _ in range(SMALL)]
    for number, session in enumerate(small):
        await trees.harness.say(session, f"[small{number}] work")
    trees.start(concurrency=SLOTS)
    await asyncio.gather(*(trees.harness.until(session, "task_complete") for session in small))
    order = [name for prompt in trees.models.prompts if (name := trees.models.name_of(prompt)) != "root"]
    last = max(order.index(f"small{number}") for number in range(SMALL))
    before = sum(name.startswith("wide") for name in order[:last])
    # Turn and turn about: one of the wide tree for each small one, and what was under way.
    assert before <= SMALL + SLOTS, order[:last]
    await trees.harness.until(trees.root, "task_complete", within_s=60)
    await trees.check()
