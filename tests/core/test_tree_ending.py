"""The ends of agents in a tree, decided without I/O: cancelling, pruning, closing the root."""

from __future__ import annotations

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Await
from orchestrator.core.commit_parts import REAP_BELOW_TIMER, REAP_MS, REAP_TIMER
from orchestrator.core.ids import AgentId
from orchestrator.core.snapshot import decode, encode
from tests.core.driver import a_command, function_call, op
from tests.core.tree_driver import Agent, TreeDriver, a_family, answers, statuses


def test_cancel_stops_what_runs_and_everything_below() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    child.asks_for("c1")
    child.runs("c1")
    grandchild.asks_for("c2")
    grandchild.runs("c2")
    said = tree.root.cancels(1)
    assert said["canceling"] == [1, 2]
    tree.settle()
    assert child.task.stopping
    assert grandchild.task.stopping
    child.stopped(c1=1.0)
    assert child.standing == "running", "its end is told when all below it has ended"
    grandchild.stopped(c2=1.0)
    tree.settle()
    assert statuses(tree) == {1: "canceled", 2: "canceled"}
    assert tree.counter("slots") == 0
    last = [f.message for f in tree.log if f.message.get("status") == "canceled"]
    assert {m["cancel"] for m in last} == {"proved"}
    tree.check()


def test_each_input_that_waits_for_a_cancelled_agent_is_answered() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    ids = [f"x{number}" for number in range(98)]
    for id in ids:
        child.say("later", id, delivery="queue")
    tree.root.cancels(1)
    tree.settle()
    child.stopped(c1=1.0)
    tree.settle()
    told = [(id, message["message"]) for id, message in child.events if message["type"] == "error"]
    assert told == [(id, "this agent was cancelled or pruned: it takes no more input") for id in ids]
    assert (child.standing, child.state.queue, child.owes()) == ("canceled", (), ())
    assert max(len(seen.decision.entries) for seen in child.seen) < 128
    tree.check()


def test_cancel_of_an_agent_whose_worker_was_lost_is_presumed() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    child.is_taken_over()
    tree.root.cancels(1)
    tree.settle()
    told = [f.message["cancel"] for f in tree.log if f.message.get("status") == "canceled"]
    assert told == ["presumed"]


def test_cancel_that_refuses_a_takeover_leaves_what_was_begun_in_doubt_and_the_end_presumed() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    child.epoch += 1
    child.happens(c.CommitRefused(c.TookOver(), "marked", "cancel:1"))
    tree.settle()
    assert child.output_of("c1").startswith("in doubt")
    assert child.state.tree.evidence == "presumed"


def test_tree_s_log_tells_who_was_taken_over_and_under_which_claim() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    child.is_taken_over()
    told = [fact for fact in tree.log if "takeover" in fact.about]
    assert [(fact.message["event"], fact.message["agent_id"]) for fact in told] == [("updated", 1)]
    assert told[0].about == {"agent_id": 1, "takeover": child.epoch}


def _taken_over_below() -> tuple[TreeDriver, Agent, Agent]:
    """A tree, an agent of it, and one below that whose worker was lost while it ran a command."""
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    grandchild.asks_for("c1")
    grandchild.runs("c1")
    grandchild.is_taken_over()
    return tree, child, grandchild


def test_cancel_is_presumed_if_the_worker_of_an_agent_below_was_lost() -> None:
    tree, _, _ = _taken_over_below()
    tree.root.cancels(1)
    tree.settle()
    assert statuses(tree) == {1: "canceled", 2: "canceled"}
    told = [f.message["cancel"] for f in tree.log if f.message.get("status") == "canceled"]
    assert told == ["presumed", "presumed"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_cancel_is_presumed_if_an_agent_below_had_been_cancelled_so_before(*, goes_on: bool) -> None:
    tree, child, grandchild = _taken_over_below()
    child.cancels(grandchild.id)
    tree.settle()
    assert statuses(tree) == {1: "running", 2: "canceled"}
    if goes_on:
        answers(child)
        tree.settle()
        tree.root.sends(1, "go on")
        tree.settle()
        child.state = decode(encode(child.state))
    tree.root.cancels(1)
    tree.settle()
    told = [f.message["cancel"] for f in tree.log if f.message.get("status") == "canceled"]
    assert told == ["presumed", "presumed"]


@pytest.mark.parametrize(("who", "by"), [("ann", "ann"), ("", "a person")])
def test_agent_that_is_cancelled_without_a_reason_is_told_who_asked_for_it(who: str, by: str) -> None:
    tree, (child,) = a_family()
    asked = op("cancel_agent", agent_id=child.id)
    tree.root.submit(asked, agents=(tree.target(child.id),), who=who)
    tree.settle()
    assert child.state.tree.canceling == f"cancelled by {by}"


def test_marked_agent_can_start_nothing_before_it_hears_of_it() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    tree.root.cancels(1)
    child.assessed("c1", a_command("make", safe=True))
    assert child.state.task is None, "it ended instead"
    assert child.standing == "canceled"
    tree.settle()
    tree.check()


def test_agent_under_a_marked_one_cannot_spawn() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    grandchild.begin()
    grandchild.calls("s", name="subagent_spawn")
    grandchild.ends()
    tree.root.asks("x", "subagent_cancel", c.CancelAgent(tree.target(1)))
    grandchild.assessed("s", tree.spawn(tree.next_id(), "zombie"))
    assert 3 not in tree.agents
    tree.settle()
    assert statuses(tree) == {1: "canceled", 2: "canceled"}


def test_canceled_agent_stays_canceled() -> None:
    tree, (child,) = a_family()
    tree.root.cancels(1)
    tree.settle()
    assert "canceled, for good" in tree.root.sends(1, "wake up")
    tree.settle()
    child.say("wake up", "u9")
    assert child.state.task is None
    assert "cancelled" in child.seen[-1].one("error")["message"]
    assert tree.counter("slots") == 0
    tree.check()


def test_parents_wait_ends_when_its_child_was_canceled() -> None:
    tree, (first, _) = a_family(2)
    tree.root.awaits(1)
    first.happens(c.MailArrived("cancel", {"reason": "enough"}, "k", 99, True))
    tree.settle()
    (ready,) = tree.root.told("wait")["ready"]
    assert ready["completion"] == {"Canceled": {"reason": "enough"}}


def test_cancel_of_a_finished_agent_changes_nothing() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.settle()
    assert tree.root.cancels(1)["canceling"] == []
    assert statuses(tree) == {1: "idle"}


def test_prune_takes_finished_agents_off_and_skips_the_others() -> None:
    tree, (first, second) = a_family(2)
    answers(first)
    tree.settle()
    said = tree.root.prunes(1, 2)
    assert said["pruned"] == [first.sid]
    assert said["skipped_active"] == [second.sid]
    assert statuses(tree) == {2: "running"}
    assert tree.log[-1].message["event"] == "deleted"
    tree.check()


def test_parent_is_never_told_that_a_child_at_work_is_queued() -> None:
    tree, (child,) = a_family()
    child.begin()
    assert tree.root.sends(1, label="tester")["status"] == "running"
    assert tree.root.awaits(1) is None
    child.calls("m", name="subagent_send_message")
    child.ends()
    child.assessed("m", c.SendMessage(tree.target(0), "half of it is done"))
    tree.settle()
    (ready,) = tree.root.told("wait")["ready"]
    assert [letter["prompt"] for letter in ready["messages"]] == ["half of it is done"]
    assert (ready["lifecycle_status"], ready["metadata"]["status"]) == ("running", "running")


def test_late_letter_cannot_start_a_pruned_agent() -> None:
    tree, (first, second) = a_family(2)
    answers(first)
    tree.settle()
    target = tree.target(1)
    tree.root.prunes(1)
    second.asks("m", "subagent_send_message", c.SendMessage(target, "are you there?"))
    tree.settle()
    assert first.state.task is None
    assert tree.counter("slots") == 1


def test_closing_a_root_ends_its_tree_first() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    grandchild.asks_for("c1")
    grandchild.runs("c1")
    tree.root.shutdown()
    tree.settle()
    assert tree.root.status != "closed"
    assert tree.root.shutdown("again").types == ["error"]
    grandchild.stopped(c1=0.1)
    tree.settle()
    assert tree.root.state.closed
    assert tree.root.types[-1] == "shutdown_complete"
    assert statuses(tree) == {1: "canceled", 2: "canceled"}
    tree.check()


def test_input_that_comes_while_an_idle_root_is_being_closed_waits_until_it_is_spoken_to_again() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    answers(tree.root)
    tree.root.shutdown()
    tree.root.say("one more thing", id="late")
    tree.settle()
    assert tree.root.state.task is None, "a task that waits for an agent would never hear of it"
    child.stopped(c1=0.1)
    tree.settle()
    assert tree.root.state.closed
    assert [waiting.id for waiting in tree.root.state.queue] == ["late"]
    tree.root.say("are you there?", id="later")
    assert tree.root.task.id == "late"


def test_nobody_waits_for_a_cancelled_agent_that_a_message_did_not_start_again() -> None:
    tree, (parent,) = a_family()
    child = parent.spawns("quickly")
    tree.settle()
    answers(child, "done")
    tree.settle()
    parent.awaits(2, call_id="w1")
    parent.begin()
    for call_id, name in (("m", "send_message"), ("x", "cancel"), ("w2", "await")):
        parent.item(function_call(call_id, f"subagent_{name}"))
    parent.ends()
    parent.assessed("m", c.SendMessage(tree.target(2), "go on"))
    parent.assessed("x", c.CancelAgent(tree.target(2)))
    parent.assessed("w2", Await(1_800_000, (AgentId(2),)))
    assert parent.told("w2") is None, "it was told to start again, and then to end"
    tree.settle()
    assert parent.told("w2") == {"timed_out": False, "injected": False, "ready": [], "waiting": []}
    tree.check()


@pytest.mark.parametrize("read", [True, False])
def test_nobody_waits_for_an_agent_that_was_being_closed_when_a_message_came(*, read: bool) -> None:
    tree, (parent,) = a_family()
    child, below = parent.spawns("quickly"), []
    tree.settle()
    below.append(child.spawns("slowly"))
    tree.settle()
    answers(child, "done")
    below[0].asks_for("c1")
    below[0].runs("c1")
    if read:
        parent.awaits(2, call_id="w1")
    child.shutdown()
    parent.sends(2, "go on")
    assert parent.awaits(2, call_id="w2") == {
        "timed_out": False,
        "injected": False,
        "ready": [],
        "waiting": [],
    }
    tree.check()
    below[0].stopped(c1=1.0)
    tree.settle()
    assert child.status == "closed"
    parent.sends(2, "go on")
    tree.settle()
    assert (child.standing, parent.state.tree.children[AgentId(2)].status) == ("running", "running")
    tree.check()


def test_words_of_a_cancelled_agent_that_wait_for_its_parent_are_no_result_to_be_read() -> None:
    tree, (parent,) = a_family()
    child = parent.spawns("quickly")
    tree.settle()
    parent.begin()
    child.sends(1, "half of it is there")
    answers(child, "done")
    tree.settle()
    for call_id, name in (("m", "send_message"), ("x", "cancel")):
        parent.item(function_call(call_id, f"subagent_{name}"))
    parent.ends()
    parent.assessed("m", c.SendMessage(tree.target(2), "go on"))
    parent.assessed("x", c.CancelAgent(tree.target(2)))
    tree.settle()
    assert [mail.kind for mail in parent.state.tree.inbox] == ["message"]
    assert parent.state.tree.children[AgentId(2)].status == "idle"
    tree.check()


def test_end_of_a_cancelled_agent_leaves_an_idle_parent_as_it_is() -> None:
    tree, (parent,) = a_family(facts={"tree_rules": {"autosubmit": False}})
    parent.spawns("quickly")
    tree.settle()
    answers(tree.agents[2], "done")
    tree.settle()
    parent.begin()
    for call_id, name in (("m", "send_message"), ("x", "cancel")):
        parent.item(function_call(call_id, f"subagent_{name}"))
    parent.ends()
    parent.assessed("m", c.SendMessage(tree.target(2), "go on"))
    parent.assessed("x", c.CancelAgent(tree.target(2)))
    answers(parent, "that is all")
    turns = parent.state.tree.turns
    tree.settle()
    assert tree.agents[2].state.tree.ended
    assert (parent.state.tree.turns, parent.standing) == (turns, "ready")


def test_agent_that_has_ended_says_so_to_everybody_who_asks() -> None:
    tree, (child,) = a_family()
    seen_at_work = tree.target(1)
    child.interrupt()
    tree.root.asks("x", "subagent_cancel", c.CancelAgent(seen_at_work))
    tree.settle()
    assert child.standing == "ready", "it had come to rest before it heard of the cancel"
    tree.root.shutdown()
    tree.settle()
    assert tree.root.state.closed


@pytest.mark.parametrize("at_work", [True, False])
def test_shutdown_of_an_agent_that_was_cancelled_is_answered(at_work: bool) -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    tree.root.cancels(1)
    tree.settle()
    if not at_work:
        child.stopped(c1=1.0)
        tree.settle()
    seen = child.shutdown("bye")
    assert [(id, message["type"]) for id, message in seen.events] == [("bye", "error")]
    if at_work:
        child.stopped(c1=1.0)
        tree.settle()
    assert (child.standing, child.state.tree.ended) == ("canceled", True)
    tree.check()


def test_result_that_comes_to_an_agent_that_was_pruned_is_let_go() -> None:
    tree, (child,) = a_family()
    below = child.spawns("deeper")
    answers(child)
    tree.root.awaits(call_id="w")
    tree.root.prunes(1)
    child.say("one more thing")
    assert child.state.tree.pruned
    answers(below)
    tree.settle()
    assert (child.state.tree.inbox, tree.inboxes[child.sid]) == ((), [0, 0])


def test_shutdown_of_an_agent_that_was_pruned_is_complete() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.root.awaits(call_id="w")
    tree.root.prunes(1)
    assert child.say("one more thing").types == ["error"]
    assert child.state.tree.pruned
    assert child.shutdown("bye").types == ["shutdown_complete"]


def test_shutdown_of_an_agent_is_complete_though_it_is_cancelled_meanwhile() -> None:
    tree, (child,) = a_family()
    below = child.spawns("deeper")
    tree.settle()
    below.asks_for("c1")
    below.runs("c1")
    answers(child)
    tree.settle()
    child.shutdown("bye")
    tree.root.shutdown()
    tree.settle()
    assert child.status != "closed", "an agent below has still to end"
    below.stopped(c1=1.0)
    tree.settle()
    told = [message["type"] for id, message in child.events if id == "bye"]
    assert (told, child.status, child.owes()) == (["shutdown_complete"], "closed", ())
    assert (tree.root.status, child.state.tree.ended) == ("closed", True)
    tree.check()


def test_agent_that_was_shut_down_reports_once_however_many_of_its_children_end() -> None:
    tree, (child,) = a_family()
    child.spawns("one")
    child.spawns("two")
    child.shutdown()
    turns = child.state.tree.turns
    tree.settle()
    assert child.state.closed
    assert (child.state.tree.turns, child.standing) == (turns, "ready")


def test_root_is_never_cancelled_and_hears_nothing_of_children_that_it_has_not() -> None:
    tree, _ = a_family()
    before = tree.root.state
    tree.root.happens(c.MailArrived("cancel", {"reason": "no more"}, "m1", 1))
    tree.root.happens(c.MailArrived("status", {"from": {"agent_id": 9}, "status": "idle"}, "m2", 2))
    assert tree.root.state == before


def test_look_after_cancelled_agents_ends_when_none_is_left() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    tree.root.cancels(1)
    assert REAP_TIMER in tree.root.timers
    generation = tree.root.timers[REAP_TIMER].generation
    tree.root.happens(c.TimerFired(REAP_TIMER, generation))
    assert REAP_TIMER in tree.root.timers, "one has not ended"
    tree.settle()
    child.stopped(c1=1.0)
    tree.settle()
    tree.root.happens(c.TimerFired(REAP_TIMER, generation))
    assert REAP_TIMER not in tree.root.timers


@pytest.mark.parametrize(("target", "own", "below"), [(1, True, True), (2, False, True), (3, True, False)])
def test_cancel_is_looked_after_at_each_depth_for_as_long_as_somebody_has_not_ended(
    target: int, own: bool, below: bool
) -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    other = tree.root.spawns("besides")
    tree.settle()
    assert [agent.id for agent in (child, grandchild, other)] == [1, 2, 3]
    for agent in (child, grandchild, other):
        agent.asks_for("c1")
        agent.runs("c1")
    tree.root.cancels(target)
    due = {name: timer.at_ms for name, timer in tree.root.timers.items()}
    wanted = {REAP_TIMER: own, REAP_BELOW_TIMER: below}
    assert due == {name: tree.root.now_ms + REAP_MS for name, stands in wanted.items() if stands}
    for left in (True, False) if below else ():
        fired = c.TimerFired(REAP_BELOW_TIMER, tree.root.timers[REAP_BELOW_TIMER].generation, left=left)
        tree.root.happens(fired)
        assert (REAP_BELOW_TIMER in tree.root.timers) == left
    assert (REAP_TIMER in tree.root.timers) == own


def test_look_after_agents_that_are_cancelled_together_ends_with_the_last_of_them() -> None:
    tree, children = a_family(3)
    for child in children:
        child.asks_for("c1")
        child.runs("c1")
    for child in children:
        tree.root.cancels(child.id, call_id=f"cancel{child.id}")
    tree.settle()
    for child in children:
        assert REAP_TIMER in tree.root.timers, f"agent {child.id} has not ended"
        child.stopped(c1=1.0)
        tree.settle()
    assert REAP_TIMER not in tree.root.timers
