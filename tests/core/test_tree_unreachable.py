"""Sessions that nothing reaches: gone, or archived where the archive is away or damaged."""

from __future__ import annotations

import pytest

from orchestrator.core import commands as c
from orchestrator.core.outstanding import EndChildren
from orchestrator.protocol.ids import SubmissionId
from tests.core.driver import USAGE, Seen, assistant, op
from tests.core.tree_driver import Agent, TreeDriver, a_family, a_tree, answers

REASONS = ["archived_target", "unknown_target"]


def refused(agent: Agent, command: c.Command, reason: str, target: Agent) -> Seen:
    """The commit of a command is refused, since a message of it reaches nobody."""
    return agent.happens(c.CommitRefused(command, reason, target.sid))


def letters(seen: Seen) -> list[tuple[str, str]]:
    part = seen.decision.tree
    return [] if part is None else [(each.kind, each.to) for each in part.outbox]


def ends_without(agent: Agent, reason: str, *lost: Agent) -> None:
    """Tells the children of their end, each lost one refusing a step."""
    for target in lost:
        assert EndChildren() in agent.owes()
        refused(agent, c.EndChildren(), reason, target)


def a_family_at_rest(count: int, at_work: int) -> tuple[TreeDriver, list[Agent]]:
    tree, children = a_family(count)
    for child in children[at_work:]:
        answers(child)
    tree.settle()
    return tree, children


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_few_children_that_nothing_reaches_do_not_keep_their_root_from_closing(
    lost: int, reason: str
) -> None:
    tree, children = a_family_at_rest(3, 1)
    gone = children[3 - lost :]
    shutdown = c.Submitted(SubmissionId("bye"), op("shutdown"))
    seen = refused(tree.root, shutdown, reason, gone[0])
    assert (letters(seen), seen.types[-1:]) == ([], ["turn_aborted"])
    assert tree.root.state.closing == "bye"
    ends_without(tree.root, reason, *gone)
    tree.settle()
    assert tree.root.state.closed
    assert tree.root.types.count("shutdown_complete") == 1
    assert {child.standing for child in children if child not in gone} <= {"canceled", "idle", "ready"}
    assert not any(child.state.tree.canceling for child in gone)
    assert all(child.state.tree.canceling for child in children if child not in gone)


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("at_work", [True, False])
def test_agent_with_a_child_that_nothing_reaches_is_cancelled_all_the_same(
    at_work: bool, reason: str
) -> None:
    tree, (child,) = a_family()
    below = [child.spawns(f"part {number}") for number in range(2)]
    tree.settle()
    answers(below[0])
    tree.settle()
    if not at_work:
        child.awaits(call_id="w")
    tree.root.cancels(child.id)
    cancel = tree.queues[child.sid].popleft()
    seen = refused(child, cancel, reason, below[0])
    assert letters(seen) == []
    assert child.state.tree.canceling == "canceled"
    ends_without(child, reason, below[0])
    tree.settle()
    assert (child.standing, below[1].standing) == ("canceled", "canceled")
    assert tree.root.state.tree.children[child.id].status == "canceled"
    assert not tree.root.state.tree.ending_children


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("by", ["a person", "the agent above"])
def test_interrupt_of_a_tree_stops_all_that_work_though_it_cannot_reach_one_at_rest(
    by: str, reason: str
) -> None:
    tree, (child,) = a_family()
    below = [child.spawns(f"part {number}") for number in range(4)]
    tree.settle()
    for agent in below:
        agent.begin()
    for agent in below[2:]:
        answers_now(agent)
    tree.settle()
    if by == "a person":
        interrupt: c.Command = c.Submitted(SubmissionId("stop"), op("interrupt", tree=True))
    else:
        interrupt = c.MailArrived("interrupt", {"at_ms": 1}, "k", 9, True)
    seen = refused(child, interrupt, reason, below[2])
    told = [("interrupt", agent.sid) for agent in below[:2]]
    assert letters(seen) == [*told, ("completion", tree.root.sid)]
    assert child.state.task is None
    assert not tree.root.seen[-1].all("error")
    tree.settle()
    for agent in below[:2]:
        assert agent.task.stopping == "interrupted"


def answers_now(agent: Agent) -> None:
    agent.item(assistant("done"))
    agent.ends()


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("how", ["completed", "failed", "interrupted"])
def test_agent_whose_parent_nothing_reaches_comes_to_rest_without_its_word(how: str, reason: str) -> None:
    tree, (child,) = a_family()
    child.begin()
    child.item(assistant("the result"))
    n = child.request_n
    command: c.Command = c.ResponseCompleted(n, "r", USAGE)
    if how == "failed":
        command = c.ResponseBroken(n, "fatal", "no such model")
    elif how == "interrupted":
        child.interrupt()
        command = c.Stopped({})
    seen = refused(child, command, reason, tree.root)
    assert letters(seen) == []
    assert child.state.task is None
    assert child.owes() == (), "the model is not asked the same again"
    assert child.standing == ("failed" if how == "failed" else "ready")
    assert (child.state.tree.turns, child.state.tree.slot, tree.counter("slots")) == (1, False, 0)
    assert tree.registry().agents[child.id].status == child.standing


@pytest.mark.parametrize("reason", REASONS)
def test_person_speaks_to_an_agent_whose_parent_nothing_reaches(reason: str) -> None:
    tree, (child,) = a_family_at_rest(1, 0)
    said = c.Submitted(SubmissionId("u9"), op("user_input", items=[{"type": "text", "text": "go on"}]))
    seen = refused(child, said, reason, tree.root)
    assert (letters(seen), seen.all("error")) == ([], [])
    assert child.standing == "running"
    child.begin()
    assert child.texts()[-1] == "go on"


@pytest.mark.parametrize("reason", REASONS)
def test_who_means_a_session_that_nothing_reaches_is_told(reason: str) -> None:
    tree, children = a_family_at_rest(1, 0)
    word = c.Submitted(SubmissionId("p1"), op("message_agent", agent_id=1, text="hello"), "ann")
    seen = refused(tree.root, word, reason, children[0])
    assert len(seen.all("error")) == 1
    other = a_tree()
    helper = other.root.spawns()
    other.settle()
    answers(helper)
    other.settle()
    other.root.begin()
    other.root.calls("m", name="subagent_send_message")
    other.root.ends()
    sends = c.CallAssessed("m", c.SendMessage(other.target(1), "again"))
    refused(other.root, sends, reason, helper)
    assert "agent" in other.root.output_of("m")


def test_cancel_that_meets_a_mark_tells_its_children_in_a_step_of_its_own() -> None:
    """Decided in the place of a refused command, it must not be refused for a child."""
    tree, (child,) = a_family()
    grandchild = child.spawns()
    tree.settle()
    tree.root.cancels(child.id)
    tree.queues[child.sid].clear()
    tree.inboxes[child.sid] = [0, 0]
    child.happens(c.BeginRequest())
    assert child.state.tree.canceling
    assert letters(child.seen[-1]) == []
    assert child.state.tree.to_end == (grandchild.id,)
    tree.settle()
    assert (child.standing, grandchild.standing) == ("canceled", "canceled")
