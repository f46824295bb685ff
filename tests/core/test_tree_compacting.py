"""Messages of agents that wait while a conversation is compacted: none of them is for the summary alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.core.calls import Await
from tests.core.driver import Seen, Session, assistant, op
from tests.core.tree_driver import Agent, TreeDriver, a_family, answers

FULL = {"input_tokens": 250_000, "output_tokens": 10, "total_tokens": 250_010}
TOO_LONG = {"codex_error_info": "context_window_exceeded"}
SUMMARY = "what was done"


def purpose(session: Session) -> str:
    assert session.task.request is not None
    return session.task.request.purpose


def waits_in(agent: Agent) -> list[str]:
    return [mail.kind for mail in agent.state.tree.inbox]


def summed_up(agent: Agent) -> Seen:
    """The request in flight is a compaction, and is answered."""
    assert purpose(agent) == "compact"
    agent.item(assistant(SUMMARY))
    return agent.ends()


def a_result(tree: TreeDriver, child: Agent, reader: Agent) -> str:
    answers(child, "the result")
    return "the result"


def a_word(tree: TreeDriver, child: Agent, reader: Agent) -> str:
    child.sends(reader.id, "a word of below")
    return "a word of below"


def a_word_of_a_person(tree: TreeDriver, child: Agent, reader: Agent) -> str:
    word = op("message_agent", agent_id=reader.id, text="a word of above")
    tree.root.submit(word, "p1", client="ann", agents=(tree.target(reader.id),))
    return "a word of above"


NEWS: dict[str, Callable[[TreeDriver, Agent, Agent], str]] = {
    "a result": a_result,
    "a word of an agent": a_word,
    "a word of a person": a_word_of_a_person,
}


def by_itself(reader: Agent) -> None:
    """The window is full behind a response whose call is done."""
    call_id = f"c{reader.state.requests + 1}"
    reader.begin()
    reader.calls(call_id)
    reader.ends(usage=FULL)
    reader.runs(call_id)
    reader.finishes(call_id)
    reader.begin()


def since_it_did_not_fit(reader: Agent) -> None:
    reader.begin()
    reader.breaks("fatal", "too long", **TOO_LONG)
    reader.begin()


COMPACTED = {"by itself": by_itself, "since it did not fit": since_it_did_not_fit}


def a_reader(which: str) -> tuple[TreeDriver, Agent, Agent]:
    """A tree with an agent at work below the reader, which is at work too."""
    tree, (child,) = a_family()
    if which == "the root":
        return tree, child, tree.root
    grandchild = child.spawns("a part of the part")
    tree.settle()
    return tree, grandchild, child


@pytest.mark.parametrize("which", ["the root", "an agent"])
@pytest.mark.parametrize("how", COMPACTED)
@pytest.mark.parametrize("what", NEWS)
def test_news_that_wait_as_a_conversation_is_compacted_are_read_whole_behind_it(
    what: str, how: str, which: str
) -> None:
    tree, child, reader = a_reader(which)
    if how == "by itself":
        reader.begin()
        reader.calls("c0")
        said = NEWS[what](tree, child, reader)
        tree.settle()
        reader.ends(usage=FULL)
        reader.runs("c0")
        reader.finishes("c0")
        reader.begin()
    else:
        reader.begin()
        said = NEWS[what](tree, child, reader)
        tree.settle()
        reader.breaks("fatal", "too long", **TOO_LONG)
        reader.begin()
    assert purpose(reader) == "compact"
    if what != "a word of a person":
        assert len(waits_in(reader)) == 1
        assert said not in str(reader.texts())
    summed_up(reader)
    reader.begin()
    assert purpose(reader) == "turn"
    assert waits_in(reader) == []
    assert said in reader.texts()[-1], "what people say is kept beside the summary"
    assert SUMMARY in str(reader.texts())
    tree.check()


@pytest.mark.parametrize("how", COMPACTED)
def test_news_that_come_while_a_conversation_is_compacted_are_read_behind_it_in_order(how: str) -> None:
    tree, (first, second) = a_family(2)
    COMPACTED[how](tree.root)
    for child in (second, first):
        answers(child, f"result of {child.id}")
        tree.settle()
    assert len(waits_in(tree.root)) == 2
    summed_up(tree.root)
    tree.root.begin()
    assert [
        f"result of {child.id}" in tree.root.texts()[place] for place, child in ((-3, second), (-1, first))
    ]
    assert "result of" not in tree.root.texts()[-5]
    tree.check()


@pytest.mark.parametrize("what", NEWS)
def test_news_that_wait_behind_a_persons_compaction_begin_a_task_with_its_end(what: str) -> None:
    tree, child, reader = a_reader("the root")
    answers(reader, "I wait for it")
    reader.compact("k")
    reader.begin()
    said = NEWS[what](tree, child, reader)
    tree.settle()
    assert purpose(reader) == "compact"
    seen = summed_up(reader)
    assert seen.types[-2:] == ["task_complete", "task_started"]
    assert reader.task.id == "auto-1"
    reader.begin()
    assert said in reader.texts()[-1]
    tree.check()


@pytest.mark.parametrize("ends", ["interrupted", "failed"])
def test_news_outlive_a_compaction_that_comes_to_nothing(ends: str) -> None:
    tree, (child,) = a_family()
    by_itself(tree.root)
    answers(child, "the result")
    tree.settle()
    if ends == "interrupted":
        tree.root.interrupt()
        tree.root.stopped()
    else:
        tree.root.ends(usage=FULL)
    assert tree.root.state.outcome == ends
    assert waits_in(tree.root) == ["completion"]
    tree.root.say("and?")
    tree.root.begin()
    assert purpose(tree.root) == "compact", "the window is as full as before"
    summed_up(tree.root)
    assert waits_in(tree.root) == ["completion"]
    tree.root.begin()
    assert "the result" in tree.root.texts()[-1]
    tree.check()


def test_each_compaction_of_a_task_leaves_the_news_to_the_request_behind_it() -> None:
    tree, children = a_family(3)
    for child in children:
        by_itself(tree.root)
        answers(child, f"result of {child.id}")
        tree.settle()
        summed_up(tree.root)
        tree.root.begin()
        assert waits_in(tree.root) == []
        assert f"result of {child.id}" in tree.root.texts()[-1]
        others = (f"result of {other.id}" for other in children if other is not child)
        assert not any(said in str(tree.root.texts()) for said in others), "what was read before is summed up"
        tree.root.calls(f"go{child.id}")
        tree.root.ends()
        tree.root.runs(f"go{child.id}")
        tree.root.finishes(f"go{child.id}")
    tree.check()


def test_interrupting_message_ends_a_compaction_and_is_read_first_behind_the_next_one() -> None:
    tree, (child, _) = a_family(2)
    grandchild = child.spawns()
    tree.settle()
    by_itself(child)
    answers(grandchild, "the result")
    tree.settle()
    tree.root.sends(child.id, "leave that", interrupt=True)
    tree.settle()
    child.stopped()
    assert child.task.id == "auto-1"
    child.begin()
    assert waits_in(child) == ["completion"]
    summed_up(child)
    child.begin()
    bridge, *told = child.texts()[-3:]
    assert "leave that" in bridge
    assert "the result" in told[1]
    tree.check()


@pytest.mark.parametrize("by", ["a message", "a person"])
def test_interrupt_of_a_compaction_that_an_interrupting_message_has_begun_ends_it(by: str) -> None:
    """The message was read with it: it begins no other task behind the one that was stopped."""
    tree, (child, _) = a_family(2)
    by_itself(child)
    tree.root.sends(child.id, "leave that", interrupt=True)
    tree.settle()
    child.stopped()
    child.begin()
    assert purpose(child) == "compact"
    if by == "a person":
        child.interrupt()
    else:
        tree.root.sends(child.id, interrupt=True)
        tree.settle()
    child.stopped()
    assert (child.state.task, child.standing) == (None, "ready")
    tree.settle()
    tree.check()


@pytest.mark.parametrize("what", NEWS)
def test_compaction_of_a_person_that_is_tried_again_swallows_no_news(what: str) -> None:
    tree, child, reader = a_reader("the root")
    answers(reader, "I wait for it")
    reader.compact("k")
    reader.begin()
    reader.breaks()
    said = NEWS[what](tree, child, reader)
    tree.settle()
    reader.begin()
    assert purpose(reader) == "compact"
    assert len(waits_in(reader)) == 1
    assert summed_up(reader).types[-2:] == ["task_complete", "task_started"]
    reader.begin()
    assert said in reader.texts()[-1]
    tree.check()


def test_await_that_a_full_window_follows_keeps_what_it_returned() -> None:
    """Returns of calls are in the conversation already; only what waits is left to the next request."""
    tree, (child, other) = a_family(2)
    tree.root.begin()
    tree.root.calls("w", name="subagent_await")
    tree.root.ends(usage=FULL)
    tree.root.assessed("w", Await(1_800_000, (child.id,)))
    answers(other, "later")
    tree.settle()
    answers(child, "the result")
    tree.settle()
    assert "the result" in tree.root.output_of("w")
    assert "later" not in tree.root.output_of("w")
    tree.root.begin()
    assert purpose(tree.root) == "compact"
    assert waits_in(tree.root) == ["completion"]
    summed_up(tree.root)
    tree.root.begin()
    assert "later" in tree.root.texts()[-1]
    tree.check()
