"""Timers whose time comes while their task is being stopped, and words that come to what was stopped."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import ClientToolWork, PlanWork, QuestionWork, UserInputWork
from orchestrator.core.calls.exec import Lasting
from tests.core.driver import Session, a_command, exec_end, function_call
from tests.core.tree_driver import a_family

QUESTION = {
    "question": "How?",
    "header": "How",
    "options": [{"label": "a", "description": "b"}, {"label": "c", "description": "d"}],
    "multiSelect": False,
}
ASKED: dict[str, Any] = {
    "question": QuestionWork((QUESTION,)),
    "input": UserInputWork(({"id": "q", "header": "Q", "question": "What?", "isOther": True},)),
    "plan": PlanWork(
        {"title": "A", "summary": "B", "plan": {"plan": [{"step": "one", "status": "pending"}]}},
    ),
    "client tool": ClientToolWork("look", "editor", 60_000, given="{}"),
}


def with_a_process(session: Session) -> None:
    """A command goes on behind its call: whoever stops the task waits for its end."""
    session.begin()
    session.item(function_call("p", "exec_command"))
    session.ends()
    session.assessed(
        "p", a_command("serve", safe=True, lasting=Lasting(tty=False, yield_ms=250, max_tokens=1_000))
    )
    session.finishes("p", "it runs", keeps=True)


def interrupted(session: Session) -> None:
    session.interrupt()
    assert session.task.stopping, "its process has not ended"


def over(session: Session) -> None:
    """The process that the interrupt kills has ended, and then nothing of the task runs any more."""
    end = exec_end("p", -1).model_copy(update={"process_id": "1"})
    session.happens(c.ProcessFinished(c.ProcessEnd(1, end)))
    session.stopped()
    assert session.state.task is None


@pytest.mark.parametrize("asked", ASKED)
def test_question_whose_time_is_over_while_its_task_is_stopped_ends_with_the_task(asked: str) -> None:
    session = Session(facts={"approval_timeout_ms": 60_000})
    session.say("go")
    with_a_process(session)
    session.asks_for("q")
    session.assessed("q", ASKED[asked])
    interrupted(session)
    session.fires("approval:q")
    assert session.call("q").phase == "asking"
    over(session)
    assert session.output_of("q") == "aborted by user"
    assert not [answer for answer in session.state.answers if answer.call_id == "q"]


def test_wait_whose_time_is_over_while_its_task_is_stopped_ends_with_the_task() -> None:
    tree, _ = a_family()
    with_a_process(tree.root)
    assert tree.root.awaits(timeout_s=300) is None
    interrupted(tree.root)
    tree.root.fires("wait:wait")
    assert tree.root.call("wait").phase == "waiting"
    over(tree.root)
    assert tree.root.output_of("wait") == "aborted by user"


def test_result_that_comes_while_a_wait_is_being_stopped_is_read_by_the_next_task() -> None:
    tree, (child,) = a_family()
    with_a_process(tree.root)
    assert tree.root.awaits(child.id) is None
    interrupted(tree.root)
    child.answers("found it")
    tree.settle()
    assert tree.root.call("wait").phase == "waiting"
    over(tree.root)
    assert tree.root.output_of("wait") == "aborted by user"
    tree.root.say("and?")
    tree.root.begin()
    assert [str(tree.root.shown()).count(words) for words in ("found it", "aborted by user")] == [1, 1]
