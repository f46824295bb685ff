"""However wide a tree is, no decision about it outgrows what one commit carries."""

from __future__ import annotations

import pytest

from orchestrator.core import commands as c
from orchestrator.core.settings import TreeRules
from tests.core.driver import assistant
from tests.core.grove import Agent, Grove, answers

WIDE = 150
LARGEST = 128
"""Entries of one decision: a step that holds as many already still fits the 256 of a commit."""


def a_wide_grove(autosubmit: bool = True) -> tuple[Grove, list[Agent]]:
    rules = TreeRules(autosubmit=autosubmit).wire()
    grove = Grove(limits={"slots": WIDE, "spawned": WIDE}, facts={"tree_rules": rules})
    grove.root.say("do it", "u1")
    return grove, [grove.root.spawns(f"part {n}") for n in range(WIDE)]


def all_done(grove: Grove, children: list[Agent]) -> None:
    grove.settle()
    for child in children:
        answers(child)
    grove.settle()


def largest(agent: Agent) -> int:
    return max(len(seen.decision.entries) for seen in agent.seen)


def test_results_of_many_children_come_to_an_idle_parent_in_parts() -> None:
    grove, children = a_wide_grove()
    root = grove.root
    answers(root)
    all_done(grove, children)
    turns = 0
    while root.state.task is not None:
        answers(root)
        turns += 1
    assert 1 < turns < 10
    assert root.state.tree.inbox == ()
    assert largest(root) <= LARGEST
    grove.check()
    assert {agent.status for agent in grove.registry().agents.values()} == {"idle"}


def test_awaits_return_all_that_is_ready_in_parts() -> None:
    grove, children = a_wide_grove(autosubmit=False)
    all_done(grove, children)
    left = [WIDE]
    while left[-1]:
        grove.root.awaits(call_id=f"w{len(left)}")
        left.append(len(grove.root.state.tree.inbox))
        assert left[-1] < left[-2]
    assert len(left) > 2
    assert largest(grove.root) <= LARGEST
    grove.check()
    assert {agent.status for agent in grove.registry().agents.values()} == {"idle"}


@pytest.mark.parametrize("autosubmit", [True, False])
def test_many_children_are_pruned_at_once(autosubmit: bool) -> None:
    grove, children = a_wide_grove(autosubmit)
    all_done(grove, children)
    grove.root.prunes(*(child.id for child in children))
    assert largest(grove.root) <= LARGEST
    assert grove.registry().agents == {}


def test_many_children_are_ended_with_their_root() -> None:
    grove, children = a_wide_grove()
    grove.settle()
    for child in children:
        child.begin()
        child.item(assistant("half a word"))
    grove.root.shutdown()
    grove.settle()
    for agent in (grove.root, *children):
        if agent.state.task is not None and agent.state.task.stopping:
            agent.happens(c.Stopped())
    grove.settle()
    assert grove.root.state.closed
    assert grove.counter("slots") == 0
    assert largest(grove.root) <= LARGEST
