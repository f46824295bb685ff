"""A watchdog is a record: it barks on time, whoever has died meanwhile."""

from __future__ import annotations

import pytest

from orchestrator.core.ids import SessionId
from tests.runtime.players import message
from tests.tree.harness import TreeHarness, asks

pytestmark = pytest.mark.realredis


async def _due_ms(trees: TreeHarness, timer: str) -> int:
    """When a timer of the root is due, on Redis's clock."""
    keys = trees.harness.broker.keys
    found = await trees.harness.broker.command("ZSCORE", keys.timers(keys.shard_of(trees.root)), timer)
    assert isinstance(found, bytes | str | float)
    return int(float(found))


async def _barks(trees: TreeHarness, child: SessionId) -> list[tuple[str, int]]:
    """The watchdog's messages that the child's log has: their keys, and when they were written."""
    facts = await trees.harness.facts(child, "mail")
    letters = [fact["mail"] for fact in facts]
    return [(letter["key"], letter["at_ms"]) for letter in letters if letter["content"].get("watchdog")]


async def test_watchdog_barks_on_time_although_every_process_was_lost(trees: TreeHarness) -> None:
    watch = asks("w", "watchdog", agent_id=1, interval_s=1, message="[a] report")
    trees.models.will("root", [asks("a", "spawn", prompt="[a] begin")], [watch], [message("set")])
    await trees.plant(autosubmit=False, watchdog_floor_s=1.0)
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    child = await trees.session_of(1)
    await trees.harness.until(child, "task_complete")
    await trees.bury()
    before = await _barks(trees, child)
    due_ms = await _due_ms(trees, f"{trees.root}:watchdog:1")

    trees.start()
    while len(barks := (await _barks(trees, child))[len(before) :]) < 2:
        await trees.harness.until(child, "task_complete")
    (first, at_ms), (second, again_ms), *_ = barks
    assert at_ms >= due_ms, "not before the time that was set"
    assert again_ms - at_ms >= 1_000
    numbers = [int(key.rpartition(":")[2]) for key in (first, second)]
    assert numbers == [numbers[0], numbers[0] + 1], "it goes on, and nobody has begun another one"
    assert "[a] report" in str(trees.models.seen_by("a")[-1].input[-1])
    await trees.bury()
    await trees.check()


async def test_inbox_that_a_watchdog_far_above_fills_is_told_to_who_made_the_agent(
    trees: TreeHarness,
) -> None:
    watch = asks("w", "watchdog", agent_id=2, interval_s=1, message="[b] report")
    trees.models.will("root", [asks("a", "spawn", prompt="[a] begin")], [asks("r", "await")], [watch])
    trees.models.will("a", [asks("b", "spawn", prompt="[b] begin")])
    await trees.plant(autosubmit=False, watchdog_floor_s=1.0)
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    child, grandchild = await trees.session_of(1), await trees.session_of(2)
    while not (told := (await trees.harness.until(child, "agent_inbox"))[-1].msg)["pending_messages"]:
        pass
    assert told["session_id"] == grandchild
    await trees.bury()
    await trees.check()
