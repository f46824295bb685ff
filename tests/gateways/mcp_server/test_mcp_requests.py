"""Requests of agents as forms, and what is filled in as ops."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.gateways.mcp_server import MOST_SHOWN, Form, form_of, named, shown
from orchestrator.protocol import ops
from orchestrator.protocol.plans import (
    PlanApproved,
    PlanRejected,
    PlanRevised,
    QuestionsAnswered,
    QuestionsCancelled,
)
from orchestrator.requests import request_of

COMMAND = {
    "type": "exec_approval_request",
    "call_id": "c1",
    "command": ["bash", "-lc", "rm -rf build"],
    "cwd": "/work",
    "reach": {"sandboxed": False, "text": "OUTSIDE THE SANDBOX", "why": "", "says": "to clean up"},
    "parsed_cmd": [],
}
PATCH = {
    "type": "apply_patch_approval_request",
    "call_id": "p1",
    "changes": {
        "/srv/a.txt": {"type": "update", "unified_diff": "-one\n+two", "move_path": None},
        "/srv/b.txt": {"type": "add", "content": "three\n"},
        "/srv/c.txt": {"delete": {"content": "gone"}},
        "/srv/d.txt": {"type": "update", "unified_diff": "-four", "move_path": "/etc/d"},
    },
}
PLAN = {
    "type": "plan_approval_request",
    "call_id": "p1",
    "proposal": {
        "title": "A login",
        "summary": "In two steps.",
        "plan": {"plan": [{"step": "a", "status": "pending"}, {"step": "b", "status": "pending"}]},
    },
}
SERVERS = {"type": "elicitation_request", "server_name": "time", "id": "e1", "message": "May I?"}


OPENED_MS = 1_800_000_000_000


def question(**more: Any) -> dict[str, Any]:
    asked = {"header": "Colour", "question": "Which?", "options": [{"label": "red"}, {"label": "blue"}]}
    return {"type": "ask_user_question_request", "call_id": "q1", "questions": [{**asked, **more}]}


def form(request: dict[str, Any]) -> Form:
    found = form_of(request_of(request), OPENED_MS)
    assert found is not None
    return found


def test_form_about_a_command_shows_it_its_folder_and_its_reason() -> None:
    assert form(COMMAND).message.split("\n\n") == [
        "Allow this command?",
        "OUTSIDE THE SANDBOX.",
        "rm -rf build",
        "in /work",
        "the agent says: “to clean up”",
    ]


@pytest.mark.parametrize("decision", ["approved", "approved_for_session", "denied", "abort"])
def test_decision_about_a_command_or_a_patch_is_its_op(decision: str) -> None:
    for request, kind in ((COMMAND, ops.ExecApproval), (PATCH, ops.PatchApproval)):
        op = form(request).read({"decision": decision})
        assert isinstance(op, kind)
        assert op.decision == decision
        assert op.shown == ops.Shown(text=form(request).message, surface="mcp", opened_ms=OPENED_MS)


def test_decision_for_an_agent_of_the_tree_names_the_agent() -> None:
    request = {**COMMAND, "agent_id": 3, "session_id": "s3"}
    op = form(request).read({"decision": "approved"})
    assert isinstance(op, ops.ExecApproval)
    assert op.agent_id == 3
    assert named(request_of(request)) == "3:c1"


def test_form_about_a_patch_shows_every_file_with_its_text_and_where_it_goes() -> None:
    text = form(PATCH).message
    assert "update /srv/a.txt\n-one\n+two" in text
    assert "add /srv/b.txt\nthree" in text
    assert "delete /srv/c.txt\ngone" in text
    assert "update /srv/d.txt → /etc/d\n-four" in text


@pytest.mark.parametrize(
    ("content", "response"),
    [
        ({"decision": "approved"}, PlanApproved()),
        ({"decision": "rejected"}, PlanRejected()),
        ({"decision": "revise", "feedback": "shorter"}, PlanRevised(feedback="shorter")),
    ],
)
def test_plan_is_approved_rejected_or_sent_back(content: dict[str, str], response: object) -> None:
    asked = form(PLAN)
    assert asked.message == "Approve this plan?\n\nA login\n\nIn two steps.\n\n1. a\n2. b"
    op = asked.read(content)
    assert isinstance(op, ops.ResolvePlanApproval)
    assert op.response == response


@pytest.mark.parametrize(
    ("request_", "content"),
    [
        (COMMAND, {}),
        (COMMAND, {"decision": ["approved"]}),
        (COMMAND, {"decision": "approved_execpolicy_amendment"}),
        (PLAN, {"decision": "revise", "feedback": " "}),
        (PLAN, {"decision": True}),
        (question(), {}),
        (question(), {"Colour": " "}),
    ],
)
def test_contents_that_answer_nothing_are_no_answer(
    request_: dict[str, Any], content: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        form(request_).read(content)


@pytest.mark.parametrize(("said", "answer"), [("2", "blue"), ("RED", "red"), ("green", "green")])
def test_question_is_answered_by_number_by_label_or_by_own_words(said: str, answer: str) -> None:
    asked = form(question())
    assert asked.message == "Colour: Which?\n  1. red\n  2. blue"
    op = asked.read({"Colour": said})
    assert isinstance(op, ops.ResolveAskUserQuestion)
    assert isinstance(op.response, QuestionsAnswered)
    assert op.response.answers == {"Colour": answer}


def test_declined_question_is_left_without_an_answer() -> None:
    declined = form(question()).declined
    assert isinstance(declined, ops.ResolveAskUserQuestion)
    assert isinstance(declined.response, QuestionsCancelled)


def test_secret_is_not_asked_for_by_a_form() -> None:
    assert form_of(request_of(question(isSecret=True)), OPENED_MS) is None


def test_question_of_an_mcp_server_is_handed_on() -> None:
    asked = form(SERVERS)
    assert asked.message.endswith("lets nothing run in Dendro.\n\ntime: May I?")
    accepted = asked.read({})
    assert isinstance(accepted, ops.ResolveElicitation)
    assert isinstance(asked.declined, ops.ResolveElicitation)
    assert (accepted.decision, asked.declined.decision) == ("accept", "decline")


def test_text_that_would_steer_what_a_person_sees_is_shown_as_it_is() -> None:
    assert shown("rm \u202egnp.txt\x1b[2J\x07") == "rm \\u202egnp.txt\\u001b[2J\\u0007"
    assert shown("one\n\ttwo é 漢") == "one\n\ttwo é 漢"


def test_long_request_is_cut_and_says_by_how_much() -> None:
    text = shown("x" * (MOST_SHOWN + 10))
    assert text.endswith("\n… 10 characters more")
    assert len(text) < MOST_SHOWN + 40
