"""The table of approval: four policies, three sandboxes, what is known of the command."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.calls.approval_policy import (
    NO_CONFINEMENT_REASON,
    Ask,
    Refuse,
    Run,
    Segment,
    Verdict,
    prefix_key,
    unconfined_key,
)
from orchestrator.core.frozen import replace
from orchestrator.core.settings import TurnSettings
from tests.core.driver import a_command, a_patch

UNTRUSTED, ON_FAILURE, ON_REQUEST, NEVER = POLICIES = ("untrusted", "on-failure", "on-request", "never")
READ_ONLY, WORKSPACE, FULL = ("read-only", "workspace-write", "danger-full-access")
CONFINED, FREE = "run confined", "run free"
ASK, ASK_FREE, REFUSE = "ask, then confined", "ask, then free", "refuse"


def settings(policy: str, mode: str) -> TurnSettings:
    return TurnSettings(cwd="/repo", approval_policy=policy, sandbox_policy={"mode": mode}, model="gpt-5")


def word(verdict: Verdict) -> str:
    match verdict:
        case Run(sandboxed):
            return CONFINED if sandboxed else FREE
        case Ask(_, sandboxed):
            return ASK if sandboxed else ASK_FREE
        case Refuse():
            return REFUSE


PLAIN: dict[str, Any] = {}
SAFE = {"safe": True}
DANGEROUS = {"dangerous": True}
ESCALATED = {"escalated": True}
UNCONFINABLE = {"confinable": False}

TABLE = [
    # judged, sandbox, then one column for each policy: untrusted, on-failure, on-request, never
    (SAFE, READ_ONLY, CONFINED, CONFINED, CONFINED, CONFINED),
    (SAFE, WORKSPACE, CONFINED, CONFINED, CONFINED, CONFINED),
    (SAFE, FULL, FREE, FREE, FREE, FREE),
    (PLAIN, READ_ONLY, ASK, CONFINED, CONFINED, CONFINED),
    (PLAIN, WORKSPACE, ASK, CONFINED, CONFINED, CONFINED),
    (PLAIN, FULL, ASK_FREE, FREE, FREE, FREE),
    (DANGEROUS, READ_ONLY, ASK, ASK, ASK, REFUSE),
    (DANGEROUS, WORKSPACE, ASK, ASK, ASK, REFUSE),
    (DANGEROUS, FULL, ASK_FREE, ASK_FREE, ASK_FREE, REFUSE),
    (ESCALATED, READ_ONLY, REFUSE, REFUSE, ASK_FREE, REFUSE),
    (ESCALATED, WORKSPACE, REFUSE, REFUSE, ASK_FREE, REFUSE),
    (ESCALATED, FULL, REFUSE, REFUSE, ASK_FREE, REFUSE),
    (ESCALATED | DANGEROUS, WORKSPACE, REFUSE, REFUSE, ASK_FREE, REFUSE),
    (UNCONFINABLE, WORKSPACE, ASK_FREE, ASK_FREE, ASK_FREE, REFUSE),
    (UNCONFINABLE, FULL, ASK_FREE, FREE, FREE, FREE),
    (UNCONFINABLE | SAFE, READ_ONLY, ASK_FREE, ASK_FREE, ASK_FREE, REFUSE),
    (UNCONFINABLE | SAFE, FULL, FREE, FREE, FREE, FREE),
    (UNCONFINABLE | DANGEROUS, READ_ONLY, ASK_FREE, ASK_FREE, ASK_FREE, REFUSE),
]
CASES = [
    pytest.param(judged, mode, policy, verdict, id=f"{'+'.join(judged) or 'plain'}-{mode}-{policy}")
    for judged, mode, *verdicts in TABLE
    for policy, verdict in zip(POLICIES, verdicts, strict=True)
]


@pytest.mark.parametrize(("judged", "mode", "policy", "expected"), CASES)
def test_command_is_judged_by_the_table(judged: Any, mode: str, policy: str, expected: str) -> None:
    command = a_command("make", **judged)
    assert word(command.judged(settings(policy, mode), frozenset())) == expected


@pytest.mark.parametrize(("judged", "mode", "policy", "expected"), CASES)
def test_nothing_runs_free_unasked_where_the_policy_confines(
    judged: Any, mode: str, policy: str, expected: str
) -> None:
    assert mode == FULL or expected != FREE


def test_person_is_told_when_a_command_would_run_without_confinement() -> None:
    for judged in (UNCONFINABLE, UNCONFINABLE | DANGEROUS, UNCONFINABLE | {"justification": "to build"}):
        verdict = a_command("make", **judged).judged(settings(UNTRUSTED, WORKSPACE), frozenset())
        assert isinstance(verdict, Ask)
        assert verdict.reason is not None
        assert verdict.reason.endswith(NO_CONFINEMENT_REASON)


def test_command_that_cannot_be_read_is_asked_about_and_refused_with_that_reason() -> None:
    command, why = a_command("bash", "-lc", "?", unreadable="it is too slow"), "it is too slow"
    assert command.judged(settings(ON_REQUEST, WORKSPACE), frozenset()) == Ask(
        f"the command cannot be read: {why}", True
    )
    refused = command.judged(settings("never", WORKSPACE), frozenset())
    assert isinstance(refused, Refuse)
    assert refused.text.startswith(f"the command cannot be read: {why}, and the approval policy is never")


def test_justification_of_an_escalated_command_is_shown() -> None:
    command = a_command("make", escalated=True, justification="needs the network")
    assert command.judged(settings(ON_REQUEST, WORKSPACE), frozenset()) == Ask(
        None, False, says="needs the network"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_approved_command_runs_confined_under_every_policy(policy: str) -> None:
    for judged in (PLAIN, DANGEROUS):
        verdict = a_command("make", **judged).judged(settings(policy, WORKSPACE), frozenset({"make"}))
        assert verdict == Run(sandboxed=True)


def test_approval_of_a_confined_run_does_not_cover_a_worker_that_cannot_confine() -> None:
    command = a_command("make", confinable=False)
    assert word(command.judged(settings(ON_REQUEST, WORKSPACE), frozenset({"make"}))) == ASK_FREE
    approved = frozenset({unconfined_key("make")})
    assert word(command.judged(settings(ON_REQUEST, WORKSPACE), approved)) == FREE


def test_approval_to_leave_the_sandbox_covers_no_program_that_came_into_its_path_since() -> None:
    here, planted = settings(ON_REQUEST, WORKSPACE), ("/repo/.venv/bin/make",)
    before = frozenset({unconfined_key("make")})
    assert word(a_command("make", escalated=True).judged(here, before)) == FREE
    changed = a_command("make", escalated=True, planted=planted)
    asked = changed.judged(here, before)
    assert isinstance(asked, Ask)
    assert (
        asked.reason == "what it runs is /repo/.venv/bin/make, which commands of the session may have written"
    )
    # The person has read its path: the same one is not asked about again, and another one is.
    known = frozenset(changed.work(sandboxed=False).remembered(here).keys)
    assert word(changed.judged(here, known)) == FREE
    other = a_command("make", escalated=True, planted=("/repo/bin/make",))
    assert word(other.judged(here, known)) == ASK_FREE


def test_prefix_that_may_leave_the_sandbox_covers_no_program_that_came_into_its_path_since() -> None:
    here, segments = settings(ON_REQUEST, WORKSPACE), (Segment(("make", "all")),)
    before = frozenset({unconfined_key(prefix_key(("make",)))})
    command = a_command("make all", escalated=True, segments=segments)
    assert word(command.judged(here, before)) == FREE
    planted = a_command("make all", escalated=True, segments=segments, planted=("/repo/.venv/bin/make",))
    assert word(planted.judged(here, before)) == ASK_FREE


def test_escalation_is_refused_outside_of_on_request_even_when_approved_before() -> None:
    command = a_command("make", escalated=True)
    approved = frozenset({"make", unconfined_key("make")})
    assert isinstance(command.judged(settings(NEVER, WORKSPACE), approved), Refuse)


@pytest.mark.parametrize("policy", POLICIES)
def test_patch_is_judged_by_where_it_writes(policy: str) -> None:
    here = settings(policy, WORKSPACE)
    inside = a_patch().judged(here, frozenset())
    outside = a_patch("/etc/hosts", outside=["/etc/hosts"]).judged(here, frozenset())
    assert isinstance(inside, Ask if policy == UNTRUSTED else Run)
    assert isinstance(outside, Refuse if policy == NEVER else Ask)


def test_refused_patch_is_told_which_paths_are_outside() -> None:
    verdict = a_patch("/etc/hosts", outside=["/etc/hosts"]).judged(settings(NEVER, WORKSPACE), frozenset())
    assert isinstance(verdict, Refuse)
    assert "/etc/hosts" in verdict.text


def test_patch_runs_unasked_only_when_all_its_paths_were_approved() -> None:
    both, here = a_patch("/a", "/b"), settings(UNTRUSTED, WORKSPACE)
    assert both.keys == {"patch:/a", "patch:/b"}
    assert isinstance(both.judged(here, frozenset({"patch:/a"})), Ask)
    assert isinstance(both.judged(here, both.keys), Run)


def test_patch_that_is_not_shown_whole_is_approved_by_its_own_name_and_by_no_path() -> None:
    whole = a_patch("/etc/x", outside=("/etc/x",))
    part = replace(whole, left_out=3, token="one")
    policies = settings(ON_REQUEST, WORKSPACE)
    assert part.keys == {"patch:one"}
    assert isinstance(part.judged(policies, frozenset({"patch:one"})), Run)
    for other in (whole.keys, frozenset({"patch:two"}), replace(part, token="two").keys):
        assert isinstance(part.judged(policies, other), Ask)
    assert isinstance(whole.judged(policies, part.keys), Ask)
