"""A person speaks to agents through the root: writes, stops, ends. Real Redis, real workers."""

from __future__ import annotations

import pytest

from orchestrator.protocol import ops
from tests.runtime.players import calls, message
from tests.runtime.wires import Gate
from tests.tree.forest import Forest, asks

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


async def test_person_writes_to_an_agent_which_reads_it_at_its_turns_end(forest: Forest) -> None:
    gate = Gate()
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] begin")], WAITS, [message("ok")])
    forest.minds.will("a", [gate, message("first")], [message("second")])
    await forest.plant()
    forest.start()
    await gate.reached.wait()
    await forest.stage.submit(forest.root, ops.MessageAgent(agent_id=1, text="look at the tests too"))
    child = await forest.session_of(1)
    while not (await forest.registry()).agents[1].pending[0]:
        await forest.stage.ports.sleep(0.01)
    gate.open()
    await forest.stage.until(forest.root, "task_complete")
    last = forest.minds.seen_by("a")[-1].input[-1]
    assert (last["role"], last["content"][0]["text"]) == ("user", "look at the tests too")
    (mail,) = await forest.stage.facts(child, "mail")
    assert mail["mail"]["content"]["person"] == "ann", "the log says who wrote it"
    assert (await forest.registry()).agents[1].pending == (0, 0)
    await forest.check()


async def test_person_redirects_an_agent_without_waiting_for_its_turns_end(forest: Forest) -> None:
    stuck = Gate()
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] begin")], WAITS, [message("ok")])
    forest.minds.will("a", [stuck, message("never")], [message("did that")])
    await forest.plant()
    forest.start()
    await stuck.reached.wait()
    await forest.stage.submit(forest.root, ops.MessageAgent(agent_id=1, text="do that", interrupt=True))
    await forest.stage.until(forest.root, "task_complete")
    types = [event.type for event in await forest.stage.until(await forest.session_of(1), "task_complete")]
    assert "turn_aborted" in types
    assert "did that" in str(forest.minds.seen_by("root")[-1].input[-1])
    await forest.check()


async def test_persons_word_ends_the_roots_wait(forest: Forest) -> None:
    gate = Gate()
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] begin")], WAITS, [message("heard")])
    forest.minds.will("a", [gate, message("42")])
    await forest.plant()
    forest.start()
    await gate.reached.wait()
    while (head := await forest.stage.broker.head(forest.root)) and head.status != "waiting":
        await forest.stage.ports.sleep(0.01)
    await forest.stage.submit(forest.root, ops.MessageAgent(agent_id=0, text="never mind the child"))
    events = await forest.stage.until(forest.root, "task_complete")
    assert events[-1].msg["last_agent_message"] == "heard"
    last = forest.minds.seen_by("root")[-1].input[-1]
    assert (last["role"], last["content"][0]["text"]) == ("user", "never mind the child")
    gate.open()
    await forest.stage.until(forest.root, "task_complete")
    await forest.check()


async def test_person_wakes_a_finished_agent_though_no_slot_is_free(forest: Forest) -> None:
    hold = Gate()
    forest.minds.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        WAITS,
        [asks("b", "spawn", prompt="[b] hold")],
        [asks("w2", "await")],
        [asks("w3", "await")],
        [message("ok")],
    )
    forest.minds.will("a", [message("first")], [message("second")])
    forest.minds.will("b", [hold, message("b")])
    await forest.plant(slots=1)
    forest.start()
    await hold.reached.wait()
    await forest.stage.submit(forest.root, ops.MessageAgent(agent_id=1, text="once more"))
    child = await forest.session_of(1)
    await forest.stage.until(child, "task_complete")
    await forest.stage.until(child, "task_complete")
    hold.open()
    await forest.stage.until(forest.root, "task_complete")
    assert await forest.counter("slots") == 0
    await forest.check()


async def test_person_cancels_an_agent_with_all_below_it(forest: Forest) -> None:
    forest.tools.gates["c1"] = forever = Gate()
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] split")], WAITS, [message("ok")])
    forest.minds.will("a", [asks("b", "spawn", prompt="[b] run")], WAITS)
    forest.minds.will("b", [calls("c1")])
    await forest.plant()
    forest.start()
    await forever.reached.wait()
    await forest.stage.submit(forest.root, ops.CancelAgent(agent_id=1, reason="enough"))
    events = await forest.stage.until(forest.root, "task_complete")
    canceled = [(e.msg["agent_id"], e.msg["cancel"]) for e in events if e.msg.get("status") == "canceled"]
    assert sorted(canceled) == [(1, "proved"), (2, "proved")]
    assert forest.tools.killed == ["c1"]
    await forest.check()


async def test_person_stops_the_whole_tree_and_cancels_nobody(forest: Forest) -> None:
    forest.tools.gates["c1"] = forever = Gate()
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] split")], WAITS, [message("never")])
    forest.minds.will("a", [asks("b", "spawn", prompt="[b] run")], WAITS, [message("never")])
    forest.minds.will("b", [calls("c1")], [message("never")])
    await forest.plant()
    forest.start()
    await forever.reached.wait()
    await forest.stage.submit(forest.root, ops.Interrupt(tree=True))
    for session in (forest.root, await forest.session_of(1), await forest.session_of(2)):
        await forest.stage.until(session, "turn_aborted")
    while (await forest.registry()).slots:
        await forest.stage.ports.sleep(0.01)
    assert {agent.status for agent in (await forest.registry()).agents.values()} == {"ready"}
    assert forest.tools.killed == ["c1"]
    await forest.check()


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (ops.MessageAgent(agent_id=7, text="hello"), "there is no agent 7"),
        (ops.MessageAgent(agent_id=1, text=" "), "the text is empty"),
        (ops.CancelAgent(agent_id=0), "`shutdown` ends it"),
    ],
)
async def test_person_is_told_why_a_word_was_not_passed_on(forest: Forest, op: ops.Op, why: str) -> None:
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] x")], [message("ok")])
    await forest.plant()
    forest.start()
    await forest.stage.until(forest.root, "task_complete")
    id = await forest.stage.submit(forest.root, op)
    error = (await forest.stage.until(forest.root, "error"))[-1]
    assert (error.id, why in error.msg["message"]) == (id, True)


async def test_person_speaks_to_the_root_of_the_tree_alone(forest: Forest) -> None:
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] x")], WAITS, [message("ok")])
    await forest.plant()
    forest.start()
    await forest.stage.until(forest.root, "task_complete")
    child = await forest.session_of(1)
    await forest.stage.submit(child, ops.CancelAgent(agent_id=1))
    error = (await forest.stage.until(child, "error"))[-1]
    assert "for the root of a tree" in error.msg["message"]
