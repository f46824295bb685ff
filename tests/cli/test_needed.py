"""Requests that need a person: tree, agent, folder, since when, and what for."""

from __future__ import annotations

from orchestrator.cli.approvals import needed_lines
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.views.approvals import Asked, Needed

REQUEST = {"type": "exec_approval_request", "command": ["bash", "-lc", "npm test\nrm x"], "reason": "a\nb"}


def test_person_reads_in_two_lines_who_needs_them_and_what_for() -> None:
    asked = Asked(SessionId("s"), TreeId("t"), 3, "0/3", "c1", 1_000, REQUEST, 9)
    needed = Needed(asked, "7c1e95aa", "Fix the\nparser", "tests", "/home/me/parser")
    assert [line for line, _ in needed_lines(needed, 1_000 + 7 * 60_000)] == [
        "7m   7c1e95aa  Fix the␊parser · agent 0/3 (tests) · /home/me/parser",
        "     3:c1  run npm test␊rm x (a␊b)",
    ]
    value = needed.value()
    assert (value["title"], value["label"], value["cwd"]) == ("Fix the\nparser", "tests", "/home/me/parser")
