"""A root spawns, awaits, messages, forks and cancels real children: real Redis, real workers."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from orchestrator.broker import claims as claims_module
from orchestrator.broker.connection import ScriptCall
from orchestrator.broker.records import Successor
from orchestrator.broker.replies import Reply
from orchestrator.core.commit_parts import REAP_TIMER
from orchestrator.core.ids import SessionId
from orchestrator.model.provider_errors import FatalKind, FatalModelError
from orchestrator.protocol import ops
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.runtime import worker as worker_module
from orchestrator.runtime.runner import Ended
from orchestrator.runtime.worker import Worker
from tests.runtime.connections import Gate
from tests.runtime.players import calls, message
from tests.tree.harness import Cue, TreeHarness, asks

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


def types(events: Any) -> list[str]:
    return [event.type for event in events]


async def test_root_spawns_awaits_and_reads_its_children(trees: TreeHarness) -> None:
    told: dict[str, Any] = {}
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] count", label="one"), asks("b", "spawn", prompt="[b] count")],
        [asks("w", "await")],
        lambda outputs: told.update(outputs) or [message("merged")],
    )
    trees.models.will("a", [message("42")])
    trees.models.will("b", [message("43")])
    await trees.plant()
    trees.start(2)
    events = await trees.harness.until(trees.root, "task_complete")
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
    await trees.check()


async def test_waiting_parent_holds_nothing_until_its_child_is_done(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] count")], WAITS, [message("ok")])
    trees.models.will("a", [message("42")])
    await trees.plant()
    assert await trees.harness.run(trees.root) is Ended.PARKED
    head = await trees.harness.broker.logs.head(trees.root)
    assert head is not None
    assert (head.status, head.holder) == ("waiting", None)
    assert len(trees.models.prompts) == 2, "nobody polls"
    [child] = [one for one in await trees.harness.broker.logs.sessions(10) if one.agent_id == 1]
    listed, parents = orjson.loads(child.meta), orjson.loads(head.meta)
    assert listed["title"] == "[a] count", "lists know it before it has come to rest once"
    assert (listed["cwd"], listed["model"]) == (parents["cwd"], parents["model"])
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    await trees.check()


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look once, when they start, and others leave to a worker for long what is its own."""
    monkeypatch.setattr(worker_module, "POLL_S", 3600.0)
    monkeypatch.setattr(claims_module, "_NEAR_MS", 600_000)


async def _handed_over(trees: TreeHarness, **config: Any) -> tuple[int, int]:
    """How often the awaiting root was claimed behind its child's last request, and its worker told of it."""
    gate = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] count")], WAITS, [message("ok")])
    trees.models.will("a", [gate, message("42")])
    await trees.plant()
    trees.start(**config)
    async with asyncio.timeout(30):
        await gate.reached.wait()
        broker, calls = trees.harness.broker, trees.harness.connection.calls
        held = trees.youngest._runners.values()
        while any(runner.claim.session == trees.root for runner in held):
            await broker.logs.head(trees.root)
        calls.clear()
        begun = await _told(trees)
        gate.open()
        events = await trees.harness.until(trees.root, "task_complete")
    assert events[-1].msg["last_agent_message"] == "ok"
    claims = sum(name == "claim" and words[0] == trees.root for name, words in calls)
    return claims, await _told(trees) - begun


async def _told(trees: TreeHarness) -> int:
    broker = trees.harness.broker
    told = await broker.command("XLEN", broker.keys.near("w1"))
    assert isinstance(told, int)
    return told


@pytest.mark.usefixtures("without_looks")
async def test_worker_that_ends_a_child_claims_its_parent_behind_the_same_commit(trees: TreeHarness) -> None:
    assert await _handed_over(trees) == (1, 0)


@pytest.mark.usefixtures("without_looks")
async def test_parent_whose_claim_fell_through_is_polled_for(
    trees: TreeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = trees.harness.ports.broker.claims

    async def claims_nothing(first: ScriptCall, subject: SessionId, successor: Successor) -> Reply:
        return await claims._run(first, subject)

    monkeypatch.setattr(claims, "run_and_claim", claims_nothing)
    assert await _handed_over(trees) == (1, 0)


@pytest.mark.usefixtures("without_looks")
async def test_worker_whose_last_place_is_taken_claims_no_parent_beside(
    trees: TreeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, beside = Worker._take, list[int]()

    def takes(worker: Worker, *args: Any, **more: Any) -> None:
        beside.append(len(worker._runners))
        take(worker, *args, **more)

    monkeypatch.setattr(Worker, "_take", takes)
    assert await _handed_over(trees, concurrency=1) == (1, 0)
    assert set(beside) == {0}


async def test_grandchild_reports_to_its_parent_and_shows_at_the_root(trees: TreeHarness) -> None:
    trees.models.will(
        "root", [asks("a", "spawn", prompt="[a] split")], [asks("w", "await")], [message("all")]
    )
    trees.models.will("a", [asks("b", "spawn", prompt="[b] leaf")], WAITS, [message("half")])
    trees.models.will("b", [message("leaf")])
    await trees.plant()
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    created = [e.msg["subagent"] for e in events if e.msg.get("event") == "created"]
    assert [(s["agent_id"], s["parent_agent_id"], s["agent_path"]) for s in created] == [
        (1, 0, "0/1"),
        (2, 1, "0/1/2"),
    ]
    own = await trees.harness.until(await trees.session_of(1), "task_complete")
    assert "created" in [e.msg.get("event") for e in own], "the parent's own queue tells of it as well"
    await trees.check()


async def test_slots_refuse_the_spawn_that_is_too_much_and_only_that(trees: TreeHarness) -> None:
    told: dict[str, Any] = {}
    gate = Gate()
    trees.models.will(
        "root",
        [asks(f"s{n}", "spawn", prompt=f"[x{n}] wait") for n in range(3)],
        lambda outputs: told.update(outputs) or [gate, message("ok")],
    )
    hold = [Gate() for _ in range(3)]
    for n in range(3):
        trees.models.will(f"x{n}", [hold[n], message("x")])
    await trees.plant(slots=2)
    trees.start()
    await gate.reached.wait()
    assert [isinstance(told[f"s{n}"], dict) for n in range(3)] == [True, True, False]
    assert "no slot is free: 2 agents" in told["s2"]
    assert await trees.counter("slots") == 2
    for opened in (*hold, gate):
        opened.open()
    await trees.harness.until(trees.root, "task_complete")


async def test_fork_goes_on_from_the_parents_conversation(trees: TreeHarness) -> None:
    long = "long " * 3_000
    trees.models.will(
        "root", [asks("f", "fork", prompt="[twin] go on")], [asks("w", "await")], [message("ok")]
    )
    trees.models.will("twin", [message("went on")])
    await trees.plant(f"[root] {long}")
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    (prompt,) = trees.models.seen_by("twin")
    texts = [part["text"] for item in prompt.input if item.get("role") == "user" for part in item["content"]]
    assert any(long in text for text in texts), (
        "the inherited text was stored beside the log, and found again"
    )
    fork = [item for item in prompt.input if item.get("call_id") == "f"]
    assert [item["type"] for item in fork] == ["function_call", "function_call_output"]
    assert '"role":"child"' in fork[1]["output"]
    assert prompt.input[-2]["role"] == "developer"
    await trees.check()


async def test_message_reaches_a_running_child_at_its_turns_end(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        [asks("m", "send_message", agent_id=1, prompt="and one more thing")],
        [asks("w", "await")],
        [message("ok")],
    )
    trees.models.will("a", [gate, message("first")], [message("second")])
    await trees.plant()
    trees.start()
    await gate.reached.wait()
    while (await trees.harness.until(trees.root, "agent_inbox"))[-1].msg["pending_messages"] == 0:
        pass
    gate.open()
    await trees.harness.until(trees.root, "task_complete")
    last = trees.models.seen_by("a")[-1]
    assert "and one more thing" in str(last.input[-1])
    assert (await trees.registry()).agents[1].pending == (0, 0)
    told = [fact.depths for fact in await trees.log() if fact.message["type"] == "agent_inbox"]
    child = await trees.session_of(1)
    assert [(d[child]) for d in told if child in d] == [(1, 0), (0, 0)]
    await trees.check()


async def test_interrupting_message_redirects_a_child(trees: TreeHarness) -> None:
    stuck = Gate()
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        [stuck.reached, asks("m", "send_message", agent_id=1, prompt="do that instead", interrupt=True)],
        [asks("w", "await")],
        [message("ok")],
    )
    trees.models.will("a", [stuck, message("never")], [message("did that")])
    await trees.plant()
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    child = await trees.harness.until(await trees.session_of(1), "task_complete")
    assert [t for t in types(child) if t in {"task_started", "turn_aborted", "task_complete"}] == [
        "task_started",
        "turn_aborted",
        "task_started",
        "task_complete",
    ]
    statuses = [e.msg["status"] for e in events if e.msg.get("event") == "status" and e.msg["agent_id"] == 1]
    assert statuses[:2] == ["running", "ready"]
    await trees.check()


async def test_cancel_kills_what_runs_below_and_says_proved(trees: TreeHarness) -> None:
    trees.tools.gates["c1"] = forever = Gate()
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] split")],
        [forever.reached, asks("x", "cancel", agent_id=1, reason="enough")],
        [asks("w", "await")],
        [message("ok")],
    )
    trees.models.will("a", [asks("b", "spawn", prompt="[b] run")], [asks("w", "await")])
    trees.models.will("b", [calls("c1")])
    await trees.plant()
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    canceled = [e.msg for e in events if e.msg.get("status") == "canceled"]
    assert {(m["agent_id"], m["cancel"]) for m in canceled} == {(1, "proved"), (2, "proved")}
    assert canceled[-1]["agent_id"] == 1, "it is over for a parent when it is over for all below"
    assert trees.tools.killed == ["c1"]
    assert await trees.counter("slots") == 0
    await trees.check()


async def test_failed_child_is_told_and_stays_failed(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] fail")], WAITS, [message("ok")])
    trees.models.will("a", [FatalModelError(FatalKind.BAD_REQUEST, "no such thing", "bad_request")])
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    assert (await trees.registry()).agents[1].status == "failed"
    await trees.check()


async def test_childs_approval_is_answered_at_the_root(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] ask")], WAITS, [message("ok")])
    trees.models.will("a", [calls("c1", ask=True)], [message("asked")])
    await trees.plant(policy="untrusted")
    trees.start()
    events = await trees.harness.until(trees.root, "exec_approval_request")
    asked = events[-1].msg
    assert (asked["agent_id"], asked["agent_path"], asked["call_id"]) == (1, "0/1", "c1")
    await trees.harness.submit(trees.root, ops.ExecApproval(id="c1", decision=ReviewDecision.APPROVED))
    await trees.harness.until(trees.root, "task_complete")
    assert trees.tools.started["c1"] == 1


async def test_result_begins_a_turn_of_an_idle_root(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will(
        "root", [asks("a", "spawn", prompt="[a] later")], [message("meanwhile")], [message("seen")]
    )
    trees.models.will("a", [gate, message("42")])
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    gate.open()
    events = await trees.harness.until(trees.root, "task_complete")
    assert events[-1].id == "auto-1"
    assert "injected" in str(trees.models.seen_by("root")[-1].input[-1])
    await trees.check()


async def test_closing_the_root_ends_the_tree_first(trees: TreeHarness) -> None:
    trees.tools.gates["c1"] = forever = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] run")], [message("bye")])
    trees.models.will("a", [calls("c1")])
    await trees.plant()
    trees.start()
    await forever.reached.wait()
    await trees.harness.submit(trees.root, ops.Shutdown())
    events = await trees.harness.until(trees.root, "shutdown_complete")
    assert "canceled" in [e.msg.get("status") for e in events]
    assert trees.tools.killed == ["c1"]
    assert await trees.counter("slots") == 0


async def test_stuck_child_does_not_survive_a_cancel(trees: TreeHarness) -> None:
    trees.tools.gates["c1"], trees.tools.deaths["c1"] = forever, never = Gate(), Gate()
    cancel: list[Cue] = [forever.reached, asks("x", "cancel", agent_id=1)]
    trees.models.will("root", [asks("a", "spawn", prompt="[a] run")], cancel, WAITS, [message("ok")])
    trees.models.will("a", [calls("c1")])
    await trees.plant()
    trees.start()
    await never.reached.wait()
    await trees.hurry(REAP_TIMER)
    await trees.outlast(await trees.session_of(1))
    events = await trees.harness.until(trees.root, "task_complete")
    (ended,) = [event.msg for event in events if event.msg.get("status") == "canceled"]
    assert ended["cancel"] == "presumed", "its worker does nothing: it was taken over"
    never.open()
