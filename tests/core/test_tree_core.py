"""A tree of agents, decided without I/O: making agents, and waiting for what they bring."""

from __future__ import annotations

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Phase
from orchestrator.core.history import for_model
from tests.core.driver import op
from tests.core.tree_driver import TreeDriver, a_family, a_tree, answers, statuses

# ── creation ──────────────────────────────────────────────────────────────────────────────────


def test_spawned_agent_begins_with_its_prompt_and_nothing_else() -> None:
    tree = a_tree()
    child = tree.root.spawns("count the files", label="counter")
    assert statuses(tree) == {1: "queued"}
    tree.settle()
    assert statuses(tree) == {1: "running"}
    assert child.task.id == "spawn-1"
    assert child.texts()[-1] == "count the files"
    assert "do it" not in " ".join(child.texts())
    assert tree.registry().agents[1].summary()["label"] == "counter"
    tree.check()


def test_lifecycle_is_told_in_order_with_the_inbox_between() -> None:
    tree, _ = a_family()
    told = [(f.message["type"], f.message.get("event"), f.message.get("status")) for f in tree.log]
    assert told == [
        ("subagent_lifecycle", "created", None),
        ("agent_inbox", None, None),
        ("subagent_lifecycle", "status", "running"),
    ]
    assert {f.message["subagent"]["status"] for f in tree.log if "subagent" in f.message} == {
        "queued",
        "running",
    }


def test_first_bold_words_of_an_agents_reasoning_are_its_header_for_good() -> None:
    tree, (child,) = a_family()
    child.begin()
    tree.log.clear()
    for words in ("no heading", "**Reading  the\ntests** at first", "**Another**"):
        child.item({"type": "reasoning", "summary": [{"type": "summary_text", "text": words}]})
    told = [fact.message for fact in tree.log if fact.message["type"] == "subagent_lifecycle"]
    assert [(msg["event"], msg["reasoning_header"]) for msg in told] == [
        ("reasoning_header", "Reading the tests")
    ]
    assert told[0]["subagent"]["reasoning_header"] == "Reading the tests"
    tree.root.begin()
    tree.root.item({"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Root**"}]})
    assert len(tree.log) == 1, "a root has no parent to tell"


def test_child_gets_the_settings_of_its_parents_turn() -> None:
    tree = TreeDriver()
    turn = {
        "items": [{"type": "text", "text": "look"}],
        "cwd": "/elsewhere",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "gpt-5-codex",
        "effort": "low",
        "summary": "concise",
    }
    tree.root.submit(op("user_turn", **turn), "u1")
    child = tree.root.spawns("look too")
    settings = child.state.settings
    assert (settings.cwd, settings.approval_policy) == ("/elsewhere", "never")
    assert (settings.sandbox_policy["mode"], settings.model, settings.effort) == (
        "read-only",
        "gpt-5-codex",
        "low",
    )


@pytest.mark.parametrize("word", ["danger", "Danger_Full-Access", "fullaccess"])
def test_child_cannot_get_more_than_its_parents_turn(word: str) -> None:
    tree = a_tree()
    said = tree.root.asks("c1", "subagent_spawn", tree.spawn(tree.next_id(), "x", sandbox_mode=word))
    assert "danger-full-access was asked for, workspace-write is in force" in said
    assert list(tree.agents) == [0]


@pytest.mark.parametrize("word", ["read", "READ_ONLY", "read only", "readonly"])
def test_child_may_be_narrowed(word: str) -> None:
    tree = a_tree()
    assert tree.root.spawns("x", sandbox_mode=word).state.settings.sandbox_policy == {"mode": "read-only"}


def test_spawn_without_a_free_slot_is_refused_with_the_cap_and_makes_nothing() -> None:
    tree, _ = a_family(2, limits={"slots": 2, "spawned": 200})
    said = tree.root.asks("c9", "subagent_spawn", tree.spawn(tree.next_id(), "x"))
    assert said.startswith("no slot is free: 2 agents")
    assert len(tree.agents) == 3
    tree.check()


def test_slot_is_free_again_when_a_child_is_done_not_when_it_is_pruned() -> None:
    tree, (first, _) = a_family(2, limits={"slots": 2, "spawned": 200})
    answers(first)
    assert tree.counter("slots") == 1
    tree.root.spawns("third")
    tree.settle()
    tree.check()


def test_tree_makes_no_more_agents_than_its_total() -> None:
    tree, (child,) = a_family(1, limits={"slots": 8, "spawned": 1})
    answers(child)
    said = tree.root.asks("c9", "subagent_spawn", tree.spawn(tree.next_id(), "x"))
    assert said.startswith("this tree may make 1 agents")


def test_depth_is_limited() -> None:
    tree, (child,) = a_family(facts={"tree_rules": {"depth": 2}})
    grandchild = child.spawns("deeper")
    tree.settle()
    said = grandchild.asks("c1", "subagent_spawn", tree.spawn(tree.next_id(), "deepest"))
    assert "depth limit is 2" in said
    assert grandchild.state.facts.agent_path == "0/1/2"


def test_fork_has_the_parents_conversation_and_its_own_role() -> None:
    tree = a_tree()
    said = len(for_model(tree.root.state.history))
    child = tree.root.forks("go on alone", label="twin")
    tree.settle()
    assert child.state.history.tail[0]["type"] == "inherited"
    texts = child.texts()
    assert texts[-1] == "go on alone"
    assert child.told("fork1")["role"] == "child"
    told = tree.root.told("fork1")
    assert (told["payload"]["role"], told["initial_message_count"]) == ("parent", said)


def test_fork_that_may_do_less_than_the_conversation_says_is_told_so() -> None:
    tree = a_tree()
    same, less = tree.root.forks("look"), tree.root.forks("look", sandbox_mode="read-only")
    tree.settle()
    narrowed = "<sandbox_mode>read-only</sandbox_mode>"
    assert [narrowed in " ".join(child.texts()) for child in (same, less)] == [False, True]
    assert less.state.settings.sandbox_policy == {"mode": "read-only"}


def test_fork_without_a_prompt_waits_ready_and_holds_no_slot() -> None:
    tree = a_tree()
    tree.root.forks()
    assert statuses(tree) == {1: "ready"}
    assert tree.counter("slots") == 0
    tree.check()


def test_forks_from_one_place_inherit_one_text() -> None:
    tree = a_tree()
    texts = {tree.root.forks("x", call_id=f"f{n}").state.history.tail[0]["content"] for n in range(1)}
    tree.root.begin()
    tree.root.calls("f7", "f8", name="subagent_fork")
    tree.root.ends()
    for call_id in ("f7", "f8"):
        asked = c.Fork(tree.spec(tree.next_id(), "x"), tree.root.seq, "")
        tree.root.assessed(call_id, asked)
    second, third = tree.agents[2], tree.agents[3]
    assert second.state.history.tail[0]["content"] == third.state.history.tail[0]["content"]
    assert texts


# ── awaiting ────────────────────────────────────────────────────────────────────────────────


def test_await_parks_until_a_child_is_done_and_returns_its_answer() -> None:
    tree, (child,) = a_family()
    assert tree.root.awaits() is None
    assert tree.root.status == "waiting"
    assert tree.root.owes() == ()
    answers(child, "42 files")
    tree.settle()
    result = tree.root.told("wait")
    assert result["timed_out"] is False
    assert result["injected"] is False
    assert [r["completion"] for r in result["ready"]] == [{"Completed": {"last_message": "42 files"}}]
    assert result["waiting"] == []
    assert statuses(tree) == {1: "idle"}
    tree.check()


def test_await_returns_all_that_is_ready_and_who_is_not() -> None:
    tree, (first, second, third) = a_family(3)
    answers(first)
    answers(third)
    result = tree.root.awaits()
    assert [r["metadata"]["agent_id"] for r in result["ready"]] == [1, 3]
    assert result["waiting"] == [2]
    assert second.standing == "running"


def test_completion_is_delivered_once() -> None:
    tree, (child, _) = a_family(2)
    answers(child)
    assert len(tree.root.awaits()["ready"]) == 1
    assert tree.root.awaits(call_id="again") is None
    tree.check()


def test_follow_up_clears_the_result_that_was_not_read() -> None:
    tree, (child,) = a_family()
    answers(child, "first")
    tree.settle()
    tree.root.sends(1, "once more")
    assert tree.root.awaits() is None
    tree.settle()
    answers(child, "second")
    tree.settle()
    ready = tree.root.told("wait")["ready"]
    assert [r["completion"]["Completed"]["last_message"] for r in ready] == ["second"]
    tree.check()


def test_await_names_whom_it_waits_for() -> None:
    tree, (first, second) = a_family(2)
    assert tree.root.awaits(2) is None
    answers(first)
    tree.settle()
    assert tree.root.told("wait") is None
    answers(second)
    tree.settle()
    assert [r["metadata"]["agent_id"] for r in tree.root.told("wait")["ready"]] == [2]


def test_await_returns_at_once_when_nothing_can_come() -> None:
    tree = a_tree()
    tree.root.forks()
    assert tree.root.awaits()["ready"] == []


def test_await_without_a_child_is_an_error() -> None:
    tree = a_tree()
    assert "no agent to wait for" in tree.root.awaits()


@pytest.mark.parametrize("named", [(9,), (1, 9), (9, 1)])
def test_await_of_an_agent_that_is_no_child_waits_for_none(named: tuple[int, ...]) -> None:
    tree, _ = a_family()
    assert tree.root.awaits(*named) == "not a child of yours: [9]; refresh with subagent_list"
    assert tree.root.timers == {}


@pytest.mark.parametrize("who", ["its parent", "a person"])
def test_instruction_ends_a_wait_for_agents_and_comes_with_the_next_request(who: str) -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("part")
    tree.settle()
    assert child.awaits(grandchild.id) is None
    if who == "a person":
        asked = op("message_agent", agent_id=child.id, text="come back")
        tree.root.submit(asked, agents=(tree.target(child.id),))
    else:
        tree.root.sends(child.id, "come back")
    tree.settle()
    told = child.told("wait")
    assert (told["timed_out"], told["ready"], told["waiting"]) == (False, [], [grandchild.id])
    child.begin()
    assert child.texts()[-1] == "come back"
    tree.check()


def test_await_ends_at_its_deadline_and_says_so() -> None:
    tree, _ = a_family()
    assert tree.root.awaits(timeout_s=300) is None
    tree.root.fires("wait:wait")
    result = tree.root.told("wait")
    assert (result["timed_out"], result["ready"], result["waiting"]) == (True, [], [1])


def test_stale_deadline_ends_nothing() -> None:
    tree, (child,) = a_family()
    tree.root.awaits(call_id="w1")
    answers(child)
    tree.settle()
    tree.root.sends(1, "more")
    tree.root.answers("so far")
    tree.root.say("wait again")
    tree.root.awaits(call_id="w1")
    tree.root.fires("wait:w1", generation=1)
    assert tree.root.call("w1").phase is Phase.WAITING


def test_interrupt_ends_a_wait_and_its_timer() -> None:
    tree, _ = a_family()
    tree.root.awaits()
    tree.root.interrupt()
    assert tree.root.state.task is None
    assert tree.root.timers == {}
    assert tree.root.output_of("wait") == "aborted by user"


def test_failure_of_a_child_wakes_its_parent() -> None:
    tree, (child,) = a_family()
    tree.root.awaits()
    child.begin()
    child.breaks("fatal", "no such model")
    tree.settle()
    (ready,) = tree.root.told("wait")["ready"]
    assert ready["completion"] == {"Failed": {"message": "no such model"}}
    assert statuses(tree) == {1: "failed"}
    tree.check()


def test_broken_stream_that_is_retried_does_not_fail_an_agent() -> None:
    tree, (child,) = a_family()
    child.begin()
    child.breaks("stream")
    assert statuses(tree) == {1: "running"}


# ── what clients are told of calls about agents ───────────────────────────────────────────────


def test_call_about_agents_is_shown_with_its_output_and_stands_in_the_log_once() -> None:
    tree = a_tree()
    tree.root.spawns("count", call_id="s1")
    told = [passing.event.entry.payload for seen in tree.root.seen for passing in seen.decision.passing]
    items = [
        (one["item"]["type"], one["item"]["call_id"]) for one in told if one["type"] == "raw_response_item"
    ]
    assert items == [("function_call", "s1"), ("function_call_output", "s1")]
    assert "raw_response_item" not in tree.root.types
