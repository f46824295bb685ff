"""A person speaks to agents through the root: writes, stops, ends. Real Redis, real workers."""

from __future__ import annotations

import pytest

from orchestrator.protocol import ops
from tests.runtime.connections import Gate
from tests.runtime.players import calls, message
from tests.tree.harness import TreeHarness, asks

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


async def test_person_writes_to_an_agent_which_reads_it_at_its_turns_end(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] begin")], WAITS, [message("ok")])
    trees.models.will("a", [gate, message("first")], [message("second")])
    await trees.plant()
    trees.start()
    await gate.reached.wait()
    await trees.harness.submit(trees.root, ops.MessageAgent(agent_id=1, text="look at the tests too"))
    child = await trees.session_of(1)
    while not (await trees.registry()).agents[1].pending[0]:
        await trees.harness.ports.sleep(0.01)
    gate.open()
    await trees.harness.until(trees.root, "task_complete")
    last = trees.models.seen_by("a")[-1].input[-1]
    assert (last["role"], last["content"][0]["text"]) == ("user", "look at the tests too")
    (mail,) = await trees.harness.facts(child, "mail")
    assert mail["mail"]["content"]["person"] == "ann", "the log says who wrote it"
    assert (await trees.registry()).agents[1].pending == (0, 0)
    await trees.check()


async def test_person_redirects_an_agent_without_waiting_for_its_turns_end(trees: TreeHarness) -> None:
    stuck = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] begin")], WAITS, [message("ok")])
    trees.models.will("a", [stuck, message("never")], [message("did that")])
    await trees.plant()
    trees.start()
    await stuck.reached.wait()
    await trees.harness.submit(trees.root, ops.MessageAgent(agent_id=1, text="do that", interrupt=True))
    await trees.harness.until(trees.root, "task_complete")
    types = [event.type for event in await trees.harness.until(await trees.session_of(1), "task_complete")]
    assert "turn_aborted" in types
    assert "did that" in str(trees.models.seen_by("root")[-1].input[-1])
    await trees.check()


async def test_persons_word_ends_the_roots_wait(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] begin")], WAITS, [message("heard")])
    trees.models.will("a", [gate, message("42")])
    await trees.plant()
    trees.start()
    await gate.reached.wait()
    while (head := await trees.harness.broker.logs.head(trees.root)) and head.status != "waiting":
        await trees.harness.ports.sleep(0.01)
    await trees.harness.submit(trees.root, ops.MessageAgent(agent_id=0, text="never mind the child"))
    events = await trees.harness.until(trees.root, "task_complete")
    assert events[-1].msg["last_agent_message"] == "heard"
    last = trees.models.seen_by("root")[-1].input[-1]
    assert (last["role"], last["content"][0]["text"]) == ("user", "never mind the child")
    gate.open()
    await trees.harness.until(trees.root, "task_complete")
    await trees.check()


async def test_person_wakes_a_finished_agent_though_no_slot_is_free(trees: TreeHarness) -> None:
    hold = Gate()
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        WAITS,
        [asks("b", "spawn", prompt="[b] hold")],
        [asks("w2", "await")],
        [asks("w3", "await")],
        [message("ok")],
    )
    trees.models.will("a", [message("first")], [message("second")])
    trees.models.will("b", [hold, message("b")])
    await trees.plant(slots=1)
    trees.start()
    await hold.reached.wait()
    await trees.harness.submit(trees.root, ops.MessageAgent(agent_id=1, text="once more"))
    child = await trees.session_of(1)
    await trees.harness.until(child, "task_complete")
    await trees.harness.until(child, "task_complete")
    hold.open()
    await trees.harness.until(trees.root, "task_complete")
    assert await trees.counter("slots") == 0
    await trees.check()


async def test_person_cancels_an_agent_with_all_below_it(trees: TreeHarness) -> None:
    trees.tools.gates["c1"] = forever = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] split")], WAITS, [message("ok")])
    trees.models.will("a", [asks("b", "spawn", prompt="[b] run")], WAITS)
    trees.models.will("b", [calls("c1")])
    await trees.plant()
    trees.start()
    await forever.reached.wait()
    await trees.harness.submit(trees.root, ops.CancelAgent(agent_id=1, reason="enough"))
    events = await trees.harness.until(trees.root, "task_complete")
    canceled = [(e.msg["agent_id"], e.msg["cancel"]) for e in events if e.msg.get("status") == "canceled"]
    assert sorted(canceled) == [(1, "proved"), (2, "proved")]
    assert trees.tools.killed == ["c1"]
    await trees.check()


async def test_person_stops_the_whole_tree_and_cancels_nobody(trees: TreeHarness) -> None:
    trees.tools.gates["c1"] = forever = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] split")], WAITS, [message("never")])
    trees.models.will("a", [asks("b", "spawn", prompt="[b] run")], WAITS, [message("never")])
    trees.models.will("b", [calls("c1")], [message("never")])
    await trees.plant()
    trees.start()
    await forever.reached.wait()
    await trees.harness.submit(trees.root, ops.Interrupt(tree=True))
    for session in (trees.root, await trees.session_of(1), await trees.session_of(2)):
        await trees.harness.until(session, "turn_aborted")
    while (await trees.registry()).slots:
        await trees.harness.ports.sleep(0.01)
    assert {agent.status for agent in (await trees.registry()).agents.values()} == {"ready"}
    assert trees.tools.killed == ["c1"]
    await trees.check()


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (ops.MessageAgent(agent_id=7, text="hello"), "there is no agent 7"),
        (ops.MessageAgent(agent_id=1, text=" "), "the text is empty"),
        (ops.CancelAgent(agent_id=0), "`shutdown` ends it"),
    ],
)
async def test_person_is_told_why_a_word_was_not_passed_on(trees: TreeHarness, op: ops.Op, why: str) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] x")], [message("ok")])
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    id = await trees.harness.submit(trees.root, op)
    error = (await trees.harness.until(trees.root, "error"))[-1]
    assert (error.id, why in error.msg["message"]) == (id, True)


async def test_person_speaks_to_the_root_of_the_tree_alone(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] x")], WAITS, [message("ok")])
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    child = await trees.session_of(1)
    await trees.harness.submit(child, ops.CancelAgent(agent_id=1))
    error = (await trees.harness.until(child, "error"))[-1]
    assert "for the root of a tree" in error.msg["message"]
