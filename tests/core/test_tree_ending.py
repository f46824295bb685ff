"""The ends of agents in a tree, decided without I/O: cancelling, pruning, closing the root."""

from __future__ import annotations

from orchestrator.core import commands as c
from orchestrator.core.ids import AgentId
from tests.core.driver import a_command, function_call
from tests.core.grove import a_family, answers, statuses


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
    assert grove.root.status != "closed"
    grandchild.stopped(c1=0.1)
    grove.settle()
    assert grove.root.state.closed
    assert grove.root.types[-1] == "shutdown_complete"
    assert statuses(grove) == {1: "canceled", 2: "canceled"}
    grove.check()


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
    parent.assessed("w2", c.Await(1_800_000, (AgentId(2),)))
    assert parent.told("w2") is None, "it was told to start again, and then to end"
    grove.settle()
    assert parent.told("w2") == {"timed_out": False, "injected": False, "ready": [], "waiting": []}
    grove.check()


def test_end_of_a_cancelled_agent_leaves_an_idle_parent_as_it_is() -> None:
    grove, (parent,) = a_family(facts={"tree_rules": {"autosubmit": False}})
    parent.spawns("quickly")
    grove.settle()
    answers(grove.agents[2], "done")
    grove.settle()
    parent.begin()
    for call_id, name in (("m", "send_message"), ("x", "cancel")):
        parent.item(function_call(call_id, f"subagent_{name}"))
    parent.ends()
    parent.assessed("m", c.SendMessage(grove.target(2), "go on"))
    parent.assessed("x", c.CancelAgent(grove.target(2)))
    answers(parent, "that is all")
    turns = parent.state.tree.turns
    grove.settle()
    assert grove.agents[2].state.tree.ended
    assert (parent.state.tree.turns, parent.standing) == (turns, "ready")


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
