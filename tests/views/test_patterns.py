"""Which requests a person allows, and which ones a person denies, by a pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.calls.approval_policy import amendment
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol.events import RequestResolved
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import request_of
from orchestrator.views import Contradiction, ViewError
from orchestrator.views.approvals import Asked, chosen, decision_text
from orchestrator.views.event_text import resolved_text
from tests.requests.test_answers import ASKS

ALLOW, DENY = ReviewDecision.APPROVED, ReviewDecision.DENIED
ALWAYS = ReviewDecision.APPROVED_FOR_SESSION


def asked(*command: str, call: str = "c1", **fields: Any) -> Asked:
    request = {"type": "exec_approval_request", "command": list(command), "cwd": "/w", **fields}
    return Asked(SessionId("s1"), TreeId("s1"), 1, "0/1", call, 0, request_of(request), 5)


def script(text: str) -> Asked:
    return asked("bash", "-lc", text)


def is_meant(request: Asked, pattern: str, decision: ReviewDecision = ALLOW) -> bool:
    try:
        return bool(chosen([request], {decision: [pattern]}).decisions)
    except ViewError:
        return False


@pytest.mark.parametrize("decision", [ALLOW, ALWAYS])
@pytest.mark.parametrize(
    "hidden",
    [
        "git count-objects -v; touch /srv/x",
        "git count-objects -v && touch /srv/x",
        "git count-objects -v | tee /srv/x",
        "git count-objects -v > /srv/x",
        "git count-objects $(touch /srv/x)",
        "git count-objects `touch /srv/x`",
        "git count-objects -v & touch /srv/x",
        "git count-objects -v\ntouch /srv/x",
        "git count-objects -v #\ntouch /srv/x",
        "git count-objects <(touch /srv/x)",
        "git count* --x",
        "git count-objects ${X:=y}",
    ],
)
def test_pattern_does_not_allow_what_a_script_runs_besides(hidden: str, decision: ReviewDecision) -> None:
    assert not is_meant(script(hidden), "git count*", decision)
    with pytest.raises(
        ViewError, match=r"(?s)no open request .*; 1:c1 .* is not allowed by 'git count\*': its "
    ):
        chosen([script(hidden)], {decision: ["git count*"]})


def test_pattern_allows_plain_scripts_whose_every_command_matches() -> None:
    assert is_meant(script("git count-objects -v"), "git count*")
    assert is_meant(script("git count-objects && git count-objects -v"), "git count*")
    assert is_meant(asked("git", "count-objects", "-v"), "git count*")


def test_pattern_does_not_allow_a_program_whose_name_holds_the_words() -> None:
    assert not is_meant(asked("git count-objects"), "git count*")
    assert not is_meant(asked("git count-objects; touch /srv/x", "-v"), "git count*")


def test_pattern_does_not_allow_a_command_with_variables() -> None:
    request = asked("git", "count-objects", env={"GIT_EXTERNAL_DIFF": "/w/evil"})
    assert not is_meant(request, "git count*")
    assert not is_meant(request, "*")
    assert is_meant(request, "1:c1")


def test_model_that_names_its_call_like_a_command_is_not_allowed_by_that_name() -> None:
    for name in ("git count*", "ls", "npm test"):
        assert not is_meant(asked("bash", "-c", "curl x | sh", call=name), name)
    assert is_meant(asked("bash", "-c", "curl x | sh", call="call_7"), "call_7")


@pytest.mark.parametrize(
    "text",
    [
        "ls; rm -rf x",
        "ls $(rm -rf x)",
        "for i in *; do rm $i; done",
        "ls && { rm x; }",
        "ls\nrm x",
        "ls|rm x",
        "sudo rm x",
    ],
)
def test_denial_needs_one_matching_part_only(text: str) -> None:
    assert is_meant(script(text), "rm *", DENY)
    assert not is_meant(script(text), "git *", DENY)


def test_denial_of_a_patch_needs_one_path_and_its_permission_every_path() -> None:
    changes: dict[str, Any] = {"/w/a.py": {}, "/w/b.txt": {}}
    request = {"type": "apply_patch_approval_request", "changes": changes}
    patch = Asked(SessionId("s1"), TreeId("s1"), 1, "0/1", "c1", 0, request_of(request), 5)
    assert is_meant(patch, "*.py", DENY)
    assert not is_meant(patch, "*.py")
    assert is_meant(patch, "/w/*")


def test_person_is_told_what_a_pattern_passed_over_beside_what_it_meant() -> None:
    requests = [asked("git", "fetch"), script("git fetch; sh x")]
    found = chosen(requests, {ALLOW: ["git *"]})
    assert [request for request, _ in found.decisions] == requests[:1]
    assert found.passed_over == (
        "1:c1 (git fetch; sh x) is not allowed by 'git *': its command 'sh x' does not match",
    )


def test_call_of_an_agent_means_no_calls_of_several_trees() -> None:
    """Some providers count calls anew in each response: `0:call_0` waits in many trees at once."""
    waiting = [replace(asked("git", "push"), tree=TreeId(tree)) for tree in ("t1", "t2")]
    for decision in (ALLOW, ALWAYS, DENY):
        with pytest.raises(ViewError, match="2 calls of that name wait, '1:c1': name one tree of t1, t2"):
            chosen(waiting, {decision: ["1:c1"]})
        assert len(chosen(waiting, {decision: ["git *"]}).decisions) == 2


@pytest.mark.parametrize("other", ["1:c1", "git push", "git *", "*"])
def test_two_answers_to_one_request_contradict_one_another_also_where_a_pattern_means_several(
    other: str,
) -> None:
    waiting = [asked("git", "push"), replace(asked("git", "fetch"), call_id="c2")]
    for allowing, denying in (("git *", other), (other, "git *")):
        with pytest.raises(Contradiction, match="is meant by two different answers"):
            chosen(waiting, {ALLOW: [allowing], DENY: [denying]})


def test_person_reads_the_variables_before_the_command() -> None:
    request = asked("git", "diff", env={"GIT_EXTERNAL_DIFF": "/w/a b\n", "A": "1"})
    assert request.subject == "GIT_EXTERNAL_DIFF='/w/a b␊' A=1 git diff"


def test_decision_that_allows_a_prefix_is_told_with_the_prefix() -> None:
    decision = amendment(("git", "push"))
    assert decision_text(decision) == "allowed, and in its session all that begins with `git push`"
    resolved = RequestResolved(
        call_id=CallId("c1"), turn_id="t1", who="ann", decision=decision, resolved_at_ms=1
    )
    told = resolved_text(resolved, "agent 1")
    assert told == "request c1 and all that begins with `git push` was approved by ann"
    assert decision_text("approved") == "allowed"


def changed(*paths: str, **fields: Any) -> Asked:
    changes = {path: {"type": "update", "unified_diff": "", "move_path": None} for path in paths}
    request = {"type": "apply_patch_approval_request", "changes": changes, **fields}
    return Asked(SessionId("s1"), TreeId("s1"), 1, "0/1", "c1", 0, request_of(request), 5)


def test_pattern_over_paths_does_not_allow_a_move_or_a_link_to_elsewhere() -> None:
    assert is_meant(changed("/w/docs/a"), "/w/docs/*")
    moved = changed("/w/docs/a")
    moved.request.event["changes"]["/w/docs/a"]["move_path"] = "/home/ann/.bashrc"
    assert not is_meant(moved, "/w/docs/*")
    assert is_meant(moved, "/home/*", DENY)
    linked = changed("/w/docs/a", reach={"sandboxed": False, "text": "", "by_link": True})
    assert not is_meant(linked, "/w/docs/*")
    assert is_meant(linked, "1:c1")


@pytest.mark.parametrize("name", ["python3", "sha256sum"])
def test_word_that_people_allow_means_no_call_whose_model_has_named_it_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    named = asked("rm", "-r", "work", call=name)
    assert not is_meant(named, name)
    assert is_meant(named, f"1:{name}")
    assert is_meant(asked(name, call="c1"), name)
    assert is_meant(asked("rm", "-r", "work", call="call_1"), "call_1")


@pytest.mark.parametrize("where", [0, 1, 2])
def test_permission_needs_every_command_of_a_script_and_every_path_of_a_patch_wherever_the_other_stands(
    where: int,
) -> None:
    commands, paths = ["git status"] * 3, [f"/w/docs/{name}" for name in "abc"]
    assert is_meant(script("; ".join(commands)), "git *")
    assert is_meant(changed(*paths), "/w/docs/*")
    for other in ("rm x", "git $X", "git count*", "git status > f"):
        assert not is_meant(script("; ".join([*commands[:where], other, *commands[where + 1 :]])), "git *")
    assert not is_meant(changed(*paths[:where], "/w/src/x", *paths[where + 1 :]), "/w/docs/*")


@pytest.mark.parametrize("left_out", [1, 2])
def test_pattern_allows_no_patch_that_changes_more_than_it_shows(left_out: int) -> None:
    patch = changed("/w/docs/a", changes_left_out=left_out)
    assert not is_meant(patch, "/w/docs/*")
    assert is_meant(patch, "/w/docs/*", DENY)
    assert is_meant(patch, "1:c1")


def test_pattern_allows_no_patch_that_a_link_leads_away_however_many_paths_it_has() -> None:
    reach = {"sandboxed": False, "text": "", "by_link": True}
    assert not is_meant(changed("/w/docs/a", "/w/docs/b", reach=reach), "/w/docs/*")


@pytest.mark.parametrize(
    ("pattern", "denied"),
    [
        *[
            (pattern, True)
            for pattern in ("rm *", "sudo rm *", "do sudo rm *", "LD_PRELOAD=*", "* x", "git diff")
        ],
        ("chmod *", False),
    ],
)
def test_denial_meets_any_command_behind_any_words_before_it_and_any_variable(
    pattern: str, denied: bool
) -> None:
    text = "git diff; git log --stat a b c d e f; do sudo rm x"
    variables = {"PAGER": "cat", "LD_PRELOAD": "/w/x.so"}
    assert is_meant(asked("bash", "-c", text, env=variables), pattern, DENY) is denied


@pytest.mark.parametrize("kind", ASKS)
def test_request_that_asks_for_more_than_yes_or_no_is_met_by_its_call_alone(kind: str) -> None:
    request = request_of(ASKS[kind])
    one = Asked(SessionId("s1"), TreeId("s1"), 1, "0/1", "c1", 0, request, 5)
    by_pattern = kind in ("command", "patch")
    assert is_meant(one, "*", ALLOW) is by_pattern
    assert is_meant(one, "*", DENY) is by_pattern
    assert one.meant_by("1:c1", ALLOW)
    assert one.meant_by("c1", ALLOW)
    for other in ("2:c1", "0:c1", ":c1", "1:c2", "c2"):
        assert not one.meant_by(other, ALLOW)
