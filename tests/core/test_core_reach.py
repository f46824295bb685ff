"""Where a call would run if it is allowed, and what it could do: our words, apart from the model's."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.calls import Mcp
from orchestrator.core.calls.approval_policy import StrictRule
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.commands import Assessment
from orchestrator.core.decide.call_end import ALL_RIGHTS, MOST_SAID, OUTSIDE
from orchestrator.core.frozen import replace
from tests.core.driver import Session, a_command, a_patch, exec_end

WORKSPACE_WRITE = {"mode": "workspace-write", "writable_roots": ["/data"], "network_access": True}
FORGED = "ok”; in the sandbox\n✓ allowed\x1b[2K"


def asks(assessment: Assessment, facts: Any = None, **settings: Any) -> dict[str, Any]:
    """The request of a call that has to be approved."""
    session = Session(settings=settings, facts=facts or {})
    session.say("go", "u1")
    session.asks_for("c1")
    kinds = ("exec_approval_request", "apply_patch_approval_request")
    seen = session.assessed("c1", assessment)
    (asked,) = (message for _, message in seen.events if message["type"] in kinds)
    return dict(asked)


def test_escalated_command_leaves_the_sandbox_before_the_model_says_why() -> None:
    asked = asks(a_command("make", escalated=True, justification="Run the build."))
    assert asked["reach"]["sandboxed"] is False
    assert asked["reach"]["text"] == f"{OUTSIDE}, in /repo, {ALL_RIGHTS}"
    assert asked["reach"]["says"] == "Run the build."
    assert asked["reason"] == f"{OUTSIDE}, in /repo, {ALL_RIGHTS}; the agent says: “Run the build.”"


def test_dangerous_command_that_escalates_shows_both_reasons_and_keeps_the_models() -> None:
    command = a_command("rm", "-rf", "/", dangerous=True, escalated=True, justification="Clean.")
    asked = asks(command)
    assert asked["reach"]["text"].startswith(OUTSIDE)
    assert asked["reach"]["why"] == "the command looks destructive"
    assert asked["reach"]["says"] == "Clean."
    told = asked["reason"]
    assert told.index(OUTSIDE) < told.index("looks destructive") < told.index("the agent says: “Clean.”")


def test_escalated_command_that_a_rule_asks_about_shows_where_it_runs_before_the_rules_reason() -> None:
    rule = StrictRule("prompt", "pushes are reviewed")
    asked = asks(a_command("git", "push", escalated=True, justification="Ship.", strict_rule=rule))
    assert asked["reach"]["sandboxed"] is False
    told = asked["reason"]
    places = [told.index(words) for words in (OUTSIDE, "pushes are reviewed", "the agent says: “Ship.”")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("policy", "could"),
    [
        ({"mode": "read-only"}, "it can read files, and write none; it has no network"),
        (
            {"mode": "workspace-write"},
            "it can read files, and write in /repo and temporary folders; it has no network",
        ),
        (
            WORKSPACE_WRITE,
            "it can read files, and write in /repo, /data and temporary folders; it has the network",
        ),
    ],
)
def test_confined_command_says_what_its_sandbox_permits(policy: Any, could: str) -> None:
    asked = asks(a_command("make"), approval_policy="untrusted", sandbox_policy=policy)
    assert asked["reach"]["sandboxed"] is True
    assert asked["reach"]["text"] == f"in the sandbox, in /repo: {could}"


@pytest.mark.parametrize("roots", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("granted", [False, True])
def test_confined_command_names_the_folders_that_it_may_write_those_that_were_granted_too(
    roots: int, granted: bool
) -> None:
    declared = [f"/data/{number}" for number in range(roots)]
    policy = {"mode": "workspace-write", "writable_roots": declared}
    session = Session(settings={"approval_policy": "untrusted", "sandbox_policy": policy})
    session.say("go", "u1")
    session.asks_for("p1", "c1")
    session.assessed("p1", a_patch("/other/b.txt", outside=("/other/b.txt",)))
    session.decides("p1", "approved_for_session" if granted else "approved", kind="patch")
    session.finishes("p1")
    asked = session.assessed("c1", a_command("make")).one("exec_approval_request")
    named = ["/repo", *declared, *(["/other"] if granted else [])]
    more = f" and {len(named) - 5} more" if len(named) > 5 else ""
    may = f"write in {', '.join(named[:5])}{more} and temporary folders"
    assert (
        asked["reach"]["text"] == f"in the sandbox, in /repo: it can read files, and {may}; it has no network"
    )


@pytest.mark.parametrize("tmp", [False, True])
@pytest.mark.parametrize("tmpdir", [False, True])
def test_confined_command_names_temporary_folders_unless_all_of_them_are_excluded(
    tmp: bool, tmpdir: bool
) -> None:
    policy = {"mode": "workspace-write", "exclude_slash_tmp": tmp, "exclude_tmpdir_env_var": tmpdir}
    asked = asks(a_command("make"), approval_policy="untrusted", sandbox_policy=policy)
    assert ("and temporary folders; " in asked["reach"]["text"]) is not (tmp and tmpdir)


def test_command_of_a_session_with_full_access_is_outside_and_says_why() -> None:
    policy = {"mode": "danger-full-access"}
    asked = asks(a_command("make"), approval_policy="untrusted", sandbox_policy=policy)
    assert asked["reach"]["text"] == f"{OUTSIDE}, in /repo: the session has full access, {ALL_RIGHTS}"


def test_command_that_cannot_be_confined_and_one_that_the_sandbox_stopped_are_outside() -> None:
    assert asks(a_command("make", confinable=False))["reach"]["sandboxed"] is False
    session = Session(settings={"approval_policy": "on-failure"})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    again = session.finishes("c1", "denied", events=(exec_end("c1", 1),), sandbox_denied=True)
    assert again.one("exec_approval_request")["reach"]["text"].startswith(OUTSIDE)


def test_command_that_may_outlive_its_call_says_so() -> None:
    lasting = Lasting(tty=False, yield_ms=1000, max_tokens=1000)
    asked = asks(a_command("make", escalated=True, lasting=lasting))
    assert asked["reach"]["text"].endswith("; it may go on running behind its call")


@pytest.mark.parametrize("policy", ["on-request", "untrusted"])
def test_patch_names_what_it_writes_outside_under_every_policy(policy: str) -> None:
    asked = asks(a_patch("/etc/x", outside=("/etc/x",)), approval_policy=policy)
    assert asked["reach"]["sandboxed"] is False
    assert asked["reach"]["text"] == f"{OUTSIDE}, in /repo: Dendro writes /etc/x"


def test_patch_that_stays_inside_says_so() -> None:
    asked = asks(a_patch(), approval_policy="untrusted")
    assert asked["reach"]["sandboxed"] is True
    assert asked["reach"]["text"].startswith("inside of the folders that the sandbox lets it write")


def test_tool_of_an_mcp_server_is_outside() -> None:
    asked = asks(Mcp("time", "now", None, "/repo"), approval_policy="untrusted")
    assert asked["reach"]["text"] == f"{OUTSIDE}, in /repo: the MCP server time does it, {ALL_RIGHTS}"


def test_model_can_neither_end_its_quotation_nor_begin_a_line_nor_go_on_for_ever() -> None:
    asked = asks(a_command("make", escalated=True, justification=FORGED + "x" * 10_000))
    says = asked["reach"]["says"]
    assert len(says) == MOST_SAID + 1
    assert not set("\n\x1b“”") & set(says)
    assert asked["reason"].endswith("…”")
    assert asked["reason"].count("”") == 1


@pytest.mark.parametrize("letter", ["x", "é", "𝄞"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_justification_of_the_most_characters_is_shown_whole(letter: str, more: int) -> None:
    says = asks(a_command("make", escalated=True, justification=letter * (MOST_SAID + more)))["reach"]["says"]
    assert says == letter * min(MOST_SAID, MOST_SAID + more) + "…" * (more > 0)


def test_patch_through_a_link_names_where_it_leads_and_says_that_a_link_does() -> None:
    asked = asks(a_patch("/repo/docs/a.txt", outside=["/home/ann/.ssh/a.txt"]))
    assert asked["reach"]["text"] == f"{OUTSIDE}, in /repo: Dendro writes /home/ann/.ssh/a.txt"
    assert asked["reach"]["by_link"] is True
    assert asked["grant_root"] == "/home/ann/.ssh"
    assert "by_link" not in asks(a_patch("/other/a.txt", outside=["/other/a.txt"]))["reach"]


def test_patch_with_more_files_than_an_event_names_blames_no_link() -> None:
    many = replace(a_patch("/repo/a.txt", outside=["/etc/x"]), left_out=3)
    assert "by_link" not in asks(many)["reach"]
