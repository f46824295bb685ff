"""A tree of agents, decided without I/O: making agents, and waiting for what they bring."""

from __future__ import annotations

import pytest

from orchestrator.core import commands as c
from orchestrator.core.history import for_model
from orchestrator.core.state import Phase
from tests.core.driver import op
from tests.core.grove import Grove, a_family, a_grove, answers, statuses

# ── making ──────────────────────────────────────────────────────────────────────────────────


def test_spawned_agent_begins_with_its_prompt_and_nothing_else() -> None:
    grove = a_grove()
    child = grove.root.spawns("count the files", label="counter")
    assert statuses(grove) == {1: "queued"}
    grove.settle()
    assert statuses(grove) == {1: "running"}
    assert child.task.id == "spawn-1"
    assert child.texts()[-1] == "count the files"
    assert "do it" not in " ".join(child.texts())
    assert grove.registry().agents[1].summary()["label"] == "counter"
    grove.check()


def test_lifecycle_is_told_in_order_with_the_inbox_between() -> None:
    grove, _ = a_family()
    told = [(f.message["type"], f.message.get("event"), f.message.get("status")) for f in grove.log]
    assert told == [
        ("subagent_lifecycle", "created", None),
        ("agent_inbox", None, None),
        ("subagent_lifecycle", "status", "running"),
    ]
    assert {f.message["subagent"]["status"] for f in grove.log if "subagent" in f.message} == {
        "queued",
        "running",
    }


def test_child_gets_the_settings_of_its_parents_turn() -> None:
    grove = Grove()
    turn = {
        "items": [{"type": "text", "text": "look"}],
        "cwd": "/elsewhere",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "gpt-5-codex",
        "effort": "low",
        "summary": "concise",
    }
    grove.root.submit(op("user_turn", **turn), "u1")
    child = grove.root.spawns("look too")
    settings = child.state.settings
    assert (settings.cwd, settings.approval_policy) == ("/elsewhere", "never")
    assert (settings.sandbox_policy["mode"], settings.model, settings.effort) == (
        "read-only",
        "gpt-5-codex",
        "low",
    )


@pytest.mark.parametrize("word", ["danger", "Danger_Full-Access", "fullaccess"])
def test_child_cannot_get_more_than_its_parents_turn(word: str) -> None:
    grove = a_grove()
    said = grove.root.asks("c1", "subagent_spawn", grove.spawn(grove.next_id(), "x", sandbox_mode=word))
    assert "danger-full-access was asked for, workspace-write is in force" in said
    assert list(grove.agents) == [0]


@pytest.mark.parametrize("word", ["read", "READ_ONLY", "read only", "readonly"])
def test_child_may_be_narrowed(word: str) -> None:
    grove = a_grove()
    assert grove.root.spawns("x", sandbox_mode=word).state.settings.sandbox_policy == {"mode": "read-only"}


def test_spawn_without_a_free_slot_is_refused_with_the_cap_and_makes_nothing() -> None:
    grove, _ = a_family(2, limits={"slots": 2, "spawned": 200})
    said = grove.root.asks("c9", "subagent_spawn", grove.spawn(grove.next_id(), "x"))
    assert said.startswith("no slot is free: 2 agents")
    assert len(grove.agents) == 3
    grove.check()


def test_slot_is_free_again_when_a_child_is_done_not_when_it_is_pruned() -> None:
    grove, (first, _) = a_family(2, limits={"slots": 2, "spawned": 200})
    answers(first)
    assert grove.counter("slots") == 1
    grove.root.spawns("third")
    grove.settle()
    grove.check()


def test_tree_makes_no_more_agents_than_its_total() -> None:
    grove, (child,) = a_family(1, limits={"slots": 8, "spawned": 1})
    answers(child)
    said = grove.root.asks("c9", "subagent_spawn", grove.spawn(grove.next_id(), "x"))
    assert said.startswith("this tree may make 1 agents")


def test_depth_is_limited() -> None:
    grove, (child,) = a_family(facts={"tree_rules": {"depth": 2}})
    grandchild = child.spawns("deeper")
    grove.settle()
    said = grandchild.asks("c1", "subagent_spawn", grove.spawn(grove.next_id(), "deepest"))
    assert "depth limit is 2" in said
    assert grandchild.state.facts.agent_path == "0/1/2"


def test_fork_has_the_parents_conversation_and_its_own_role() -> None:
    grove = a_grove()
    said = len(for_model(grove.root.state.history))
    child = grove.root.forks("go on alone", label="twin")
    grove.settle()
    assert child.state.history.tail[0]["type"] == "inherited"
    texts = child.texts()
    assert texts[-1] == "go on alone"
    assert child.told("fork1")["role"] == "child"
    told = grove.root.told("fork1")
    assert (told["payload"]["role"], told["initial_message_count"]) == ("parent", said)


def test_fork_without_a_prompt_waits_ready_and_holds_no_slot() -> None:
    grove = a_grove()
    grove.root.forks()
    assert statuses(grove) == {1: "ready"}
    assert grove.counter("slots") == 0
    grove.check()


def test_forks_from_one_place_inherit_one_text() -> None:
    grove = a_grove()
    texts = {grove.root.forks("x", call_id=f"f{n}").state.history.tail[0]["content"] for n in range(1)}
    grove.root.begin()
    grove.root.calls("f7", "f8", name="subagent_fork")
    grove.root.ends()
    for call_id in ("f7", "f8"):
        asked = c.Fork(grove.making(grove.next_id(), "x"), grove.root.seq, "")
        grove.root.assessed(call_id, asked)
    second, third = grove.agents[2], grove.agents[3]
    assert second.state.history.tail[0]["content"] == third.state.history.tail[0]["content"]
    assert texts


# ── awaiting ────────────────────────────────────────────────────────────────────────────────


def test_await_parks_until_a_child_is_done_and_returns_its_answer() -> None:
    grove, (child,) = a_family()
    assert grove.root.awaits() is None
    assert grove.root.status == "waiting"
    assert grove.root.owes() == ()
    answers(child, "42 files")
    grove.settle()
    result = grove.root.told("wait")
    assert result["timed_out"] is False
    assert result["injected"] is False
    assert [r["completion"] for r in result["ready"]] == [{"Completed": {"last_message": "42 files"}}]
    assert result["waiting"] == []
    assert statuses(grove) == {1: "idle"}
    grove.check()


def test_await_returns_all_that_is_ready_and_who_is_not() -> None:
    grove, (first, second, third) = a_family(3)
    answers(first)
    answers(third)
    result = grove.root.awaits()
    assert [r["metadata"]["agent_id"] for r in result["ready"]] == [1, 3]
    assert result["waiting"] == [2]
    assert second.standing == "running"


def test_completion_is_delivered_once() -> None:
    grove, (child, _) = a_family(2)
    answers(child)
    assert len(grove.root.awaits()["ready"]) == 1
    assert grove.root.awaits(call_id="again") is None
    grove.check()


def test_follow_up_clears_the_result_that_was_not_read() -> None:
    grove, (child,) = a_family()
    answers(child, "first")
    grove.settle()
    grove.root.sends(1, "once more")
    assert grove.root.awaits() is None
    grove.settle()
    answers(child, "second")
    grove.settle()
    ready = grove.root.told("wait")["ready"]
    assert [r["completion"]["Completed"]["last_message"] for r in ready] == ["second"]
    grove.check()


def test_await_names_whom_it_waits_for() -> None:
    grove, (first, second) = a_family(2)
    assert grove.root.awaits(2) is None
    answers(first)
    grove.settle()
    assert grove.root.told("wait") is None
    answers(second)
    grove.settle()
    assert [r["metadata"]["agent_id"] for r in grove.root.told("wait")["ready"]] == [2]


def test_await_returns_at_once_when_nothing_can_come() -> None:
    grove = a_grove()
    grove.root.forks()
    assert grove.root.awaits()["ready"] == []


def test_await_without_a_child_is_an_error() -> None:
    grove = a_grove()
    assert "no agent to wait for" in grove.root.awaits()


def test_await_ends_at_its_deadline_and_says_so() -> None:
    grove, _ = a_family()
    assert grove.root.awaits(timeout_s=300) is None
    grove.root.fires("wait:wait")
    result = grove.root.told("wait")
    assert (result["timed_out"], result["ready"], result["waiting"]) == (True, [], [1])


def test_stale_deadline_ends_nothing() -> None:
    grove, (child,) = a_family()
    grove.root.awaits(call_id="w1")
    answers(child)
    grove.settle()
    grove.root.sends(1, "more")
    grove.root.awaits(call_id="w1")
    grove.root.fires("wait:w1", generation=1)
    assert grove.root.call("w1").phase is Phase.WAITING


def test_interrupt_ends_a_wait_and_its_timer() -> None:
    grove, _ = a_family()
    grove.root.awaits()
    grove.root.interrupt()
    assert grove.root.state.task is None
    assert grove.root.timers == {}
    assert grove.root.output_of("wait") == "aborted by user"


def test_failure_of_a_child_wakes_its_parent() -> None:
    grove, (child,) = a_family()
    grove.root.awaits()
    child.begin()
    child.breaks("fatal", "no such model")
    grove.settle()
    (ready,) = grove.root.told("wait")["ready"]
    assert ready["completion"] == {"Failed": {"message": "no such model"}}
    assert statuses(grove) == {1: "failed"}
    grove.check()


def test_broken_stream_that_is_retried_does_not_fail_an_agent() -> None:
    grove, (child,) = a_family()
    child.begin()
    child.breaks("stream")
    assert statuses(grove) == {1: "running"}
