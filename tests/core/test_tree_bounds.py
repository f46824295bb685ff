"""However wide a tree is, no decision about it outgrows what one commit carries."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.agent_views import MESSAGE_BYTES
from orchestrator.core.ids import AgentId
from orchestrator.core.outstanding import TellChildren
from orchestrator.core.rules_cancelling import MOST_TOLD
from orchestrator.core.settings import TreeRules
from tests.core.driver import assistant, op
from tests.core.grove import Agent, Grove, answers, session_id

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
    assert most_told(grove.root) <= MOST_TOLD


def most_told(agent: Agent) -> int:
    return max(len(seen.decision.tree.letters) for seen in agent.seen if seen.decision.tree is not None)


def test_closing_root_that_is_lost_between_two_pieces_tells_every_child_once() -> None:
    grove, _ = a_wide_grove()
    grove.settle()
    grove.root.shutdown()
    told: list[list[str]] = []
    while TellChildren() in grove.root.owes():
        grove.root.state = grove.root.replayed()
        grove.root.is_taken_over()
        assert not grove.root.state.closed
        letters = grove.root.happens(c.TellChildren()).decision.tree
        assert letters is not None
        told.append([letter.to for letter in letters.letters])
    assert len(told) == 2
    assert Counter(chain(*told)) == Counter(session_id(number) for number in range(1, WIDE + 1))
    grove.settle()
    assert grove.root.state.closed
    assert {agent.status for agent in grove.registry().agents.values()} == {"canceled"}


def test_child_whose_queue_takes_nothing_any_more_does_not_keep_its_root_from_closing() -> None:
    grove, children = a_wide_grove()
    grove.settle()
    grove.root.shutdown()
    refused = c.CommitRefused(c.TellChildren(), "archived_target", children[0].sid)
    grove.root.happens(refused)
    grove.settle()
    assert grove.root.state.closed
    assert children[0].standing == "running"
    assert {child.standing for child in children[1:]} == {"canceled"}


def test_agent_with_very_many_below_it_passes_its_cancel_on() -> None:
    grove = Grove(limits={"slots": 500, "spawned": 500})
    grove.root.say("do it", "u1")
    parent = grove.root.spawns("divide it")
    grove.settle()
    for number in range(MOST_TOLD + 1):
        parent.spawns(f"part {number}")
    said = grove.root.cancels(parent.id)
    assert len(said["canceling"]) == MOST_TOLD + 2
    assert most_told(grove.root) == 1
    grove.settle()
    assert {agent.status for agent in grove.registry().agents.values()} == {"canceled"}
    assert most_told(parent) <= MOST_TOLD
    grove.check()


def test_cancelled_agent_lets_go_of_very_many_unread_results_in_parts() -> None:
    grove = Grove(limits={"slots": 500, "spawned": 500})
    grove.root.say("do it", "u1")
    parent = grove.root.spawns("divide it")
    grove.settle()
    children = [parent.spawns(f"part {number}") for number in range(WIDE)]
    parent.begin()
    grove.settle()
    for child in children:
        answers(child)
    grove.settle()
    assert len(parent.state.tree.inbox) == WIDE
    grove.root.cancels(parent.id)
    grove.settle()
    parent.happens(c.Stopped())
    grove.settle()
    assert parent.state.tree.inbox == ()
    assert {agent.status for agent in grove.registry().agents.values()} == {"canceled"} | {"idle"}
    told = [len(seen.decision.tree.events) for seen in parent.seen if seen.decision.tree is not None]
    assert max(told) <= 2 * MOST_TOLD + 8
    grove.check()


def test_call_that_prunes_very_many_agents_says_how_many_are_left() -> None:
    grove = Grove()
    grove.root.say("do it", "u1")
    grove.root.spawns()
    target = grove.target(1)
    many = tuple(replace(target, agent_id=AgentId(n), status="idle") for n in range(1, 301))
    told = grove.root.asks("p", "subagent_prune", c.Prune(many, {}))
    said = orjson.loads(grove.root.blobs[told["$blob"]])
    assert said["counts"] == {"pruned": 256, "skipped_active": 0, "unknown": 0, "errors": 1}
    assert "44 are left" in said["errors"][0]


def test_word_of_a_person_that_no_letter_carries_is_refused_clearly() -> None:
    grove = Grove()
    grove.root.say("do it", "u1")
    grove.root.spawns()
    word = op("message_agent", agent_id=1, text="x" * (MESSAGE_BYTES + 1))
    seen = grove.root.submit(word, agents=(grove.target(1),))
    assert "at most 32,768 bytes" in seen.one("error")["message"]
    assert seen.decision.tree is None


def test_result_that_no_letter_carries_reaches_the_parent_as_its_beginning() -> None:
    grove = Grove()
    grove.root.say("do it", "u1")
    child = grove.root.spawns()
    grove.settle()
    child.begin()
    parts = [{"type": "output_text", "text": letter * 50_000} for letter in "ab"]
    child.item({"type": "message", "role": "assistant", "content": parts})
    child.ends()
    told = orjson.loads(grove.root.blobs[grove.root.awaits()["$blob"]])
    heard = told["ready"][0]["completion"]["Completed"]["last_message"]
    assert heard.startswith("a" * 50_000 + "b" * 10_000 + "\n")
    assert heard.endswith("[the first of 100,000 bytes; subagent_logs tells where it ended]")
