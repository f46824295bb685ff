"""Workers die at every commit of a tree's life, before it and behind it; the tree does not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from tests.runtime.players import calls, message
from tests.tree.harness import TreeHarness, asks, outputs_of

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


def merged(outputs: Any) -> list[Any]:
    """Awaits again until nobody is waited for, then tells what came."""
    awaits = [out for out in outputs.values() if isinstance(out, dict) and "ready" in out]
    if awaits[-1]["waiting"] or len(set(_read(awaits))) < 3:
        return [asks(f"w{len(awaits)}", "await")]
    return [message(",".join(sorted(set(_read(awaits)))))]


def _read(awaits: list[dict[str, Any]]) -> list[str]:
    ready = [entry for out in awaits for entry in out["ready"] if entry["completion"]]
    return [next(iter(entry["completion"].values()))["last_message"] for entry in ready]


def family(trees: TreeHarness) -> None:
    """Models that find their place by what they are told, so a repeated request is answered alike."""
    trees.models.thinks("root", _root)
    trees.models.thinks("mid", _mid)
    trees.models.thinks("leaf", lambda outputs: [message("leaf")])
    trees.models.thinks("worker", _worker)
    trees.models.thinks("twin", lambda outputs: [message("twin")])


def _root(outputs: Any) -> list[Any]:
    if "m" not in outputs:
        spawns = [asks("m", "spawn", prompt="[mid] split"), asks("k", "spawn", prompt="[worker] run")]
        return [*spawns, asks("f", "fork", prompt="[twin] go on")]
    if "s" not in outputs:
        return [asks("s", "send_message", agent_id=outputs["k"]["agent_id"], prompt="faster")]
    if not any(isinstance(out, dict) and "ready" in out for out in outputs.values()):
        return WAITS
    return merged(outputs)


def _mid(outputs: Any) -> list[Any]:
    if "l" not in outputs:
        return [asks("l", "spawn", prompt="[leaf] read")]
    awaits = [out for out in outputs.values() if isinstance(out, dict) and "ready" in out]
    if not awaits:
        return WAITS
    return [message("mid+" + _read(awaits)[0])]


def _worker(outputs: Any) -> list[Any]:
    return [message("ran")] if "c1" in outputs else [calls("c1")]


@pytest.mark.parametrize("told", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("step", range(1, 24, 2))
async def test_tree_survives_the_loss_of_all_workers_at_a_commit(
    trees: TreeHarness, step: int, told: bool
) -> None:
    family(trees)
    await trees.plant()
    died = trees.dies_at(step, told=told)
    trees.start()
    done = asyncio.ensure_future(trees.harness.until(trees.root, "task_complete"))
    first, _ = await asyncio.wait(
        {done, asyncio.ensure_future(died.wait())}, return_when=asyncio.FIRST_COMPLETED
    )
    if done not in first:
        await trees.bury()
        trees.start()
    events = await done
    assert events[-1].msg["last_agent_message"] == "mid+leaf,ran,twin"
    await trees.check()
    registry = await trees.registry()
    assert {agent.status for agent in registry.agents.values()} == {"idle"}
    assert await trees.counter("slots") == 0
    assert trees.tools.started["c1"] <= 2
    born = [fact.message for fact in await trees.log() if fact.message.get("event") == "created"]
    assert set(Counter(message["subagent"]["agent_id"] for message in born).values()) == {1}
    for session in [trees.root, *(SessionId(agent.session) for agent in registry.agents.values())]:
        keys = [key for fact in await trees.harness.facts(session, "mail_taken") for key in fact["keys"]]
        assert len(keys) == len(set(keys)), "a letter was given to a model twice"


async def test_agent_whose_number_was_forgotten_and_given_again_gets_another(trees: TreeHarness) -> None:
    spawns = [asks(name, "spawn", prompt=f"[{name}] go") for name in ("a", "b", "c")]
    trees.models.will("root", [spawns[0]], [*spawns[1:], *WAITS], [message("ok")])
    await trees.plant()
    agents, set_back = trees.harness.broker.keys.agents(trees.tree), 0

    async def forgetful(_: Any) -> None:
        nonlocal set_back
        if set_back < 2 and await trees.harness.broker.command("HGET", agents, "s:1"):
            set_back += 1
            await trees.harness.broker.command("HSET", agents, "last_agent", "0")

    trees.harness.connection.before["reserve_ids"] = forgetful
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    assert set_back == 2
    numbers = sorted(
        outputs_of(trees.models.seen_by("root")[-1])[name]["agent_id"] for name in ("a", "b", "c")
    )
    assert numbers == sorted((await trees.registry()).agents)
    assert len(set(numbers)) == 3
    await trees.check()
