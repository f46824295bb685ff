"""Requests to people: each kind's choices, and the operations that answers are."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.decide.answer import reply_of
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import TYPES, Given, KnownRequest, request_of

ASKS: dict[str, dict[str, Any]] = {
    "command": {"type": "exec_approval_request", "call_id": "c", "command": ["git", "push"], "cwd": "/w"},
    "patch": {
        "type": "apply_patch_approval_request",
        "call_id": "c",
        "changes": {"/w/a": {"type": "update", "unified_diff": "-a\n+b"}},
    },
    "choices": {
        "type": "ask_user_question_request",
        "callId": "c",
        "questions": [{"header": "Store", "question": "Which?", "options": [{"label": "Redis"}]}],
    },
    "input": {
        "type": "request_user_input",
        "call_id": "c",
        "questions": [{"id": "key", "header": "Key", "question": "Which?", "isSecret": True}],
    },
    "plan": {
        "type": "plan_approval_request",
        "call_id": "c",
        "proposal": {"title": "T", "summary": "S", "plan": {"plan": [{"step": "a", "status": "pending"}]}},
    },
    "elicitation": {"type": "elicitation_request", "id": "c", "server_name": "time", "message": "May I?"},
    "client_tool": {
        "type": "dynamic_tool_call_request",
        "callId": "c",
        "turnId": "t",
        "tool": "look",
        "arguments": {"at": 1},
    },
}
LATER = {"type": "request_of_a_later_version", "call_id": "c"}
PREFIX = {**ASKS["command"], "proposed_execpolicy_amendment": ["git", "push"]}


def test_every_kind_of_the_union_is_asked_here_and_has_an_event_of_its_own() -> None:
    assert {request_of(event).kind for event in ASKS.values()} == {one.kind for one in get_args(KnownRequest)}
    assert {event["type"] for event in ASKS.values()} == TYPES


@pytest.mark.parametrize("kind", ASKS)
def test_person_reads_a_heading_a_subject_and_what_it_is_about(kind: str) -> None:
    request = request_of(ASKS[kind])
    assert request.heading("agent 3")
    assert request.subject
    assert request.body or request.questions
    assert all(part.text for part in request.body)
    assert request.call_id == "c"


@pytest.mark.parametrize(
    ("kind", "given", "decision"),
    [
        ("command", Given("approved"), "approved"),
        ("command", Given("approved_for_session"), "approved_for_session"),
        ("patch", Given("denied"), "denied"),
        ("patch", Given("abort"), "abort"),
        ("choices", Given("answered", texts={"Store": ["Redis"]}), "answered"),
        ("choices", Given("cancelled"), "cancelled"),
        ("input", Given("answered", texts={"key": ["hunter2"]}), "answered"),
        ("input", Given("cancelled"), "cancelled"),
        ("plan", Given("approved"), "approved"),
        ("plan", Given("rejected"), "rejected"),
        ("plan", Given("revise", "shorter"), "revised"),
        ("elicitation", Given("accept"), "accept"),
        ("elicitation", Given("decline"), "decline"),
        ("elicitation", Given("cancel"), "cancel"),
        ("client_tool", Given("failed"), "failed"),
    ],
)
def test_choice_of_a_person_is_the_decision_of_the_log(kind: str, given: Given, decision: str) -> None:
    reply = reply_of(request_of(ASKS[kind]).answer(given))
    assert (reply.id, reply.decision) == ("c", decision)


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("command", Given("yes"), "decision: one of approved, approved_for_session, denied, abort"),
        ("command", Given("amendment"), "decision: one of"),
        ("patch", Given("approved", "but slowly"), "text: approved takes none"),
        ("patch", Given("approved", texts={"a": ["b"]}), "it asks no questions"),
        ("choices", Given("answered"), "no answer to 'Store'"),
        ("choices", Given("answered", texts={"Disk": ["a"]}), "nothing was asked under 'Disk'"),
        ("choices", Given("cancelled", texts={"Store": ["Redis"]}), "answers none of them"),
        ("input", Given("answered", texts={"key": [" "]}), "the answer to 'key' is empty"),
        ("plan", Given("revise", " "), "feedback: it is blank"),
        ("plan", Given("approved", "shorter"), "text: approved takes none"),
        ("elicitation", Given("approved"), "decision: one of accept, decline, cancel"),
        ("client_tool", Given("approved"), "decision: one of failed"),
    ],
)
def test_answer_that_does_not_fit_is_refused_and_the_person_reads_why(
    kind: str, given: Given, told: str
) -> None:
    with pytest.raises(DoesNotAnswer, match=told):
        request_of(ASKS[kind]).answer(given)


def test_person_allows_a_prefix_where_one_is_proposed_and_it_is_remembered() -> None:
    request = request_of(PREFIX)
    lasting = [choice.word for choice in request.choices if choice.lasts]
    assert lasting == ["amendment", "approved_for_session"]
    assert "git" in reply_of(request.answer(Given("amendment"))).decision


@pytest.mark.parametrize("kind", ASKS)
def test_refusal_of_any_kind_is_an_answer(kind: str) -> None:
    assert reply_of(request_of(ASKS[kind]).refused()).decision in (
        *("denied", "cancelled", "rejected", "decline", "failed"),
    )


def test_plan_that_is_allowed_for_a_session_is_refused_and_not_rejected() -> None:
    with pytest.raises(DoesNotAnswer, match="holds for no session"):
        request_of(ASKS["plan"]).decided(ReviewDecision.APPROVED_FOR_SESSION)


def test_request_of_a_later_version_can_be_denied_and_not_allowed() -> None:
    request = request_of(LATER)
    assert request.subject == "request_of_a_later_version, which this version does not know"
    assert reply_of(request.answer(Given("denied"))).decision == "denied"
    with pytest.raises(DoesNotAnswer, match="newer version"):
        request.decided(ReviewDecision.APPROVED)


def test_answer_names_the_agent_at_the_root_and_not_in_its_own_session() -> None:
    request = request_of(ASKS["command"]).asked_by(3, "s3", "0/3")
    assert reply_of(request.answer(Given("approved"))).agent_id == 3
    assert reply_of(request.in_own_session().answer(Given("approved"))).agent_id is None
