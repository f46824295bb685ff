"""Defects of systems that came before, each asked of Dendro. `docs/trees.md` lists them all."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest

from orchestrator.core.ids import SessionId
from orchestrator.model.provider_errors import RetryableModelError
from orchestrator.protocol import ops
from orchestrator.tools.agent_tools import PRUNE
from tests.runtime.connections import Gate
from tests.runtime.players import calls, message
from tests.tree.harness import Cue, Outputs, TreeHarness, asks, noted, outputs_of

WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


def awaited(outputs: Any) -> list[dict[str, Any]]:
    return [ready for out in outputs.values() if isinstance(out, dict) for ready in out.get("ready", ())]


async def test_child_of_a_narrowed_turn_does_not_get_the_sessions_wider_policy(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] look")], WAITS, [message("ok")])
    await trees.plant("[root] first")
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    trees.models.will("root", [asks("b", "spawn", prompt="[b] look")], WAITS, [message("ok")])
    turn = {
        "items": ({"type": "text", "text": "[root] now carefully"},),
        "cwd": "/",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "gpt-5",
        "summary": "auto",
    }
    await trees.harness.submit(trees.root, ops.UserTurn.model_validate(turn))
    await trees.harness.until(trees.root, "task_complete")
    child = (await trees.harness.replayed(await trees.session_of(2))).state
    assert (child.settings.sandbox_policy, child.settings.cwd) == ({"mode": "read-only"}, "/")


async def test_second_turns_result_is_not_replaced_by_the_first_ones(trees: TreeHarness) -> None:
    told: list[dict[str, Any]] = []
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] one")],
        [asks("w1", "await")],
        [asks("m", "send_message", agent_id=1, prompt="two")],
        [asks("w2", "await")],
        noted(told),
    )
    trees.models.will("a", [message("first")], [message("second")])
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    results = [ready["completion"]["Completed"]["last_message"] for ready in awaited(told[0])]
    assert results == ["first", "second"]


async def test_parents_await_does_not_drain_mail_that_is_addressed_to_a_child(trees: TreeHarness) -> None:
    gate, reads = Gate(), Gate()
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] one"), asks("b", "spawn", prompt="[b] two")],
        [gate.reached, asks("m", "send_message", agent_id=1, prompt="for a alone")],
        WAITS,
        [message("ok")],
    )
    trees.models.will("a", [gate, message("x")], [reads, message("read")])
    trees.models.will("b", [gate.reached, asks("s", "send_message", agent_id=1, prompt="from b")])
    await trees.plant()
    trees.start()
    while (await trees.harness.until(trees.root, "agent_inbox"))[-1].msg["pending_messages"] < 2:
        pass
    gate.open()
    await trees.harness.until(trees.root, "task_complete")
    for prompt in trees.models.seen_by("root"):
        assert not [m for ready in awaited(outputs_of(prompt)) for m in ready["messages"]]
    await reads.reached.wait()
    reads.open()
    last = str(trees.models.seen_by("a")[-1].input)
    assert "for a alone" in last
    assert "from b" in last


async def test_replaced_watchdog_says_so(trees: TreeHarness) -> None:
    watch = {"agent_id": 0, "interval_s": 30}
    trees.models.will(
        "root", [asks("w1", "watchdog", **watch)], [asks("w2", "watchdog", **watch)], [message("ok")]
    )
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    outputs = outputs_of(trees.models.prompts[-1])
    assert [outputs[name]["action"] for name in ("w1", "w2")] == ["started", "replaced"]


async def test_cancelled_child_is_stopped_and_no_message_revives_it(trees: TreeHarness) -> None:
    trees.tools.gates["c1"] = forever = Gate()
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] run")],
        [forever.reached, asks("x", "cancel", agent_id=1)],
        [asks("w", "await")],
        [asks("m", "send_message", agent_id=1, prompt="still there?")],
        [message("ok")],
    )
    trees.models.will("a", [calls("c1")], [message("back again")])
    await trees.plant()
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    assert trees.tools.killed == ["c1"]
    assert "canceled, for good" in outputs_of(trees.models.prompts[-1])["m"]
    assert len(trees.models.seen_by("a")) == 1
    assert "canceled" in [event.msg.get("status") for event in events], "the cancel itself is told"


async def test_prune_takes_what_its_schema_offers(trees: TreeHarness) -> None:
    assert "required" not in PRUNE["parameters"] or PRUNE["parameters"]["required"] == []
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] one")],
        WAITS,
        [asks("p0", "prune"), asks("p1", "prune", all=True)],
        [message("ok")],
    )
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    outputs = outputs_of(trees.models.prompts[-1])
    assert "all: true" in outputs["p0"], "the refusal names the remedy"
    assert outputs["p1"]["counts"]["pruned"] == 1


async def test_without_autosubmit_a_turns_end_drains_nothing(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] one")], [gate, calls("c1")], [message("ok")])
    await trees.plant(autosubmit=False)
    trees.start()
    while (await trees.harness.until(trees.root, "agent_inbox"))[-1].msg["agent_id"] != 0:
        pass
    gate.open()
    await trees.harness.until(trees.root, "task_complete")
    assert not awaited(outputs_of(trees.models.seen_by("root")[-1]))


async def test_message_of_the_root_is_in_a_childs_conversation_once(trees: TreeHarness) -> None:
    gate, second = Gate(), Gate()
    sends: list[Cue] = [gate.reached, asks("m", "send_message", agent_id=1, prompt="just once")]
    trees.models.will("root", [asks("a", "spawn", prompt="[a] begin")], sends, WAITS, [message("ok")])
    trees.models.will("a", [gate, message("first")], [second, message("second")])
    await trees.plant()
    trees.start()
    while (await trees.harness.until(trees.root, "agent_inbox"))[-1].msg["pending_messages"] == 0:
        pass
    gate.open()
    await second.reached.wait()
    second.open()
    assert str(trees.models.seen_by("a")[-1].input).count("just once") == 1


async def test_synthetic_awaits_never_repeat_a_call_id_and_the_roots_inbox_is_told_empty(
    trees: TreeHarness,
) -> None:
    gates = [Gate(), Gate()]
    trees.models.will("root", [asks("a", "spawn", prompt="[a] one")], [message("x")])
    trees.models.will("root", [asks("m", "send_message", agent_id=1, prompt="more")], [message("y")])
    trees.models.will("a", [gates[0], message("first")], [gates[1], message("second")])
    await trees.plant()
    trees.start()
    for gate in gates:
        await trees.harness.until(trees.root, "task_complete")
        gate.open()
    await trees.harness.until(trees.root, "task_complete")
    last = trees.models.seen_by("root")[-1].input
    ids = [item["call_id"] for item in last if item["type"] == "function_call"]
    assert len([id for id in ids if id.startswith("await-")]) == 2
    assert len(ids) == len(set(ids))
    own = [f.depths for f in await trees.log() if f.message.get("agent_id") == 0]
    assert [depths[trees.root] for depths in own][-1] == (0, 0)


async def test_approvals_of_two_children_stand_side_by_side_even_before_an_idle_root(
    trees: TreeHarness,
) -> None:
    spawns = [asks("a", "spawn", prompt="[a] ask"), asks("b", "spawn", prompt="[b] ask")]
    trees.models.will("root", spawns, [message("meanwhile")])
    for name in ("a", "b"):
        trees.models.will(name, [calls(f"c-{name}", ask=True)], [message(f"{name} may")])
    await trees.plant(policy="untrusted")
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    events = [e for e in await trees.log() if e.message["type"] == "exec_approval_request"]
    while len(events) < 2:
        await trees.harness.until(trees.root, "exec_approval_request")
        events = [e for e in await trees.log() if e.message["type"] == "exec_approval_request"]
    assert {e.message["call_id"] for e in events} == {"c-a", "c-b"}
    for name in ("b", "a"):
        await trees.harness.approve(trees.root, f"c-{name}")
        await trees.harness.until(await trees.session_of(1 if name == "a" else 2), "task_complete")
    assert trees.tools.started == {"c-a": 1, "c-b": 1}


async def test_agent_ids_go_on_and_running_agents_run_on_after_a_crash(trees: TreeHarness) -> None:
    held = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] long")], [asks("w", "await")])
    trees.models.will("a", [held, message("never told")], [message("after all")])
    await trees.plant()
    trees.start()
    await held.reached.wait()
    await trees.bury()
    trees.models.will("root", [asks("b", "spawn", prompt="[b] next")], [asks("w2", "await")], [message("ok")])
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    registry = await trees.registry()
    assert list(registry.agents) == [1, 2]
    assert {agent.status for agent in registry.agents.values()} == {"idle"}
    await trees.check()


async def test_tree_has_one_registry_one_numbering_and_one_cap(trees: TreeHarness) -> None:
    listed: dict[str, Any] = {}
    trees.models.will("root", [asks("a", "spawn", prompt="[a] split")], WAITS, [message("ok")])
    trees.models.will(
        "a",
        [asks("b", "spawn", prompt="[b] leaf"), asks("t", "spawn", prompt="[c] too much")],
        [asks("m", "send_message", agent_id=0, prompt="from below"), asks("l", "list", all=True)],
        lambda outputs: listed.update(outputs) or [asks("w", "await")],
        [message("half")],
    )
    await trees.plant(slots=2)
    trees.start()
    # What the agent sends ends the root's wait, and its turn, before the agent is told what it listed.
    await trees.harness.until(trees.root, "task_complete")
    await trees.harness.until(await trees.session_of(1), "task_complete")
    assert listed["b"]["agent_id"] == 2
    assert "no slot is free: 2 agents" in listed["t"]
    assert listed["m"]["agent_id"] == 0
    assert [entry["agent_id"] for entry in listed["l"]["sessions"]] == [1, 2]


async def test_interrupted_agent_reports_what_it_did_then(trees: TreeHarness) -> None:
    stuck = Gate()
    told: list[dict[str, Any]] = []
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] begin")],
        [stuck.reached, asks("m", "send_message", agent_id=1, prompt="this", interrupt=True)],
        WAITS,
        noted(told),
    )
    trees.models.will("a", [stuck, message("never")], [message("did this")])
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    assert [ready["completion"] for ready in awaited(told[0])] == [
        {"Completed": {"last_message": "did this"}}
    ]


async def test_retried_stream_does_not_fail_a_child(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] try")], WAITS, [message("ok")])
    trees.models.will("a", [RetryableModelError("cut", 0.0)], [message("got through")])
    await trees.plant()
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    assert "failed" not in [event.msg.get("status") for event in events]
    assert (await trees.registry()).agents[1].status == "idle"


async def test_logs_page_without_a_gap(trees: TreeHarness) -> None:
    pages: list[Any] = []
    trees.models.will("root", [asks("a", "spawn", prompt="[a] work")], WAITS)
    for n in range(4):
        trees.models.will("root", partial(_asks_for_page, n))
    trees.models.will("root", noted(pages))
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    shown = [event["event"] for n in range(4) for event in pages[0][f"l{n}"]["events"]]
    logged = [
        orjson.loads(entry.payload)["payload"]["type"]
        for entry in await trees.harness.log(SessionId(await trees.session_of(1)))
        if orjson.loads(entry.payload)["type"] == "event_msg"
    ]
    assert [event["msg"]["type"] for event in shown] == logged[: len(shown)]
    assert len(shown) >= 6


def _asks_for_page(n: int, outputs: Outputs) -> list[Cue]:
    cursor = int(outputs[f"l{n - 1}"]["cursor"]) if n else 0
    return [asks(f"l{n}", "logs", agent_id=1, limit=3, cursor=cursor)]
