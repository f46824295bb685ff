"""Each kind of request as clients of the queue have it, and what each answer to it is."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.decide.call import reply_of
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.app_server.messages import Code, RpcError
from orchestrator.gateways.app_server.methods.approvals import (
    GivenAnswer,
    _op,
    decision_word,
    kind_of,
    request_row,
)
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.requests import request_of
from orchestrator.views.approvals import Asked, Needed
from tests.requests.test_answers import ASKS, LATER, PREFIX

EVENTS = {**ASKS, "prefix": PREFIX, "later": LATER}
SESSION = "01a1f848-0000-7000-8000-000000000000"


def asked(kind: str) -> Asked:
    event = EVENTS[kind]
    return Asked(SessionId(SESSION), TreeId(SESSION), 0, "0", "c", 5, request_of(event), 1, "default")


def row(kind: str, title: str = "T", label: str = "") -> dict[str, Any]:
    return request_row(Needed(asked(kind), "01a1f848", title, label, "/w"), Principal("ann"))


def decided(kind: str, **said: Any) -> str:
    given = GivenAnswer.model_validate(said)
    return decision_word(reply_of(_op(0, asked(kind), given)).decision)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("command", {"kind": "command", "command": ["git", "push"], "commandLine": "git push", "cwd": "/w"}),
        ("prefix", {"kind": "command", "proposedExecpolicyAmendment": ["git", "push"]}),
        (
            "patch",
            {
                "kind": "patch",
                "changes": [
                    {"path": "/w/a", "kind": {"type": "update", "move_path": None}, "diff": "-a\n+b"}
                ],
                "changesLeftOut": 0,
            },
        ),
        ("choices", {"kind": "question"}),
        ("input", {"kind": "question"}),
        ("plan", {"kind": "plan", "subject": "T"}),
        ("elicitation", {"kind": "elicitation", "serverName": "time", "message": "May I?"}),
        ("client_tool", {"kind": "clientTool", "tool": "look", "arguments": {"at": 1}}),
        ("later", {"kind": "unknown"}),
    ],
)
def test_row_of_each_kind_names_what_it_is_about(kind: str, named: dict[str, Any]) -> None:
    found = row(kind)
    assert {name: found[name] for name in named} == named
    assert found["subject"]
    assert kind_of(asked(kind).request) == found["kind"]


def test_question_is_told_with_its_options_and_whether_it_is_secret() -> None:
    (choice,), (secret,) = row("choices")["questions"], row("input")["questions"]
    assert choice["id"] == "Store"
    assert choice["options"] == [{"label": "Redis", "description": ""}]
    assert (secret["id"], secret["isSecret"], secret["isOptional"], secret["options"]) == (
        "key",
        True,
        True,
        None,
    )


def test_title_and_label_that_an_agent_chose_are_bounded() -> None:
    found = row("command", "t" * 10_000, "l" * 10_000)
    assert (len(found["title"]), len(found["label"])) == (200, 200)
    assert row("command")["label"] is None


@pytest.mark.parametrize(
    ("kind", "said", "decision"),
    [
        ("command", {"decision": "accept"}, "accept"),
        ("command", {"decision": "acceptForSession"}, "acceptForSession"),
        ("command", {"decision": "decline"}, "decline"),
        ("command", {"decision": "cancel"}, "cancel"),
        ("prefix", {"decision": "acceptWithExecpolicyAmendment"}, "acceptWithExecpolicyAmendment"),
        ("patch", {"decision": "acceptForSession"}, "acceptForSession"),
        ("choices", {"answers": {"Store": ["Redis"]}}, "answer"),
        ("choices", {"answers": {"Store": {"answers": ["Redis"]}}}, "answer"),
        ("choices", {"decision": "decline"}, "cancel"),
        ("input", {"answers": {"key": ["hunter2"]}}, "answer"),
        ("input", {"decision": "cancel"}, "cancel"),
        ("plan", {"decision": "accept"}, "accept"),
        ("plan", {"decision": "decline"}, "decline"),
        ("plan", {"feedback": "smaller steps"}, "revise"),
        ("elicitation", {"decision": "accept"}, "accept"),
        ("elicitation", {"decision": "decline"}, "decline"),
        ("elicitation", {"decision": "cancel"}, "cancel"),
        ("client_tool", {"decision": "decline"}, "fail"),
        ("client_tool", {"decision": "cancel"}, "fail"),
        ("later", {"decision": "decline"}, "decline"),
        ("later", {"decision": "cancel"}, "decline"),
    ],
)
def test_answer_becomes_the_decision_that_it_says(kind: str, said: dict[str, Any], decision: str) -> None:
    assert decided(kind, **said) == decision


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("command", {"answers": {"a": ["b"]}}),
        ("command", {"feedback": "no"}),
        ("patch", {"decision": "acceptWithExecpolicyAmendment"}),
        ("choices", {"decision": "accept"}),
        ("choices", {"answers": {}}),
        ("choices", {"answers": {"Store": "Redis"}}),
        ("choices", {"answers": {"Store": [7]}}),
        ("choices", {"feedback": "no"}),
        ("input", {"decision": "acceptForSession"}),
        ("plan", {"decision": "acceptForSession"}),
        ("plan", {"feedback": ""}),
        ("plan", {"answers": {"plan": ["Approve"]}}),
        ("elicitation", {"decision": "acceptForSession"}),
        ("elicitation", {"feedback": "x"}),
        ("client_tool", {"decision": "accept"}),
        ("later", {"decision": "accept"}),
        ("later", {"decision": "acceptForSession"}),
        ("command", {}),
        ("command", {"decision": "accept", "feedback": "x"}),
    ],
)
def test_answer_that_a_kind_does_not_take_is_an_error_of_its_params(kind: str, said: dict[str, Any]) -> None:
    with pytest.raises(RpcError, match=r"requests\.3\.answer: ") as refused:
        _op(3, asked(kind), GivenAnswer.model_validate(said))
    assert refused.value.code is Code.BAD_PARAMS


def test_person_who_may_not_approve_is_told_so_in_every_row() -> None:
    one = Needed(asked("command"), "01a1f848", "T", "", "/w")
    assert request_row(one, Principal("bo", scope=Scope.SUBMIT))["mayAnswer"] is False
