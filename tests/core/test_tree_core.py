"""A tree of agents, decided without I/O: making, waiting, mail, cancelling, and the registry."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.history import for_model
from orchestrator.core.state import Phase
from orchestrator.core.stored import decode_entry
from tests.core.driver import a_command, assistant, function_call, op, text
from tests.core.grove import Agent, Grove, answers


def a_grove(**fields: Any) -> Grove:
    """A tree whose root works on something."""
    grove = Grove(**fields)
    grove.root.say("do it", "u1")
    return grove


def a_family(count: int = 1, **fields: Any) -> tuple[Grove, list[Agent]]:
    """A root at work, and children that have begun."""
    grove = a_grove(**fields)
    children = [grove.root.spawns(f"part {n}") for n in range(count)]
    grove.settle()
    return grove, children


def statuses(grove: Grove) -> dict[int, str]:
    return {id: agent.status for id, agent in grove.registry().agents.items()}


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
    assert grove.root.owed == ()
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


# ── mail ────────────────────────────────────────────────────────────────────────────────────


def test_result_wakes_an_idle_parent_as_a_synthetic_await() -> None:
    grove, (child,) = a_family()
    answers(grove.root, "spawned one")
    answers(child, "found it")
    grove.settle()
    assert grove.root.task.id == "auto-1"
    grove.root.begin()
    call, output = grove.root.shown()[-2:]
    assert call["name"] == "subagent_await"
    assert call["call_id"] == output["call_id"] == "await-0-1"
    assert '"injected":true' in output["output"]
    grove.check()


def test_no_autosubmit_leaves_the_result_for_an_await() -> None:
    grove, (child,) = a_family(facts={"tree_rules": {"autosubmit": False}})
    answers(grove.root)
    answers(child)
    grove.settle()
    assert grove.root.state.task is None
    grove.root.say("and?", "u2")
    assert len(grove.root.awaits()["ready"]) == 1
    assert [i["call_id"] for i in grove.root.shown() if i.get("call_id", "").startswith("await")] == []


def test_result_waits_after_an_interrupt() -> None:
    grove, (child,) = a_family()
    grove.root.interrupt()
    answers(child)
    grove.settle()
    assert grove.root.state.task is None
    assert len(grove.root.state.tree.inbox) == 1


def test_task_goes_on_while_results_are_there_to_read() -> None:
    grove, (child,) = a_family()
    grove.root.begin()
    answers(child)
    grove.settle()
    grove.root.item(assistant("that is all"))
    grove.root.ends()
    assert grove.root.state.task is not None
    grove.root.begin()
    assert grove.root.shown()[-1]["call_id"] == "await-0-1"


def test_parents_message_is_a_user_message_and_starts_an_idle_child() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.settle()
    grove.root.sends(1, "look again")
    grove.settle()
    child.begin()
    assert child.texts()[-1] == "look again"
    assert child.task.id == "auto-1"
    grove.check()


def test_siblings_message_is_a_synthetic_await() -> None:
    grove, (first, second) = a_family(2)
    first.sends(2, "mind the gap")
    grove.settle()
    second.begin()
    output = second.told("await-2-1")
    assert output["ready"][0]["messages"][0]["prompt"] == "mind the gap"
    assert output["ready"][0]["metadata"]["agent_id"] == 1


def test_child_writes_to_the_root() -> None:
    grove, (child,) = a_family()
    grove.root.awaits()
    child.sends(0, "half done")
    grove.settle()
    (ready,) = grove.root.told("wait")["ready"]
    assert ready["messages"][0]["prompt"] == "half done"
    assert ready["completion"] is None
    assert grove.registry().agents[1].status == "running"
    grove.check()


def test_regular_message_waits_for_the_turn_boundary_and_shows_in_the_depths() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.root.sends(1, "by the way")
    grove.settle()
    assert grove.registry().agents[1].pending == (1, 0)
    assert "by the way" not in child.texts()
    answers_to = child.item(assistant("hm"))
    child.ends()
    child.begin()
    assert child.texts()[-1] == "by the way"
    assert grove.registry().agents[1].pending == (0, 0)
    assert answers_to


def test_depths_are_told_at_both_moments() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.log.clear()
    grove.root.sends(1, "one")
    grove.settle()
    child.item(assistant("hm"))
    child.ends()
    child.begin()
    told = [fact.depths for fact in grove.log if fact.message["type"] == "agent_inbox"]
    assert told == [{child.sid: (1, 0)}, {child.sid: (0, 0)}]


def test_interrupting_message_aborts_now_and_comes_first() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.root.sends(1, "slowly")
    grove.root.sends(1, "stop, do this", interrupt=True)
    grove.settle()
    child.stopped()
    assert child.types.count("turn_aborted") == 1
    child.begin()
    assert child.texts()[-2:] == ["stop, do this", "slowly"]
    assert statuses(grove) == {1: "running"}
    assert all(mail.kind != "completion" for mail in grove.root.state.tree.inbox)
    grove.check()


def test_interrupted_agent_still_reports_its_end() -> None:
    grove, (child,) = a_family()
    grove.root.sends(1, "do this", interrupt=True)
    grove.settle()
    answers(child, "did that")
    assert grove.root.awaits()["ready"][0]["completion"]["Completed"]["last_message"] == "did that"


def test_bare_interrupt_leaves_the_agent_ready() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.root.sends(1, interrupt=True)
    grove.settle()
    child.stopped()
    grove.settle()
    assert statuses(grove) == {1: "ready"}
    assert grove.counter("slots") == 0
    grove.check()


def test_messages_of_one_sender_stay_in_order() -> None:
    grove, (child,) = a_family()
    child.begin()
    for words in ("one", "two", "three"):
        grove.root.sends(1, words)
    grove.settle()
    child.item(assistant("hm"))
    child.ends()
    child.begin()
    assert child.texts()[-3:] == ["one", "two", "three"]


def test_message_that_would_start_an_agent_needs_a_slot() -> None:
    grove, (first, second) = a_family(2, limits={"slots": 2, "spawned": 9})
    answers(first)
    grove.settle()
    grove.root.spawns("third")
    said = grove.root.sends(1, "again")
    assert said.startswith("no slot is free")
    assert statuses(grove)[1] == "idle"
    assert second.standing == "running"


def test_message_to_a_running_agent_needs_no_slot() -> None:
    grove, _ = a_family(1, limits={"slots": 1, "spawned": 9})
    assert grove.root.sends(1, "psst")["agent_id"] == 1
    assert grove.counter("slots") == 1


def test_two_messages_that_start_an_agent_hold_one_slot() -> None:
    grove, (first, second) = a_family(2)
    answers(first)
    grove.settle()
    grove.root.sends(1, "a")
    second.sends(1, "b")
    grove.settle()
    grove.check()
    assert grove.counter("slots") == 2


def test_new_label_without_a_prompt_starts_nothing() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.settle()
    grove.root.sends(1, label="archivist")
    grove.settle()
    assert child.state.task is None
    assert grove.registry().agents[1].summary()["label"] == "archivist"
    assert "updated" in [fact.message.get("event") for fact in grove.log]
    grove.check()


def test_user_input_to_a_child_makes_its_parent_wait_for_it_again() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.root.awaits(call_id="w1")
    child.say("and another thing", "u9")
    assert grove.root.awaits(call_id="w2") is None
    grove.check()


# ── watchdogs ───────────────────────────────────────────────────────────────────────────────


def test_watchdog_sends_its_message_again_and_again() -> None:
    grove, (child,) = a_family()
    watch = c.SetWatchdog(grove.target(1), 30_000, "how far?")
    assert grove.root.asks("w", "subagent_watchdog", watch)["action"] == "started"
    child.begin()
    for _ in range(2):
        grove.root.fires("watchdog:1")
        grove.settle()
    assert grove.registry().agents[1].pending == (2, 0)
    assert grove.root.asks("w2", "subagent_watchdog", watch)["action"] == "replaced"
    stopping = c.SetWatchdog(grove.target(1), 30_000, "", cancel=True)
    assert grove.root.asks("w3", "subagent_watchdog", stopping)["action"] == "canceled"
    assert grove.root.asks("w4", "subagent_watchdog", stopping)["action"] == "not_found"
    assert grove.root.timers == {}


def test_watchdog_wakes_its_owner() -> None:
    grove = a_grove()
    grove.root.asks("w", "subagent_watchdog", c.SetWatchdog(grove.target(0), 30_000, "where are we?"))
    answers(grove.root)
    grove.root.fires("watchdog:0")
    grove.settle()
    grove.root.begin()
    assert "where are we?" in grove.root.shown()[-1]["output"]


def test_watchdog_whose_target_takes_no_more_skips_a_message_and_stays() -> None:
    grove, (_,) = a_family()
    grove.root.asks("w", "subagent_watchdog", c.SetWatchdog(grove.target(1), 30_000, "how far?"))
    timer = grove.root.timers.pop("watchdog:1")
    grove.now_ms = timer.at_ms
    fired = c.TimerFired(timer.id, timer.generation)
    grove.root.happens(c.CommitRefused(fired, "queue_full", grove.target(1).session))
    assert grove.registry().agents[1].pending == (0, 0)
    assert grove.root.timers["watchdog:1"].at_ms == timer.at_ms + 30_000


def test_watchdogs_end_by_number_whatever_order_they_were_set_in() -> None:
    grove, _ = a_family()
    grove.root.asks("w1", "subagent_watchdog", c.SetWatchdog(grove.target(1), 30_000, "well?"))
    grove.root.asks("w0", "subagent_watchdog", c.SetWatchdog(grove.target(0), 30_000, "and you?"))
    assert list(grove.root.state.tree.watchdogs) == [1, 0]
    grove.root.shutdown()
    grove.settle()
    logged = [decode_entry(line).payload for line in grove.root.lines]
    ended = [fact["agent_id"] for fact in logged if fact.get("kind") == "watchdog_ended"]
    assert ended == [0, 1]


# ── cancel and prune ────────────────────────────────────────────────────────────────────────


def test_cancel_stops_what_runs_and_everything_below() -> None:
    grove, (child,) = a_family()
    grandchild = child.spawns("deeper")
    grove.settle()
    child.asks_for("c1")
    child.runs("c1")
    grandchild.asks_for("c2")
    grandchild.runs("c2")
    said = grove.root.cancels(1)
    assert said["canceling"] == [1, 2]
    grove.settle()
    assert child.task.stopping
    assert grandchild.task.stopping
    child.stopped(c1=1.0)
    assert child.standing == "running", "its end is told when all below it has ended"
    grandchild.stopped(c2=1.0)
    grove.settle()
    assert statuses(grove) == {1: "canceled", 2: "canceled"}
    assert grove.counter("slots") == 0
    last = [f.message for f in grove.log if f.message.get("status") == "canceled"]
    assert {m["cancel"] for m in last} == {"proved"}
    grove.check()


def test_cancel_of_an_agent_whose_worker_was_lost_is_presumed() -> None:
    grove, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    child.is_taken_over()
    grove.root.cancels(1)
    grove.settle()
    told = [f.message["cancel"] for f in grove.log if f.message.get("status") == "canceled"]
    assert told == ["presumed"]


def test_marked_agent_can_start_nothing_before_it_hears_of_it() -> None:
    grove, (child,) = a_family()
    child.asks_for("c1")
    grove.root.cancels(1)
    child.assessed("c1", a_command("make", safe=True))
    assert child.state.task is None, "it ended instead"
    assert child.standing == "canceled"
    grove.settle()
    grove.check()


def test_agent_under_a_marked_one_cannot_spawn() -> None:
    grove, (child,) = a_family()
    grandchild = child.spawns("deeper")
    grove.settle()
    grandchild.begin()
    grandchild.calls("s", name="subagent_spawn")
    grandchild.ends()
    grove.root.asks("x", "subagent_cancel", c.CancelAgent(grove.target(1)))
    grandchild.assessed("s", grove.spawn(grove.next_id(), "zombie"))
    assert 3 not in grove.agents
    grove.settle()
    assert statuses(grove) == {1: "canceled", 2: "canceled"}


def test_canceled_agent_stays_canceled() -> None:
    grove, (child,) = a_family()
    grove.root.cancels(1)
    grove.settle()
    assert "canceled, for good" in grove.root.sends(1, "wake up")
    grove.settle()
    child.say("wake up", "u9")
    assert child.state.task is None
    assert "cancelled" in child.seen[-1].one("error")["message"]
    assert grove.counter("slots") == 0
    grove.check()


def test_parents_wait_ends_when_its_child_was_canceled() -> None:
    grove, (first, _) = a_family(2)
    grove.root.awaits(1)
    first.happens(c.MailArrived("cancel", {"reason": "enough"}, "k", 99, True))
    grove.settle()
    (ready,) = grove.root.told("wait")["ready"]
    assert ready["completion"] == {"Canceled": {"reason": "enough"}}


def test_cancel_of_a_finished_agent_changes_nothing() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.settle()
    assert grove.root.cancels(1)["canceling"] == []
    assert statuses(grove) == {1: "idle"}


def test_prune_takes_finished_agents_off_and_skips_the_others() -> None:
    grove, (first, second) = a_family(2)
    answers(first)
    grove.settle()
    said = grove.root.prunes(1, 2)
    assert said["pruned"] == [first.sid]
    assert said["skipped_active"] == [second.sid]
    assert statuses(grove) == {2: "running"}
    assert grove.log[-1].message["event"] == "deleted"
    grove.check()


def test_parent_is_never_told_that_a_child_at_work_is_queued() -> None:
    grove, (child,) = a_family()
    child.begin()
    assert grove.root.sends(1, label="tester")["status"] == "running"
    assert grove.root.awaits(1) is None
    child.calls("m", name="subagent_send_message")
    child.ends()
    child.assessed("m", c.SendMessage(grove.target(0), "half of it is done"))
    grove.settle()
    (ready,) = grove.root.told("wait")["ready"]
    assert [letter["prompt"] for letter in ready["messages"]] == ["half of it is done"]
    assert (ready["lifecycle_status"], ready["metadata"]["status"]) == ("running", "running")


def test_late_letter_cannot_start_a_pruned_agent() -> None:
    grove, (first, second) = a_family(2)
    answers(first)
    grove.settle()
    target = grove.target(1)
    grove.root.prunes(1)
    second.asks("m", "subagent_send_message", c.SendMessage(target, "are you there?"))
    grove.settle()
    assert first.state.task is None
    assert grove.counter("slots") == 1


def test_closing_a_root_ends_its_tree_first() -> None:
    grove, (child,) = a_family()
    grandchild = child.spawns("deeper")
    grove.settle()
    grandchild.asks_for("c1")
    grandchild.runs("c1")
    grove.root.shutdown()
    grove.settle()
    assert not grove.root.state.closed
    grandchild.stopped(c1=0.1)
    grove.settle()
    assert grove.root.state.closed
    assert grove.root.types[-1] == "shutdown_complete"
    assert statuses(grove) == {1: "canceled", 2: "canceled"}
    grove.check()


# ── approvals ───────────────────────────────────────────────────────────────────────────────


def below(agent: Agent, *calls: str) -> tuple[c.PendingBelow, ...]:
    return tuple(c.PendingBelow(agent.id, agent.sid, call, agent.task.id) for call in calls)


def asking(child: Agent, call_id: str = "c1") -> None:
    child.asks_for(call_id)
    child.assessed(call_id, a_command("rm", "-rf", "x", dangerous=True))


def test_childs_question_surfaces_at_the_root_and_is_answered_there() -> None:
    grove, (child,) = a_family()
    grandchild = child.spawns("deeper")
    grove.settle()
    asking(grandchild)
    asked = grove.log[-1].message
    assert (asked["type"], asked["agent_id"], asked["agent_path"]) == ("exec_approval_request", 2, "0/1/2")
    grove.root.submit(
        op("exec_approval", id="c1", decision="approved"), below=below(grandchild, "c1"), who="ann"
    )
    grove.settle()
    assert grandchild.call("c1").phase is Phase.RUNNING
    assert grandchild.state.answers[-1].who == "ann"


def test_answer_that_two_children_could_mean_is_refused_by_name() -> None:
    grove, (first, second) = a_family(2)
    asking(first)
    asking(second)
    pending = below(first, "c1") + below(second, "c1")
    seen = grove.root.submit(op("exec_approval", id="c1", decision="approved"), below=pending)
    assert "agent 1" in seen.one("error")["message"]
    assert "agent 2" in seen.one("error")["message"]
    grove.root.submit(op("exec_approval", id="c1", decision="denied", agent_id=2), below=pending)
    grove.settle()
    assert first.call("c1").phase is Phase.AWAITING_APPROVAL
    assert second.call("c1").phase is Phase.DONE


def test_second_answer_at_the_root_is_told_who_decided() -> None:
    grove, (child,) = a_family()
    asking(child)
    grove.root.submit(op("exec_approval", id="c1", decision="approved"), below=below(child, "c1"), who="ann")
    seen = grove.root.submit(op("exec_approval", id="c1", decision="denied"), who="bob")
    assert "by ann" in seen.one("error")["message"]


def test_root_is_told_once_of_each_request_that_an_abort_settles() -> None:
    grove, (child,) = a_family()
    child.asks_for("c1", "c2")
    child.assessed("c1", a_command("rm", "-rf", "x", dangerous=True))
    child.submit(op("exec_approval", id="c1", decision="abort"), who="ann")
    told = [fact.message for fact in grove.log if fact.message["type"] == "request_resolved"]
    assert [(m["call_id"], m["decision"], m["who"]) for m in told] == [("c1", "abort", "ann")]


def test_root_with_agents_is_told_of_every_decision_on_its_own_requests() -> None:
    grove = Grove()
    grove.root.submit(op("user_input", items=[text("do it")]), "u1", client="front")
    grove.root.spawns("part")
    asking(grove.root)
    seen = grove.root.submit(op("exec_approval", id="c1", decision="denied"), who="ann", client="front")
    told = grove.log[-1].message
    assert (told["type"], told["agent_id"], told["who"]) == ("request_resolved", 0, "ann")
    assert seen.decision.tree is not None
    assert set(seen.decision.tree.events[-1].targets) == {grove.root.sid}


def test_root_is_told_of_an_answer_that_nobody_gave_in_time() -> None:
    grove, (child,) = a_family(facts={"approval_timeout_ms": 5_000})
    asking(child)
    child.fires("approval:c1")
    told = grove.log[-1].message
    assert (told["type"], told["decision"], told["who"]) == ("request_resolved", "denied", "timer")


# ── ending ──────────────────────────────────────────────────────────────────────────────────


def test_nobody_waits_for_a_cancelled_agent_that_a_message_did_not_start_again() -> None:
    grove, (parent,) = a_family()
    child = parent.spawns("quickly")
    grove.settle()
    answers(child, "done")
    grove.settle()
    parent.awaits(2, call_id="w1")
    parent.begin()
    for call_id, name in (("m", "send_message"), ("x", "cancel"), ("w2", "await")):
        parent.item(function_call(call_id, f"subagent_{name}"))
    parent.ends()
    parent.assessed("m", c.SendMessage(grove.target(2), "go on"))
    parent.assessed("x", c.CancelAgent(grove.target(2)))
    parent.assessed("w2", c.Await(1_800_000, (2,)))
    assert parent.told("w2") is None, "it was told to start again, and then to end"
    grove.settle()
    assert parent.told("w2") == {"timed_out": False, "injected": False, "ready": [], "waiting": []}
    grove.check()


def test_agent_that_has_ended_says_so_to_everybody_who_asks() -> None:
    grove, (child,) = a_family()
    seen_at_work = grove.target(1)
    child.interrupt()
    grove.root.asks("x", "subagent_cancel", c.CancelAgent(seen_at_work))
    grove.settle()
    assert child.standing == "ready", "it had come to rest before it heard of the cancel"
    grove.root.shutdown()
    grove.settle()
    assert grove.root.state.closed
