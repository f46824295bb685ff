"""A task with a conversation of its own: what joins it, what its end leaves, and what it keeps away from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Phase
from orchestrator.core.decide.task import INSTRUCTIONS, MOST_GOAL_BYTES
from orchestrator.core.history import message_text
from orchestrator.core.outstanding import OweRequest
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, encode
from orchestrator.runtime.model_request import known_response
from tests.core.driver import Seen, Session, assistant, op
from tests.core.tree_driver import a_family

LEFT = "The user ran a planning session for: Add login\n\nResult: ended without a plan."


def plans(session: Session, goal: str = "Add login", id: str = "p1", **fields: Any) -> Seen:
    return session.submit(op("plan", plan_request={"goal": goal}), id, **fields)


def planning(**fields: Any) -> Session:
    """A session that has talked once, with a planning session whose request is owed."""
    session = Session(**fields)
    session.say("hello", "u1")
    session.answers("hi", "resp-hello")
    plans(session)
    return session


def purpose(session: Session) -> str:
    assert session.task.request is not None
    return session.task.request.purpose


def texts_of(session: Session) -> list[str]:
    return [message_text(item) for item in session.state.history]


def test_plan_begins_with_the_conversation_its_instructions_and_its_goal() -> None:
    session = planning()
    started, entered = session.seen[-1].events
    assert (started[0], started[1]["type"], started[1]["collaboration_mode_kind"]) == (
        "p1",
        "task_started",
        "plan",
    )
    assert entered == ("p1", {"type": "entered_plan_mode", "goal": "Add login"})
    said = [message_text(item) for item in session.shown()]
    assert [*said[-5:-3], *said[-2:]] == ["hello", "hi", INSTRUCTIONS, "Add login"]
    assert "<sandbox_mode>read-only</sandbox_mode>" in said[-3]
    assert "<approval_policy>never</approval_policy>" in said[-3]
    assert texts_of(session)[-1] == "hi", "the session's own conversation has nothing of it"
    assert session.owes() == (OweRequest(),)


def test_plan_works_read_only_and_asks_nobody_for_approval_by_the_model_that_is_set_for_it() -> None:
    session = planning(rules=Rules(plan_model="gpt-5-big", plan_effort="high"))
    settings = session.task.settings
    assert (settings.model, settings.effort) == ("gpt-5-big", "high")
    assert (settings.sandbox_policy, settings.approval_policy) == ({"mode": "read-only"}, "never")
    assert session.state.settings.model != "gpt-5-big"


@pytest.mark.parametrize("goal", ["", " \n", "x" * (MOST_GOAL_BYTES + 1)])
def test_goal_that_says_nothing_or_too_much_is_an_error_and_begins_nothing(goal: str) -> None:
    session = Session()
    assert "plan_request.goal" in plans(session, goal).one("error")["message"]
    assert session.status == "idle"


def test_agent_below_the_root_plans_nothing() -> None:
    _, (agent, *_) = a_family()
    seen = agent.submit(op("plan", plan_request={"goal": "g"}), "p1")
    assert "root" in seen.one("error")["message"]


def test_answer_without_calls_ends_the_plan_and_leaves_one_message() -> None:
    session = planning()
    before = texts_of(session)
    seen = session.answers("nothing to plan")
    assert seen.types == ["token_count", "exited_plan_mode", "task_complete"]
    assert seen.one("exited_plan_mode")["plan_output"] is None
    assert seen.one("task_complete")["last_agent_message"] == "nothing to plan"
    assert "response_id" not in seen.one("task_complete")
    assert "response_id" not in seen.one("token_count")
    assert session.texts()[-1] == LEFT
    assert texts_of(session)[:-1] == before
    assert session.state == session.replayed()


def _interrupted(session: Session) -> None:
    session.interrupt()
    session.stopped()


def _replaced(session: Session) -> None:
    session.say("something else", "u2")
    session.stopped()


def _failed(session: Session) -> None:
    session.breaks("fatal", "no such model")


ENDS: Mapping[str, tuple[Callable[[Session], None], list[str]]] = {
    "interrupted": (_interrupted, ["exited_plan_mode", "turn_aborted"]),
    "replaced": (_replaced, ["exited_plan_mode", "turn_aborted", "task_started"]),
    "failed": (_failed, ["error", "exited_plan_mode", "task_complete"]),
}


@pytest.mark.parametrize("how", ENDS)
def test_plan_says_that_it_is_over_before_its_final_event_however_it_ends(how: str) -> None:
    session = planning()
    session.begin()
    session.calls("c1")
    end, types = ENDS[how]
    end(session)
    assert session.seen[-1].types[: len(types)] == types
    assert LEFT in session.texts()
    assert not [text for text in session.texts() if "turn_aborted" in text or "c1" in text]
    assert session.state == session.replayed()


def test_next_turn_shows_nothing_of_the_plans_calls_and_goes_back_to_no_turn_of_it() -> None:
    session = planning()
    session.asks_for("c1")
    session.runs("c1", "ls")
    session.finishes("c1", "secret place")
    assert session.output_of("c1") == "secret place"
    session.answers("done", "resp-plan")
    session.say("go", "u2")
    assert not [text for text in session.texts() if "c1" in text or "secret" in text]
    assert [mark for mark, _ in session.state.bookmarks] == ["resp-hello"]
    session.answers("went", "resp-2")
    seen = session.submit(op("user_input", items=[], last_response_id="resp-plan"))
    assert "error" in seen.types


def test_no_provider_goes_on_from_a_plan_and_the_turn_behind_it_goes_on_from_the_one_before() -> None:
    session = planning()
    session.begin()
    assert session.task.request is not None
    assert known_response(session.state, session.task.request) is None
    session.answers_now("x", "resp-plan")
    session.say("go", "u2")
    session.begin()
    assert session.task.request is not None
    known = known_response(session.state, session.task.request)
    assert known is not None
    assert known.id == "resp-hello"


def test_plan_is_worked_on_by_another_worker_from_a_snapshot() -> None:
    session = planning()
    session.asks_for("c1")
    session.runs("c1", "ls")
    assert decode(encode(session.state)) == session.state
    session.state = decode(encode(session.state))
    session.is_taken_over(c1="in_doubt")
    assert "in doubt" in session.output_of("c1")
    session.answers("x")
    assert LEFT in session.texts()


def test_settings_that_change_during_a_plan_are_told_behind_it_and_its_own_are_not() -> None:
    session = planning()
    session.answers("x")
    assert not [text for text in session.texts()[4:] if "environment_context" in text]
    plans(session, id="p2")
    session.submit(op("override_turn_context", cwd="/other"))
    session.answers("y")
    told = next(text for text in reversed(session.texts()) if "environment_context" in text)
    assert "/other" in told
    assert "sandbox" not in told


def test_compaction_of_a_plan_keeps_its_goal_and_leaves_the_conversation_alone() -> None:
    session = planning(rules=Rules(auto_compact_limit=100))
    before = texts_of(session)
    session.begin()
    assert purpose(session) == "compact"
    session.item(
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "sum"}]}
    )
    session.ends()
    shown = [message_text(item) for item in session.shown()]
    assert shown[-2:] == [INSTRUCTIONS, "Add login"]
    assert shown.count("Add login") == 1
    assert "read-only" in shown[0]
    assert "sum" in shown[1]
    assert texts_of(session) == before
    session.begin()
    assert purpose(session) == "turn"


@pytest.mark.parametrize("kind", ["plan", "review"])
def test_compacted_task_beside_the_conversation_is_told_once_of_where_it_works(kind: str) -> None:
    session = Session(rules=Rules(auto_compact_limit=100))
    session.say("hello", "u1")
    session.answers("hi", "resp-hello")
    asked = {"plan": {"plan_request": {"goal": "go"}}, "review": {"review_request": {"prompt": "look"}}}
    session.submit(op(kind, **asked[kind]), "t1")
    session.begin()
    if purpose(session) == "turn":
        session.calls("c1")
        session.ends()
        session.runs("c1")
        session.finishes("c1")
        session.begin()
    assert purpose(session) == "compact"
    session.item(assistant("sum"))
    session.ends()
    told = [text for text in map(message_text, session.shown()) if "<environment_context>" in text]
    assert len(told) == 1
    assert "<sandbox_mode>read-only</sandbox_mode>" in told[0]


@pytest.mark.parametrize("kind", ["plan", "review", "user"])
def test_response_that_does_not_end_the_turn_is_followed_by_another_in_every_kind_of_task(kind: str) -> None:
    session = Session()
    asked: dict[str, dict[str, Any]] = {
        "plan": {"plan_request": {"goal": "go"}},
        "review": {"review_request": {"prompt": "look"}},
        "user_input": {"items": [{"type": "text", "text": "go"}]},
    }
    name = "user_input" if kind == "user" else kind
    session.submit(op(name, **asked[name]), "t1")
    for more in (True, True, False):
        session.begin()
        session.calls()
        session.ends(end_turn=not more)
        assert (session.state.task is not None) == more


def test_window_is_the_conversations_again_when_a_plan_is_over() -> None:
    session = planning(rules=Rules(auto_compact_limit=100_000))
    tokens = session.state.tokens
    assert tokens is not None
    session.begin()
    session.item({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]})
    session.ends(usage={"input_tokens": 200_000, "total_tokens": 200_000})
    after = session.state.tokens
    assert after is not None
    assert after.last == tokens.last
    assert after.total.total_tokens == tokens.total.total_tokens + 200_000
    session.say("go", "u2")
    session.begin()
    assert purpose(session) == "turn"


def test_message_of_an_agent_waits_until_the_plan_is_over() -> None:
    tree, (agent, *_) = a_family()
    root = tree.root
    root.answers("made an agent")
    plans(root)
    root.asks_for("c1")
    agent.answers("result of the agent")
    tree.settle()
    root.assessed("c1", c.Immediate("ok"))
    root.begin()
    assert not [text for text in root.texts() if "result of the agent" in text]
    root.answers_now("no plan")
    assert root.task.kind == "user", "the result begins a task"
    root.begin()
    assert "result of the agent" in str(root.shown())


def test_input_meets_a_plan_as_it_meets_any_task_and_never_joins_it() -> None:
    session = planning(facts={"on_user_input": "steer"})
    session.begin()
    session.say("and also", "u2")
    assert session.task.stopping == "replaced"


def test_plan_waits_its_turn_and_replaces_what_runs() -> None:
    session = Session()
    session.say("work", "u1")
    session.begin()
    plans(session)
    session.stopped()
    assert (session.task.kind, session.task.id) == ("plan", "p1")
    assert session.state == session.replayed()


def test_item_of_a_plan_is_shown_as_an_item_and_what_is_said_beside_it_is_not() -> None:
    session = planning()
    session.begin()
    seen = session.item(
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so:\n<proposed_plan>\n- a\n</proposed_plan>\nwell"}],
        },
        "m1",
    )
    assert seen.types == ["item_completed"]
    assert seen.one("item_completed")["item"]["text"] == "- a"


def test_call_of_a_plan_is_proposed_there() -> None:
    session = planning()
    session.asks_for("c1")
    assert session.call("c1").phase is Phase.PROPOSED
    assert session.happens(c.CallAssessed("c1", c.Immediate("ok"))).types == ["token_count"]
