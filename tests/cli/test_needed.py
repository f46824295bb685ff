"""Requests that need a person: tree, agent, folder, since when, and what for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from orchestrator.cli.approvals import Words, needed_lines
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol.policy import ApprovedExecpolicyAmendment
from orchestrator.requests import request_of
from orchestrator.terminal.faults import Fault
from orchestrator.views.approvals import Asked, Needed
from tests.cli.test_live import FORGED, TOLD, forged, told_event

REACH = {"sandboxed": False, "text": "OUTSIDE THE SANDBOX, in /w", "why": "a\nb", "says": "c\nd"}
REQUEST = {"type": "exec_approval_request", "command": ["bash", "-lc", "npm test\nrm x"], "reach": REACH}


def test_person_reads_who_needs_them_what_for_and_where_it_would_run() -> None:
    asked = Asked(SessionId("s"), TreeId("t"), 3, "0/3", "c1", 1_000, request_of(REQUEST), 9)
    needed = Needed(asked, "7c1e95aa", "Fix the\nparser", "tests", "/home/me/parser")
    assert [line for line, _ in needed_lines(needed, 1_000 + 7 * 60_000)] == [
        "7m   7c1e95aa  Fix the␊parser · agent 0/3 (tests) · /home/me/parser",
        "     3:c1  run npm test␊rm x",
        "       OUTSIDE THE SANDBOX, in /w",
        "       asked because: a␊b",
        "       the agent says: “c␊d”",
    ]
    value = needed.value()
    assert (value["where"], value["sandboxed"]) == ("OUTSIDE THE SANDBOX, in /w", False)
    assert (value["title"], value["label"], value["cwd"]) == ("Fix the\nparser", "tests", "/home/me/parser")


@pytest.mark.parametrize(
    ("variables", "before"),
    [
        ({}, ""),
        ({"A": ""}, "A='' "),
        ({"A": "x"}, "A=x "),
        ({"A": "1 2", "B": "", "C": "y"}, "A='1 2' B='' C=y "),
    ],
)
def test_person_reads_each_variable_of_a_command_once_before_it(
    variables: dict[str, str], before: str
) -> None:
    asked = open_request("c1", {**REQUEST, "command": ["make"], "env": variables})
    lines = [line for line, _ in needed_lines(Needed(asked, "7c1e95aa", "", "", "/w"), 2_000)]
    assert lines[1] == f"     3:c1  run {before}make"


@pytest.mark.parametrize("kind", TOLD)
def test_each_line_of_a_request_in_the_list_is_one_whatever_its_texts_are(kind: str) -> None:
    event = told_event(kind)
    for each in forged(event):
        asked = replace(open_request("c1", {**each, "type": event["type"]}), call_id=FORGED)
        lines = [line for line, _ in needed_lines(Needed(asked, "7c1e95aa", FORGED, FORGED, FORGED), 2_000)]
        assert not [line for line in lines if "\n" in line], each


PREFIX = {**REQUEST, "command": ["npm", "test"], "proposed_execpolicy_amendment": ["npm", "te\x1bst"]}


def open_request(call: str, request: Mapping[str, object], agent: int = 3) -> Asked:
    return Asked(SessionId("s"), TreeId("t"), agent, f"0/{agent}", call, 1_000, request_of(request), 9)


OLD = {"type": "exec_approval_request", "command": ["make"], "cwd": "/w", "reason": "Build it."}


@pytest.mark.parametrize(
    ("stored", "where", "outside"),
    [
        (False, "OUTSIDE THE SANDBOX, in /w: an older version has asked, and no more is recorded", True),
        (True, "in the sandbox, in /w: an older version has asked, and no more is recorded", False),
        (None, "where it would run (in /w) is not recorded: an older version of Dendro has asked", False),
    ],
)
def test_request_of_an_older_version_says_what_its_queue_has(
    stored: bool | None, where: str, outside: bool
) -> None:
    asked = Asked(SessionId("s"), TreeId("t"), 3, "0/3", "c1", 1_000, request_of(OLD, stored), 9)
    lines = [line.strip() for line, _ in needed_lines(Needed(asked, "7c1e95aa", "", "", "/w"), 2_000)]
    assert lines[1:] == ["3:c1  run make", where, "reason given: Build it."]
    assert (asked.request.outside, asked.value()["sandboxed"]) == (outside, stored)


def test_person_reads_which_prefix_an_answer_may_allow() -> None:
    needed = Needed(open_request("c1", PREFIX), "7c1e95aa", "", "", "/w")
    *_, last = (line for line, _ in needed_lines(needed, 2_000))
    assert last == "       --amend 3:c1 allows whatever begins with npm 'te␛st'"


PATCH = {
    "type": "apply_patch_approval_request",
    "changes": {
        "/w/a": {"type": "update", "unified_diff": "", "move_path": "/etc/b"},
        "/w/c": {"type": "delete"},
    },
    "reach": {"sandboxed": False, "text": "OUTSIDE THE SANDBOX, in /w: Dendro writes /etc/b"},
    "grant_root": "/etc",
}


def test_person_reads_what_an_answer_for_the_session_lets_be_written_and_where_files_are_moved() -> None:
    needed = Needed(open_request("c1", PATCH), "7c1e95aa", "", "", "/w")
    assert [line.strip() for line, _ in needed_lines(needed, 2_000)][1:] == [
        "3:c1  change /w/a → /etc/b /w/c",
        "OUTSIDE THE SANDBOX, in /w: Dendro writes /etc/b",
        "allowed for the session, commands and patches may write all below /etc, too",
    ]
    assert "may write all below /etc, too" in request_of(PATCH).told, (
        "clients that show a reason alone say it, too"
    )


def test_person_allows_a_prefix_by_the_call_that_proposes_it() -> None:
    asked = [open_request("c1", PREFIX), open_request("c2", REQUEST), open_request("c1", PREFIX, agent=4)]
    ((one, decision),) = Words.of([], [], ["3:c1"]).amendments(asked)
    assert isinstance(decision, ApprovedExecpolicyAmendment)
    allowed = decision.approved_execpolicy_amendment.proposed_execpolicy_amendment
    assert (one.call, allowed) == ("3:c1", ("npm", "te\x1bst"))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("c1", "2 calls of that name wait meant by 'c1'"),
        ("c9", "no open request is meant by 'c9'"),
        ("npm*", "no open request is meant by 'npm*'"),
        ("c2", "3:c2 proposes no prefix: --allow 3:c2 allows it alone"),
    ],
)
def test_call_that_proposes_no_single_prefix_allows_none(call: str, told: str) -> None:
    asked = [open_request("c1", PREFIX), open_request("c2", REQUEST), open_request("c1", PREFIX, agent=4)]
    with pytest.raises(Fault, match=re.escape(told)):
        Words.of([], [], [call]).amendments(asked)
