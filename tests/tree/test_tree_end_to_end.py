"""A root spawns, awaits, messages, forks and cancels real children: real Redis, real workers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core.draft import REAP_TIMER
from orchestrator.model.errors import FatalKind, FatalModelError
from orchestrator.protocol import ops
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls, message
from tests.runtime.wires import Gate
from tests.tree.forest import Cue, Forest, asks

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


def types(events: Any) -> list[str]:
    return [event.type for event in events]


async def test_root_spawns_awaits_and_reads_its_children(forest: Forest) -> None:
    told: dict[str, Any] = {}
    forest.minds.will(
        "root",
        [asks("a", "spawn", prompt="[a] count", label="one"), asks("b", "spawn", prompt="[b] count")],
        [asks("w", "await")],
        lambda outputs: told.update(outputs) or [message("merged")],
    )
    forest.minds.will("a", [message("42")])
    forest.minds.will("b", [message("43")])
    await forest.plant()
    forest.start(2)
    events = await forest.stage.until(forest.root, "task_complete")
    assert events[-1].msg["last_agent_message"] == "merged"
    answers = {
        ready["metadata"]["agent_id"]: ready["completion"]["Completed"]["last_message"]
        for output in told.values()
        for ready in output.get("ready", ())
    }
    assert answers.items() <= {1: "42", 2: "43"}.items()
    assert answers
    lifecycle = [e.msg for e in events if e.type == "subagent_lifecycle"]
    assert [m["event"] for m in lifecycle[:2]] == ["created", "created"]
    assert lifecycle[0]["subagent"]["label"] == "one"
    await forest.check()


async def test_waiting_parent_holds_nothing_until_its_child_is_done(forest: Forest) -> None:
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] count")], WAITS, [message("ok")])
    forest.minds.will("a", [message("42")])
    await forest.plant()
    assert await forest.stage.run(forest.root) is Ended.PARKED
    head = await forest.stage.broker.head(forest.root)
    assert head is not None
    assert (head.status, head.holder) == ("waiting", None)
    assert len(forest.minds.prompts) == 2, "nobody polls"
    [child] = [one for one in await forest.stage.broker.sessions(10) if one.agent_id == 1]
    listed, parents = orjson.loads(child.meta), orjson.loads(head.meta)
    assert listed["title"] == "[a] count", "lists know it before it has come to rest once"
    assert (listed["cwd"], listed["model"]) == (parents["cwd"], parents["model"])
    forest.start()
    await forest.stage.until(forest.root, "task_complete")
    await forest.check()


async def test_grandchild_reports_to_its_parent_and_shows_at_the_root(forest: Forest) -> None:
    forest.minds.will(
        "root", [asks("a", "spawn", prompt="[a] split")], [asks("w", "await")], [message("all")]
    )
    forest.minds.will("a", [asks("b", "spawn", prompt="[b] leaf")], WAITS, [message("half")])
    forest.minds.will("b", [message("leaf")])
    await forest.plant()
    forest.start()
    events = await forest.stage.until(forest.root, "task_complete")
    created = [e.msg["subagent"] for e in events if e.msg.get("event") == "created"]
    assert [(s["agent_id"], s["parent_agent_id"], s["agent_path"]) for s in created] == [
        (1, 0, "0/1"),
        (2, 1, "0/1/2"),
    ]
    own = await forest.stage.until(await forest.session_of(1), "task_complete")
    assert "created" in [e.msg.get("event") for e in own], "the parent's own queue tells of it as well"
    await forest.check()


async def test_slots_refuse_the_spawn_that_is_too_much_and_only_that(forest: Forest) -> None:
    told: dict[str, Any] = {}
    gate = Gate()
    forest.minds.will(
        "root",
        [asks(f"s{n}", "spawn", prompt=f"[x{n}] wait") for n in range(3)],
        lambda outputs: told.update(outputs) or [gate, message("ok")],
    )
    hold = [Gate() for _ in range(3)]
    for n in range(3):
        forest.minds.will(f"x{n}", [hold[n], message("x")])
    await forest.plant(slots=2)
    forest.start()
    await gate.reached.wait()
    assert [isinstance(told[f"s{n}"], dict) for n in range(3)] == [True, True, False]
    assert "no slot is free: 2 agents" in told["s2"]
    assert await forest.counter("slots") == 2
    for opened in (*hold, gate):
        opened.open()
    await forest.stage.until(forest.root, "task_complete")


async def test_fork_goes_on_from_the_parents_conversation(forest: Forest) -> None:
    long = "long " * 3_000
    forest.minds.will(
        "root", [asks("f", "fork", prompt="[twin] go on")], [asks("w", "await")], [message("ok")]
    )
    forest.minds.will("twin", [message("went on")])
    await forest.plant(f"[root] {long}")
    forest.start()
    await forest.stage.until(forest.root, "task_complete")
    (prompt,) = forest.minds.seen_by("twin")
    texts = [part["text"] for item in prompt.input if item.get("role") == "user" for part in item["content"]]
    assert any(long in text for text in texts), (
        "the inherited text was stored beside the log, and found again"
    )
    fork = [item for item in prompt.input if item.get("call_id") == "f"]
    assert [item["type"] for item in fork] == ["function_call", "function_call_output"]
    assert '"role":"child"' in fork[1]["output"]
    assert prompt.input[-2]["role"] == "developer"
    await forest.check()


async def test_message_reaches_a_running_child_at_its_turns_end(forest: Forest) -> None:
    gate = Gate()
    forest.minds.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        [asks("m", "send_message", agent_id=1, prompt="and one more thing")],
        [asks("w", "await")],
        [message("ok")],
    )
    forest.minds.will("a", [gate, message("first")], [message("second")])
    await forest.plant()
    forest.start()
    await gate.reached.wait()
    while (await forest.stage.until(forest.root, "agent_inbox"))[-1].msg["pending_messages"] == 0:
        pass
    gate.open()
    await forest.stage.until(forest.root, "task_complete")
    last = forest.minds.seen_by("a")[-1]
    assert "and one more thing" in str(last.input[-1])
    assert (await forest.registry()).agents[1].pending == (0, 0)
    told = [fact.depths for fact in await forest.log() if fact.message["type"] == "agent_inbox"]
    child = await forest.session_of(1)
    assert [(d[child]) for d in told if child in d] == [(1, 0), (0, 0)]
    await forest.check()


async def test_interrupting_message_redirects_a_child(forest: Forest) -> None:
    stuck = Gate()
    forest.minds.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        [stuck.reached, asks("m", "send_message", agent_id=1, prompt="do that instead", interrupt=True)],
        [asks("w", "await")],
        [message("ok")],
    )
    forest.minds.will("a", [stuck, message("never")], [message("did that")])
    await forest.plant()
    forest.start()
    events = await forest.stage.until(forest.root, "task_complete")
    child = await forest.stage.until(await forest.session_of(1), "task_complete")
    assert [t for t in types(child) if t in {"task_started", "turn_aborted", "task_complete"}] == [
        "task_started",
        "turn_aborted",
        "task_started",
        "task_complete",
    ]
    statuses = [e.msg["status"] for e in events if e.msg.get("event") == "status" and e.msg["agent_id"] == 1]
    assert statuses[:2] == ["running", "ready"]
    await forest.check()


async def test_cancel_kills_what_runs_below_and_says_proved(forest: Forest) -> None:
    forest.tools.gates["c1"] = forever = Gate()
    forest.minds.will(
        "root",
        [asks("a", "spawn", prompt="[a] split")],
        [forever.reached, asks("x", "cancel", agent_id=1, reason="enough")],
        [asks("w", "await")],
        [message("ok")],
    )
    forest.minds.will("a", [asks("b", "spawn", prompt="[b] run")], [asks("w", "await")])
    forest.minds.will("b", [calls("c1")])
    await forest.plant()
    forest.start()
    events = await forest.stage.until(forest.root, "task_complete")
    canceled = [e.msg for e in events if e.msg.get("status") == "canceled"]
    assert {(m["agent_id"], m["cancel"]) for m in canceled} == {(1, "proved"), (2, "proved")}
    assert canceled[-1]["agent_id"] == 1, "it is over for a parent when it is over for all below"
    assert forest.tools.killed == ["c1"]
    assert await forest.counter("slots") == 0
    await forest.check()


async def test_failed_child_is_told_and_stays_failed(forest: Forest) -> None:
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] fail")], WAITS, [message("ok")])
    forest.minds.will("a", [FatalModelError(FatalKind.BAD_REQUEST, "no such thing", "bad_request")])
    await forest.plant()
    forest.start()
    await forest.stage.until(forest.root, "task_complete")
    assert (await forest.registry()).agents[1].status == "failed"
    await forest.check()


async def test_childs_approval_is_answered_at_the_root(forest: Forest) -> None:
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] ask")], WAITS, [message("ok")])
    forest.minds.will("a", [calls("c1", ask=True)], [message("asked")])
    await forest.plant(policy="untrusted")
    forest.start()
    events = await forest.stage.until(forest.root, "exec_approval_request")
    asked = events[-1].msg
    assert (asked["agent_id"], asked["agent_path"], asked["call_id"]) == (1, "0/1", "c1")
    await forest.stage.submit(forest.root, ops.ExecApproval(id="c1", decision=ReviewDecision.APPROVED))
    await forest.stage.until(forest.root, "task_complete")
    assert forest.tools.started["c1"] == 1


async def test_result_begins_a_turn_of_an_idle_root(forest: Forest) -> None:
    gate = Gate()
    forest.minds.will(
        "root", [asks("a", "spawn", prompt="[a] later")], [message("meanwhile")], [message("seen")]
    )
    forest.minds.will("a", [gate, message("42")])
    await forest.plant()
    forest.start()
    await forest.stage.until(forest.root, "task_complete")
    gate.open()
    events = await forest.stage.until(forest.root, "task_complete")
    assert events[-1].id == "auto-1"
    assert "injected" in str(forest.minds.seen_by("root")[-1].input[-1])
    await forest.check()


async def test_closing_the_root_ends_the_tree_first(forest: Forest) -> None:
    forest.tools.gates["c1"] = forever = Gate()
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] run")], [message("bye")])
    forest.minds.will("a", [calls("c1")])
    await forest.plant()
    forest.start()
    await forever.reached.wait()
    await forest.stage.submit(forest.root, ops.Shutdown())
    events = await forest.stage.until(forest.root, "shutdown_complete")
    assert "canceled" in [e.msg.get("status") for e in events]
    assert forest.tools.killed == ["c1"]
    assert await forest.counter("slots") == 0


async def test_stuck_child_does_not_survive_a_cancel(forest: Forest) -> None:
    forest.tools.gates["c1"], forest.tools.deaths["c1"] = forever, never = Gate(), Gate()
    cancel: list[Cue] = [forever.reached, asks("x", "cancel", agent_id=1)]
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, WAITS, [message("ok")])
    forest.minds.will("a", [calls("c1")])
    await forest.plant()
    forest.start()
    await never.reached.wait()
    await forest.hurry(REAP_TIMER)
    await forest.outlast(await forest.session_of(1))
    events = await forest.stage.until(forest.root, "task_complete")
    (ended,) = [event.msg for event in events if event.msg.get("status") == "canceled"]
    assert ended["cancel"] == "presumed", "its worker does nothing: it was taken over"
    never.open()
