"""Waits of agents, by the ends of their logs: the call that waits may not be the one that moved last."""

from __future__ import annotations

import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import commands as c
from orchestrator.core.calls import Mcp
from orchestrator.core.settings import Rules
from orchestrator.views.tree import Doing, told_by
from tests.core.driver import Session, a_command
from tests.core.test_tree_variants import asked
from tests.core.tree_driver import TreeDriver, a_tree, answers


def at_the_end(session: Session) -> Doing:
    entries = [StoredEntry(seq, 1, line, b"", b"") for seq, line in enumerate(session.lines, 1)]
    return told_by(entries, session.seq)


def with_helpers(count: int) -> TreeDriver:
    """A root whose calls wait for so many helpers."""
    tree = a_tree()
    calls = [f"h{number}" for number in range(1, count + 1)]
    tree.root.begin()
    tree.root.calls(*calls, name="spawn_subagent")
    tree.root.ends()
    for call_id in calls:
        tree.root.assessed(call_id, c.Helper(tree.spec(tree.next_id(), "read", label=call_id), "Reads"))
    tree.settle()
    return tree


@pytest.mark.parametrize("left", [1, 2, 3])
def test_agent_waits_for_the_helper_that_is_left_whichever_ended_last(left: int) -> None:
    tree = with_helpers(3)
    for number in {1, 2, 3} - {left}:
        answers(tree.agents[number], "done")
        tree.settle()
    doing = at_the_end(tree.root)
    assert (doing.waits_for, doing.awaited) == ("its helper", (left,))
    answers(tree.agents[left], "done")
    tree.settle()
    assert at_the_end(tree.root).waits_for == ""


def test_agent_that_is_asked_about_one_call_waits_for_that_while_another_has_ended() -> None:
    together = Rules(parallel_safe=frozenset({"mcp__files__wipe"}))
    session = Session(rules=together, settings={"approval_policy": "untrusted"})
    session.say("go")
    session.asks_for("c1", "c2", name="mcp__files__wipe")
    session.assessed("c1", Mcp("files", "wipe", {}, "/repo", read_only=False))
    session.assessed("c2", c.Immediate("there is nothing to wipe"))
    assert at_the_end(session).waits_for == "an approval"


def test_agent_that_waits_for_variants_of_a_plan_waits_for_its_helpers() -> None:
    tree = a_tree()
    request = asked(tree)
    assert tree.root.asks("v", "propose_plan_variants", request) is None
    doing = at_the_end(tree.root)
    assert (doing.waits_for, doing.awaited) == ("its helpers", tuple(one.agent_id for one in request.specs))


def test_agent_whose_calls_have_all_ended_waits_for_nothing_of_an_earlier_task() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make", dangerous=True))
    session.interrupt()
    session.say("go on")
    session.asks_for("c2")
    session.runs("c2")
    session.finishes("c2")
    assert at_the_end(session).waits_for == ""
