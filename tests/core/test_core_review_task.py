"""A code review as a task: what it is shown, what its ends tell, and what the conversation has of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.compaction import newest_texts, user_turns
from orchestrator.core.decide.task import TOO_LONG
from orchestrator.core.entries import item
from orchestrator.core.history import message_text, opened_message
from orchestrator.core.outstanding import OweRequest
from orchestrator.core.review import REVIEW_BRIEF, REVIEW_TAG, review_message, reviewed
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, encode
from orchestrator.rollouts.session_summary import title
from orchestrator.runtime.model_request import known_response
from tests.core.driver import Seen, Session, a_command, assistant, function_call, op, sandboxed
from tests.core.test_core_review_answer import ANSWER
from tests.core.tree_driver import a_family

TEXT = orjson.dumps(ANSWER).decode()
REQUEST = {"prompt": "look at a.py", "user_facing_hint": "a"}
UNCOMMITTED = {"target": {"type": "uncommittedChanges"}}


def reviews(session: Session, request: Mapping[str, Any] = REQUEST, id: str = "r1", **fields: Any) -> Seen:
    return session.submit(op("review", review_request=dict(request)), id, **fields)


def reviewing(request: Mapping[str, Any] = REQUEST, **fields: Any) -> Session:
    """A session that has talked once, with a review whose request is owed."""
    session = Session(**fields)
    session.say("hello", "u1")
    session.answers("hi", "resp-hello")
    reviews(session, request)
    return session


def texts_of(session: Session) -> list[str]:
    return [message_text(item) for item in session.state.history]


def test_review_begins_blank_with_the_environment_the_brief_and_the_prompt() -> None:
    session = reviewing()
    assert session.seen[-1].types == ["task_started", "entered_review_mode"]
    assert session.seen[-1].events[1] == ("r1", {"type": "entered_review_mode", **REQUEST})
    environment, *rest = session.shown()
    assert "read-only" in message_text(environment)
    assert [message_text(item) for item in rest] == [REVIEW_BRIEF, "look at a.py"]
    assert [item["role"] for item in session.shown()] == ["user", "developer", "user"]
    assert texts_of(session)[-1] == "hi", "the session's own conversation has nothing of it"
    assert session.owes() == (OweRequest(),)


def test_target_is_told_to_clients_as_it_came_and_to_the_reviewer_in_words() -> None:
    session = reviewing({"target": {"type": "commit", "sha": "abc", "title": None}})
    entered = session.seen[-1].one("entered_review_mode")
    assert entered == {
        "type": "entered_review_mode",
        "target": {"type": "commit", "sha": "abc", "title": None},
    }
    assert session.texts()[-1].endswith("Review the changes that commit abc makes.")


def test_conversation_knows_of_a_review_that_has_found_nothing() -> None:
    session = reviewing()
    session.answers(orjson.dumps({**ANSWER, "findings": []}).decode())
    told = texts_of(session)[-1]
    assert told.startswith(REVIEW_TAG)
    assert "It was asked: look at a.py" in told
    assert "It has no findings." in told


def test_review_reads_only_asks_nobody_and_has_the_model_that_is_set_for_it() -> None:
    session = reviewing(
        rules=Rules(review_model="gpt-5-big"), settings={"sandbox_policy": {"mode": "danger-full-access"}}
    )
    settings = session.task.settings
    assert settings.model == "gpt-5-big"
    assert (settings.sandbox_policy, settings.approval_policy) == ({"mode": "read-only"}, "never")
    assert session.state.settings.model != "gpt-5-big"
    session.answers(TEXT)
    assert session.state.settings.sandbox_policy == {"mode": "danger-full-access"}


@pytest.mark.parametrize("request_", [{"prompt": " "}, {"target": {"type": "baseBranch", "branch": ""}}])
def test_request_that_says_nothing_is_an_error_and_ends_nothing(request_: dict[str, Any]) -> None:
    session = Session()
    session.say("work", "u1")
    session.begin()
    assert "review_request." in reviews(session, request_).one("error")["message"]
    assert session.task.stopping is None


def test_agent_below_the_root_reviews_nothing() -> None:
    _, (agent, *_) = a_family()
    assert "root" in reviews(agent).one("error")["message"]


def test_answer_ends_the_review_with_its_findings_and_leaves_one_message() -> None:
    session = reviewing()
    before = texts_of(session)
    session.begin()
    said = session.item(assistant(TEXT), "m1")
    assert said.types == [], "no message of the reviewer is told"
    seen = session.ends("resp-review")
    assert seen.types == ["token_count", "exited_review_mode", "task_complete"]
    output = seen.one("exited_review_mode")["review_output"]
    assert output["overall_correctness"] == "patch is correct"
    assert output["findings"][0]["code_location"]["absolute_file_path"] == "/repo/src/a.py"
    assert seen.one("task_complete") == {"type": "task_complete", "last_agent_message": TEXT}
    assert "response_id" not in seen.one("token_count")
    (left,) = texts_of(session)[len(before) :]
    assert left.startswith(REVIEW_TAG)
    assert "It was asked: look at a.py" in left
    assert "t — /repo/src/a.py:3-5\nb" in left
    assert session.state == session.replayed()


def test_text_without_json_is_the_explanation() -> None:
    seen = reviewing().answers("no JSON")
    assert seen.one("exited_review_mode")["review_output"] == {
        "findings": [],
        "overall_correctness": "",
        "overall_explanation": "no JSON",
        "overall_confidence_score": 0.0,
    }


def test_findings_that_do_not_fit_are_counted_in_a_warning() -> None:
    seen = reviewing().answers(orjson.dumps({**ANSWER, "findings": [{"title": "t"}, "x"]}).decode())
    assert seen.types == ["token_count", "warning", "exited_review_mode", "task_complete"]
    assert seen.one("warning")["message"].startswith("2 findings of the review do not fit")


def test_answer_that_no_rule_can_read_any_more_says_so() -> None:
    seen = reviewing().answers(orjson.dumps({**ANSWER, "overall_explanation": "x" * 99_999}).decode())
    assert seen.one("exited_review_mode")["review_output"]["overall_explanation"] == TOO_LONG


def _interrupted(session: Session) -> None:
    session.interrupt()
    session.stopped()


def _ended_by_input(session: Session) -> None:
    session.say("something else", "u2")
    session.stopped()


def _ended_by_compact(session: Session) -> None:
    session.compact("c2")
    session.stopped()


def _ended_by_a_plan(session: Session) -> None:
    session.submit(op("plan", plan_request={"goal": "g"}), "p2")
    session.stopped()


def _failed(session: Session) -> None:
    session.breaks("fatal", "no such model")


ENDS: Mapping[str, tuple[Callable[[Session], None], list[str], dict[str, Any]]] = {
    "interrupted": (
        _interrupted,
        ["exited_review_mode", "turn_aborted"],
        {"type": "turn_aborted", "reason": "interrupted"},
    ),
    "input": (
        _ended_by_input,
        ["exited_review_mode", "turn_aborted", "task_started", "user_message"],
        {"type": "turn_aborted", "reason": "review_ended"},
    ),
    "compact": (
        _ended_by_compact,
        ["exited_review_mode", "turn_aborted", "task_started"],
        {"type": "turn_aborted", "reason": "review_ended"},
    ),
    "plan": (
        _ended_by_a_plan,
        ["exited_review_mode", "turn_aborted", "task_started", "entered_plan_mode"],
        {"type": "turn_aborted", "reason": "review_ended"},
    ),
    "failed": (
        _failed,
        ["error", "exited_review_mode", "task_complete"],
        {"type": "task_complete", "last_agent_message": None},
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_review_says_that_it_is_over_before_its_final_event_however_it_ends(how: str) -> None:
    session = reviewing()
    before = texts_of(session)
    session.begin()
    session.calls("c1")
    end, types, final = ENDS[how]
    end(session)
    seen = session.seen[-1]
    assert seen.types == types
    assert seen.one("exited_review_mode") == {"type": "exited_review_mode", "review_output": None}
    assert ("r1", final) in seen.events
    assert texts_of(session)[: len(before)] == before
    assert not [text for text in texts_of(session) if REVIEW_TAG in text or "turn_aborted" in text]
    assert session.state == session.replayed()


def test_another_review_ends_the_first_as_input_does() -> None:
    session = reviewing()
    session.begin()
    reviews(session, UNCOMMITTED, "r2")
    seen = session.stopped()
    assert seen.one("turn_aborted")["reason"] == "review_ended"
    assert session.task.id == "r2"


def test_input_under_steer_ends_a_review_and_does_not_join_it() -> None:
    session = reviewing(facts={"on_user_input": "steer"})
    session.begin()
    session.say("and also", "u2")
    assert session.task.stopping == "replaced"


def test_review_waits_its_turn_and_replaces_what_runs() -> None:
    session = Session()
    session.say("work", "u1")
    session.begin()
    reviews(session)
    seen = session.stopped()
    assert seen.one("turn_aborted")["reason"] == "replaced"
    assert (session.task.kind, session.task.id) == ("review", "r1")
    assert session.state == session.replayed()


def test_next_turn_has_the_reviews_message_and_nothing_of_its_commands() -> None:
    session = reviewing()
    session.asks_for("c1")
    seen = session.runs("c1", "git", "diff")
    assert "exec_command_begin" in seen.types
    session.finishes("c1", "secret place")
    session.answers(TEXT, "resp-review")
    session.say("go", "u2")
    assert not [text for text in session.texts() if "c1" in text or "secret" in text]
    assert [mark for mark, _ in session.state.bookmarks] == ["resp-hello"]
    session.begin()
    assert session.task.request is not None
    known = known_response(session.state, session.task.request)
    assert known is not None
    assert known.id == "resp-hello"


def test_what_was_approved_for_the_session_takes_no_command_of_a_review_out_of_its_sandbox() -> None:
    session = Session()
    session.say("work", "u1")
    session.asks_for("c1")
    session.assessed("c1", a_command("make", escalated=True))
    session.decides("c1", "approved_for_session")
    assert not sandboxed(session.call("c1"))
    session.finishes("c1")
    session.answers("done")
    reviews(session)
    session.asks_for("c2")
    assert "exec_approval_request" not in session.assessed("c2", a_command("make")).types
    assert sandboxed(session.call("c2"))


@pytest.mark.parametrize("escalated", [True, False])
def test_reviewer_that_asks_for_more_than_reading_is_refused_and_nobody_is_asked(escalated: bool) -> None:
    session = reviewing()
    session.asks_for("c1")
    command = a_command("make", escalated=True) if escalated else a_command("make", dangerous=True)
    seen = session.assessed("c1", command)
    assert "exec_approval_request" not in seen.types
    assert session.task.call("c1") is not None
    assert not session.task.running


def test_review_is_worked_on_by_another_worker_from_a_snapshot() -> None:
    session = reviewing()
    session.asks_for("c1")
    session.runs("c1", "git", "diff")
    session.state = decode(encode(session.state))
    session.is_taken_over(c1="in_doubt")
    assert "in doubt" in session.output_of("c1")
    seen = session.answers(TEXT)
    assert seen.types[-2:] == ["exited_review_mode", "task_complete"]


def test_compaction_of_a_review_keeps_brief_and_prompt_and_leaves_the_conversation_alone() -> None:
    session = reviewing(rules=Rules(auto_compact_limit=100))
    before = texts_of(session)
    session.asks_for("c1")
    session.runs("c1", "git", "diff")
    session.finishes("c1", "a long diff")
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"
    session.item(assistant("sum"))
    session.ends()
    shown = [message_text(item) for item in session.shown()]
    assert shown[-2:] == [REVIEW_BRIEF, "look at a.py"]
    assert "read-only" in shown[0]
    assert "sum" in shown[1]
    assert "a long diff" not in str(session.shown())
    assert texts_of(session) == before
    session.answers(TEXT)
    assert session.state == session.replayed()


def test_full_window_of_the_conversation_is_not_the_reviews() -> None:
    session = Session(rules=Rules(auto_compact_limit=100))
    session.say("hello", "u1")
    session.answers("hi")
    tokens = session.state.tokens
    assert tokens is not None
    assert tokens.last.total_tokens >= 100
    reviews(session)
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "turn"
    session.answers_now(TEXT)
    after = session.state.tokens
    assert after is not None
    assert after.last == tokens.last
    assert after.total.total_tokens == 2 * tokens.total.total_tokens
    session.say("go", "u2")
    session.begin()
    assert session.state.task is not None
    request = session.state.task.request
    assert request is not None
    assert request.purpose == "compact"


def test_message_of_a_review_is_no_turn_that_a_person_said() -> None:
    session = reviewing()
    session.answers(TEXT)
    session.submit(op("thread_rollback", num_turns=1))
    assert not [text for text in session.texts() if "hello" in text or REVIEW_TAG in text]


def test_compaction_keeps_no_review_among_the_texts_of_people() -> None:
    session = reviewing()
    session.answers(TEXT)
    session.compact()
    session.begin()
    session.item(assistant("sum"))
    session.ends()
    assert session.state.kept_user_texts == ("hello",)


@pytest.mark.parametrize("findings", [1, 45, 60, 90])
def test_conversation_knows_the_message_of_a_review_however_many_findings_it_has(findings: int) -> None:
    place = {"absolute_file_path": "a.py", "line_range": {"start": 1, "end": 2}}
    finding = {"title": "t", "body": "b" * 900, "confidence_score": 1, "priority": 1, "code_location": place}
    read = reviewed(orjson.dumps({**ANSWER, "findings": [finding] * findings}).decode(), "/")
    session = Session()
    session.say("hello", "u1")
    session.answers("hi", "resp-hello")
    session.record(item(opened_message(*review_message("look at a.py", read.output))))
    assert len(read.output.findings) == findings
    session.say("and now?", "u2")
    assert user_turns(session.state.history) == [0, 3]
    session.answers("this")
    assert newest_texts(session.state) == ("hello", "and now?")
    assert title(session.state) == "hello"


def test_items_of_a_review_are_told_but_its_message() -> None:
    session = reviewing(settings={"item_events": "all"})
    session.begin()
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    seen = session.item(thought, "i1")
    assert "agent_reasoning" in seen.types
    assert [passing.event.entry.payload["item"]["type"] for passing in seen.decision.passing] == ["Reasoning"]
    assert not session.item(assistant(TEXT), "m1").decision.passing
    session.item(function_call("c1"))
    session.ends()
    assert session.owes()


def test_message_of_an_agent_waits_until_the_review_is_over() -> None:
    tree, (agent, *_) = a_family()
    root = tree.root
    root.answers("made an agent")
    reviews(root)
    root.asks_for("c1")
    agent.answers("result of the agent")
    tree.settle()
    root.assessed("c1", c.Immediate("ok"))
    root.begin()
    assert not [text for text in root.texts() if "result of the agent" in text]
    root.answers_now(TEXT)
    assert root.task.kind == "user", "the result begins a task"
