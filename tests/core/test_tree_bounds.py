"""However wide a tree is, no decision about it outgrows what one commit carries."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core import snapshot
from orchestrator.core.agent_views import MESSAGE_BYTES, RESULT_BYTES
from orchestrator.core.calls import Await
from orchestrator.core.commit_parts import REAP_TIMER
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.decide.agent import MOST_TOLD
from orchestrator.core.decide.mail_delivery import MOST_BYTES
from orchestrator.core.ids import AgentId
from orchestrator.core.outstanding import EndChildren
from orchestrator.core.sender import Sender
from orchestrator.core.settings import TreeRules
from tests.core.driver import assistant, op
from tests.core.tree_driver import Agent, TreeDriver, answers, session_id

WIDE = 150
LARGEST = 128
"""Entries of one decision: a step that holds as many already still fits the 256 of a commit."""


def a_wide_tree(autosubmit: bool = True) -> tuple[TreeDriver, list[Agent]]:
    rules = TreeRules(autosubmit=autosubmit).wire()
    tree = TreeDriver(limits={"slots": WIDE, "spawned": WIDE}, facts={"tree_rules": rules})
    tree.root.say("do it", "u1")
    return tree, [tree.root.spawns(f"part {n}") for n in range(WIDE)]


def all_done(tree: TreeDriver, children: list[Agent]) -> None:
    tree.settle()
    for child in children:
        answers(child)
    tree.settle()


def largest(agent: Agent) -> int:
    return max(len(seen.decision.entries) for seen in agent.seen)


def test_results_of_many_children_come_to_an_idle_parent_in_parts() -> None:
    tree, children = a_wide_tree()
    root = tree.root
    answers(root)
    all_done(tree, children)
    turns = 0
    while root.state.task is not None:
        answers(root)
        turns += 1
    assert 1 < turns < 10
    assert root.state.tree.inbox == ()
    assert largest(root) <= LARGEST
    tree.check()
    assert {agent.status for agent in tree.registry().agents.values()} == {"idle"}


def test_awaits_return_all_that_is_ready_in_parts() -> None:
    tree, children = a_wide_tree(autosubmit=False)
    all_done(tree, children)
    left = [WIDE]
    while left[-1]:
        tree.root.awaits(call_id=f"w{len(left)}")
        left.append(len(tree.root.state.tree.inbox))
        assert left[-1] < left[-2]
    assert len(left) > 2
    assert largest(tree.root) <= LARGEST
    tree.check()
    assert {agent.status for agent in tree.registry().agents.values()} == {"idle"}


@pytest.mark.parametrize("autosubmit", [True, False])
def test_many_children_are_pruned_at_once(autosubmit: bool) -> None:
    tree, children = a_wide_tree(autosubmit)
    all_done(tree, children)
    tree.root.prunes(*(child.id for child in children))
    assert largest(tree.root) <= LARGEST
    assert tree.registry().agents == {}


def test_many_children_are_ended_with_their_root() -> None:
    tree, children = a_wide_tree()
    tree.settle()
    for child in children:
        child.begin()
        child.item(assistant("half a word"))
    tree.root.shutdown()
    tree.settle()
    for agent in (tree.root, *children):
        if agent.state.task is not None and agent.state.task.stopping:
            agent.happens(c.Stopped())
    tree.settle()
    assert tree.root.state.closed
    assert tree.counter("slots") == 0
    assert largest(tree.root) <= LARGEST
    assert most_told(tree.root) <= MOST_TOLD


def most_told(agent: Agent) -> int:
    return max(len(seen.decision.tree.outbox) for seen in agent.seen if seen.decision.tree is not None)


def test_closing_root_that_is_lost_between_two_pieces_tells_every_child_once() -> None:
    tree, _ = a_wide_tree()
    tree.settle()
    tree.root.shutdown()
    told: list[list[str]] = []
    while EndChildren() in tree.root.owes():
        tree.root.state = tree.root.replayed()
        tree.root.is_taken_over()
        assert not tree.root.state.closed
        letters = tree.root.happens(c.EndChildren()).decision.tree
        assert letters is not None
        told.append([letter.to for letter in letters.outbox])
    assert len(told) == 2
    assert Counter(chain(*told)) == Counter(session_id(number) for number in range(1, WIDE + 1))
    tree.settle()
    assert tree.root.state.closed
    assert {agent.status for agent in tree.registry().agents.values()} == {"canceled"}


def test_each_of_very_many_children_is_told_who_closed_their_root() -> None:
    tree, children = a_wide_tree()
    tree.settle()
    ann = Sender("ann@host", "", "admin", "terminal", "machine")
    tree.root.submit(op("shutdown"), by=ann)
    # One that takes nothing any more is passed over, and the others are told by another worker.
    tree.root.happens(c.CommitRefused(c.EndChildren(), "archived_target", children[0].sid))
    tree.root.state = snapshot.decode(snapshot.encode(tree.root.replayed()))
    letters = []
    while EndChildren() in tree.root.owes():
        part = tree.root.happens(c.EndChildren()).decision.tree
        assert part is not None
        letters += [orjson.loads(letter.payload) for letter in part.outbox]
    assert [letter["by"] for letter in letters] == [ann.wire()] * (WIDE - 1)


def test_root_whose_children_ended_before_they_were_told_waits_for_no_report() -> None:
    tree, children = a_wide_tree()
    tree.settle()
    tree.root.shutdown()
    tree.root.happens(c.EndChildren())
    for child in children[MOST_TOLD:]:
        child.happens(c.MailArrived("cancel", {"reason": "by another agent"}, f"c{child.id}", 1))
    for agent in (*children, tree.root):
        while tree.queues[agent.sid]:
            tree.deliver(agent)
    assert list(tree.root.timers) == [REAP_TIMER]
    tree.root.happens(c.EndChildren())
    assert tree.root.state.closed
    assert tree.root.timers == {}


def test_child_whose_queue_takes_nothing_any_more_does_not_keep_its_root_from_closing() -> None:
    tree, children = a_wide_tree()
    tree.settle()
    tree.root.shutdown()
    refused = c.CommitRefused(c.EndChildren(), "archived_target", children[0].sid)
    tree.root.happens(refused)
    tree.settle()
    assert tree.root.state.closed
    assert children[0].standing == "running"
    assert {child.standing for child in children[1:]} == {"canceled"}


def test_refusal_of_what_a_tree_never_refuses_is_no_decision() -> None:
    tree = TreeDriver()
    refused = c.CommitRefused(c.CloseCalls(), "queue_full", tree.root.sid)
    with pytest.raises(IllegalCommand, match="CloseCalls was refused: "):
        tree.root.happens(refused)


def test_agent_with_very_many_below_it_passes_its_cancel_on() -> None:
    tree = TreeDriver(limits={"slots": 500, "spawned": 500})
    tree.root.say("do it", "u1")
    parent = tree.root.spawns("divide it")
    tree.settle()
    for number in range(MOST_TOLD + 1):
        last = parent.spawns(f"part {number}")
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(last.id), 60_000, "how is it going?"))
    said = tree.root.cancels(parent.id)
    assert not tree.root.state.tree.watchdogs
    assert len(said["canceling"]) == MOST_TOLD + 2
    assert most_told(tree.root) == 1
    tree.settle()
    assert {agent.status for agent in tree.registry().agents.values()} == {"canceled"}
    assert most_told(parent) <= MOST_TOLD
    tree.check()


def test_cancel_of_an_agent_at_rest_with_very_many_at_work_below_it_marks_that_agent() -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    child = tree.root.spawns()
    at_rest = replace(tree.target(1), status="idle", pending=(0, 0))
    assert not at_rest.at_work
    many = tuple(
        replace(tree.target(1), agent_id=AgentId(n), session=session_id(n)) for n in range(2, MOST_TOLD + 4)
    )
    tree.root.asks("x", "subagent_cancel", c.CancelAgent(at_rest, many, "enough"))
    letters = [mail.to for seen in tree.root.seen if seen.decision.tree for mail in seen.decision.tree.outbox]
    assert letters == [child.sid]


def test_cancelled_agent_lets_go_of_very_many_unread_results_in_parts() -> None:
    tree = TreeDriver(limits={"slots": 500, "spawned": 500})
    tree.root.say("do it", "u1")
    parent = tree.root.spawns("divide it")
    tree.settle()
    children = [parent.spawns(f"part {number}") for number in range(WIDE)]
    parent.begin()
    tree.settle()
    for child in children:
        answers(child)
    tree.settle()
    assert len(parent.state.tree.inbox) == WIDE
    tree.root.cancels(parent.id)
    tree.settle()
    parent.happens(c.Stopped())
    tree.settle()
    assert parent.state.tree.inbox == ()
    assert {agent.status for agent in tree.registry().agents.values()} == {"canceled"} | {"idle"}
    told = [len(seen.decision.tree.events) for seen in parent.seen if seen.decision.tree is not None]
    assert max(told) <= 2 * MOST_TOLD + 8
    tree.check()


def test_call_that_prunes_very_many_agents_says_how_many_are_left() -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    tree.root.spawns()
    target = tree.target(1)
    many = tuple(replace(target, agent_id=AgentId(n), status="idle") for n in range(1, 301))
    told = tree.root.asks("p", "subagent_prune", c.Prune(many, {}))
    said = orjson.loads(tree.root.blobs[told["$blob"]])
    assert said["counts"] == {"pruned": 256, "skipped_active": 0, "unknown": 0, "errors": 1}
    assert "44 are left" in said["errors"][0]
    assert len(said["pruned"]) == 256, "those that are left are not among them"


def test_word_of_a_person_that_no_letter_carries_is_refused_clearly() -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    tree.root.spawns()
    word = op("message_agent", agent_id=1, text="x" * (MESSAGE_BYTES + 1))
    seen = tree.root.submit(word, agents=(tree.target(1),))
    assert "at most 32,768 bytes" in seen.one("error")["message"]
    assert seen.decision.tree is None


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize(("letter", "count"), [("a", 60_001), ("a", 65_536), ("a", 65_540), ("é", 100_000)])
def test_result_that_no_letter_carries_reaches_the_parent_as_its_beginning(
    letter: str, count: int, parts: int
) -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    child = tree.root.spawns()
    tree.settle()
    child.begin()
    words, size = letter * count, -(-count // parts)
    said = [{"type": "output_text", "text": words[at : at + size]} for at in range(0, count, size)]
    child.item({"type": "message", "role": "assistant", "content": said})
    assert child.replayed() == child.state
    child.ends()
    told = orjson.loads(tree.root.blobs[tree.root.awaits()["$blob"]])
    heard = told["ready"][0]["completion"]["Completed"]["last_message"]
    assert heard.startswith(letter * (59_900 // len(letter.encode())))
    assert heard.endswith(f"[the first of {len(words.encode()):,} bytes; subagent_logs tells where it ended]")
    assert heard.count(letter) < 60_100 // len(letter.encode())
    assert len(heard.encode()) <= RESULT_BYTES


@pytest.mark.parametrize(("senders", "letters"), [(1, 5), (2, 3), (3, 2)])
@pytest.mark.parametrize("size", [15_000, 30_000])
def test_awaits_return_long_messages_in_parts_whoever_wrote_them(
    senders: int, letters: int, size: int
) -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    children = [tree.root.spawns(f"part {number}") for number in range(senders)]
    tree.settle()
    tree.root.begin()
    sent = []
    for number in range(letters):
        for child in children:
            sent.append((child.id, f"{child.id}.{number}"))
            child.sends(0, f"{child.id}.{number} " + "x" * size, f"m{number}")
    tree.settle()
    calls = [f"w{number}" for number in range(len(sent))]
    tree.root.calls(*calls, name="subagent_await")
    tree.root.ends()
    read, parts = [], 0
    for call_id in calls:
        if not tree.root.state.tree.inbox:
            break
        tree.root.assessed(call_id, Await(300_000))
        output = tree.root.blobs[tree.root.told(call_id)["$blob"]]
        assert len(output) <= MOST_BYTES + 4_000
        for each in orjson.loads(output)["ready"]:
            read += [(said["sender_agent_id"], said["prompt"].split()[0]) for said in each["messages"]]
        parts += 1
    assert parts == -(-len(sent) // (MOST_BYTES // size))
    assert sorted(read) == sorted(sent)
    for child in children:
        assert [words for id, words in read if id == child.id] == [w for id, w in sent if id == child.id]
    tree.check()


@pytest.mark.parametrize("length", [10, 70_000])
def test_answer_behind_a_long_one_is_the_agents_result(length: int) -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    child = tree.root.spawns()
    tree.settle()
    child.begin()
    child.item(assistant("a" * 70_000))
    child.item(assistant("b" * length))
    child.ends()
    ready = tree.root.awaits()
    told = orjson.loads(tree.root.blobs[ready["$blob"]]) if "$blob" in ready else ready
    heard = told["ready"][0]["completion"]["Completed"]["last_message"]
    assert heard.startswith("b" * min(length, 59_000))


def test_long_answer_of_a_helper_reaches_its_call_as_its_beginning() -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    asked = c.Helper(tree.spec(tree.next_id(), "read it", label="reader"), "Reads")
    assert tree.root.asks("h", "spawn_subagent", asked) is None
    tree.settle()
    helper = tree.agents[1]
    helper.begin()
    helper.answers_now("a" * 200_000)
    tree.settle()
    told = orjson.loads(tree.root.blobs[tree.root.told("h")["$blob"]])
    assert told["response"].startswith("a" * 59_900)
    assert told["response"].endswith("[the first of 200,000 bytes; subagent_logs tells where it ended]")


def test_long_answer_of_a_root_is_kept_once() -> None:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    tree.root.begin()
    seen = tree.root.item(assistant("a" * 70_000))
    assert "answer_begins" not in [entry.payload.get("kind") for entry in seen.entries]
