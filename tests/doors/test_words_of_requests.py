"""Requests in the queue, and how they ended, as clients are told of them, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.app_server.methods import approvals
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.requests import Request, request_of
from orchestrator.views.approvals import NOT_TAKEN, Asked, Decided, Needed
from tests.requests.test_answers import ASKS, LATER

ONE, ROOT = (SessionId(f"0199a2b4-0000-7000-8000-00000000000{number}") for number in (1, 2))
REACH = {
    "text": "in the sandbox, in /w/a", "sandboxed": False, "machine": "host", "why": "it writes",
    "says": "now",
}  # fmt: skip
WHY = ["asked because: it writes", "the agent says: “now”"]
LONG = "long " * 100


def asked(event: dict[str, Any], **changes: Any) -> Asked:
    known = Asked(ONE, TreeId(ROOT), 7, "0/5/7", "call-1", 11, request_of(event), 12, "gpu", "turn", "digest")
    return replace(known, **changes)


def row(event: dict[str, Any], scope: Scope = Scope.APPROVE, **changes: Any) -> dict[str, Any]:
    known = Needed(asked(event), "0199a2b4", "the title", "the label", "/folder")
    return approvals.request_row(replace(known, **changes), Principal("ann", scope=scope))


def whole(request: Request, **members: Any) -> dict[str, Any]:
    return {
        "requestId": f"{ONE}:call-1", "treeId": ROOT, "threadId": ONE, "agentId": 7, "agentPath": "0/5/7",
        "label": "the label", "title": "the title", "callId": "call-1", "subject": request.subject,
        "reason": None, "reasons": [], "where": None, "outside": False, "machine": None, "cwd": "/folder",
        "pool": "gpu", "openedAtMs": 11, "mayAnswer": True, **members,
    }  # fmt: skip


COMMAND = {
    **ASKS["command"], "cwd": "/w/a", "env": {"A": "1"}, "proposed_execpolicy_amendment": ["git", "push"],
    "command": ["git", "push", "a b"], "reach": REACH,
}  # fmt: skip
PATCH = {
    "type": "apply_patch_approval_request", "call_id": "c", "changes_left_out": 3, "cwd": "/w/b",
    "changes": {
        "/w/a": {"type": "update", "unified_diff": "-a\n+b", "move_path": "/w/c"},
        "/w/d": {"type": "add", "content": "text"},
    },
}  # fmt: skip
CHOICES = {
    "type": "ask_user_question_request", "callId": "c",
    "questions": [
        {"header": "Store", "question": "Which?", "multiSelect": True,
         "options": [{"label": "Redis", "description": "fast"}, {"label": "Files"}]},
        {"header": "Why", "question": "For what?"},
    ],
}  # fmt: skip
TOOL = {**ASKS["client_tool"], "namespace": "theirs", "client": "the editor"}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a command": (COMMAND, {
        "kind": "command", "command": ["git", "push", "a b"], "commandLine": "git push 'a b'",
        "variables": {"A": "1"}, "proposedExecpolicyAmendment": ["git", "push"], "reason": "; ".join(WHY),
        "reasons": WHY, "where": "in the sandbox, in /w/a", "outside": True, "machine": "host", "cwd": "/w/a",
    }),
    "a command without a word": ({**ASKS["command"], "cwd": None, "reach": {**REACH, "sandboxed": True,
                                                                            "why": "", "says": "",
                                                                            "machine": ""}}, {
        "kind": "command", "command": ["git", "push"], "commandLine": "git push", "variables": {},
        "proposedExecpolicyAmendment": None, "where": "in the sandbox, in /w/a",
    }),
    "a patch": (PATCH, {
        "kind": "patch", "cwd": "/w/b", "changesLeftOut": 3,
        "where": "where it would run (in /w/b) is not recorded: an older version of Dendro has asked",
        "changes": [
            {"path": "/w/a", "kind": {"type": "update", "move_path": "/w/c"}, "diff": "-a\n+b"},
            {"path": "/w/d", "kind": {"type": "add", "move_path": None}, "diff": "text"},
        ],
    }),
    "choices": (CHOICES, {
        "kind": "question",
        "questions": [
            {"id": "Store", "header": "Store", "question": "Which?", "isOther": True, "isSecret": False,
             "isMultiple": True, "isOptional": False,
             "options": [{"label": "Redis", "description": "fast"}, {"label": "Files", "description": ""}]},
            {"id": "Why", "header": "Why", "question": "For what?", "isOther": True, "isSecret": False,
             "isMultiple": False, "isOptional": False, "options": None},
        ],
    }),
    "words": (ASKS["input"], {
        "kind": "question",
        "questions": [{"id": "key", "header": "Key", "question": "Which?", "isOther": True, "isSecret": True,
                       "isMultiple": False, "isOptional": True, "options": None}],
    }),
    "a plan": (ASKS["plan"], {"kind": "plan", "proposal": ASKS["plan"]["proposal"]}),
    "a server": (ASKS["elicitation"], {
        "kind": "elicitation", "serverName": "time", "message": "May I?",
        "where": request_of(ASKS["elicitation"]).where,
    }),
    "a client's tool": (TOOL, {
        "kind": "clientTool", "tool": "look", "namespace": "theirs", "client": "the editor",
        "arguments": {"at": 1},
    }),
    "another version": (LATER, {"kind": "unknown"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_row_of_a_request_has_each_member_of_it(kind: str) -> None:
    event, members = KINDS[kind]
    request = request_of(event)
    assert row(event) == whole(request, **members)
    assert row(event, Scope.SUBMIT) == whole(request, **members, mayAnswer=False)
    cut = {"title": LONG[:200], "label": None}
    assert row(event, title=LONG, label="") == whole(request, **{**members, **cut})
    assert row(event, label=LONG)["label"] == LONG[:200]


ENDS = [
    ("approved", {"decision": "accept", "text": "allowed"}),
    ("approved_for_session", {"decision": "acceptForSession", "text": "allowed for the session"}),
    ("denied", {"decision": "decline", "text": "denied"}),
    ("abort", {"decision": "cancel", "text": "denied, and its turn aborted"}),
    ("failed", {"decision": "fail"}),
    ("revised", {"decision": "revise"}),
    ("answered", {"decision": "answer"}),
    ("word of tomorrow", {"decision": "word of tomorrow"}),
]


@pytest.mark.parametrize("at_ms", [0, 21])
@pytest.mark.parametrize("who", ["", "ann"])
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(("decision", "told"), ENDS)
def test_outcome_of_an_answer_tells_what_was_decided_by_whom_and_when(
    decision: str, told: dict[str, Any], ours: bool, who: str, at_ms: int
) -> None:
    ended = {
        "text": approvals.ended_json(decision, "", 0)["text"],
        **told,
        "who": who or None,
        "atMs": at_ms or None,
    }
    assert approvals.ended_json(decision, who, at_ms) == ended
    decided = Decided(asked(COMMAND), decision, who, ours, at_ms)
    outcome = "decided" if ours else "already"
    named = {"threadId": ONE, "callId": "call-1"}
    assert approvals._outcome(decided, ours) == {**named, "outcome": outcome, **ended}


@pytest.mark.parametrize("ours", [True, False])
def test_outcome_of_an_answer_that_decided_nothing_tells_why(ours: bool) -> None:
    named: dict[str, Any] = {"threadId": ONE, "callId": "call-1", "decision": None, "who": None}
    kept = "handed in, and kept: no worker of gpu has taken it yet"
    for decision, outcome, text, at_ms in (
        ("", "kept", kept, None),
        (NOT_TAKEN, "refused", f"{NOT_TAKEN}: no room", None),
        (WITHDRAWN, "withdrawn", "withdrawn: its turn ended first", 21),
    ):
        decided = Decided(asked(COMMAND), decision, "no room", ours, 21)
        told = approvals._outcome(decided, ours)
        assert told == {**named, "outcome": outcome, "text": text, "atMs": at_ms}
