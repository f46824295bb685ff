"""The owner's rules in a command's verdict, and answers that allow a prefix of commands."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.calls import ExecWork
from orchestrator.core.calls.approval_policy import (
    MOST_WORDS,
    Ask,
    Refuse,
    Run,
    Segment,
    StrictRule,
    amended,
    amendment,
    is_remembered,
    may_be_allowed,
    offered,
    prefix_key,
    unconfined_key,
)
from orchestrator.core.settings import TurnSettings
from tests.core.driver import FACTS, Session, a_command, a_patch, op, sandboxed
from tests.core.test_core_modes import mode

POLICIES = ("untrusted", "on-failure", "on-request", "never")
AGENT = {"agent_id": 3, "agent_path": "0/3", "origin": "spawn", "parent_session": FACTS["session_id"]}
TOUCH = prefix_key(("touch",))


def settings(policy: str = "untrusted", mode: str = "workspace-write") -> TurnSettings:
    return TurnSettings(cwd="/repo", approval_policy=policy, sandbox_policy={"mode": mode}, model="gpt-5")


def ruled(*words: str, allowed: Any = "", **judged: Any) -> Any:
    """A command of one segment."""
    return a_command(*words, segments=(Segment(words, allowed),), **judged)


def amends(*words: str) -> dict[str, Any]:
    return {"approved_execpolicy_amendment": {"proposed_execpolicy_amendment": list(words)}}


def asked(*words: str, **judged: Any) -> Session:
    """A session in which a person is asked about a command."""
    session = Session(settings={"approval_policy": "untrusted"})
    session.say("go")
    session.asks_for("c1", "c2", "c3")
    session.assessed("c1", ruled(*words, **judged))
    return session


# --- the verdict


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["read-only", "workspace-write", "danger-full-access"])
def test_forbidden_command_is_refused_whatever_was_approved(policy: str, mode: str) -> None:
    rule = StrictRule("forbidden", "use the deploy page")
    command = ruled("make", "deploy", allowed="free", strict_rule=rule)
    verdict = command.judged(settings(policy, mode), frozenset({command.key, unconfined_key(command.key)}))
    assert isinstance(verdict, Refuse)
    assert "use the deploy page" in verdict.text


@pytest.mark.parametrize("policy", POLICIES)
def test_rule_that_allows_every_segment_lets_the_command_run_out_of_its_sandbox(policy: str) -> None:
    both = a_command(
        "bash", "-lc", "make && ls", segments=(Segment(("make",), "free"), Segment(("ls",), "free"))
    )
    assert both.judged(settings(policy, "read-only"), frozenset()) == Run(sandboxed=False)
    assert both.judged(settings(policy), frozenset(), may_leave=False) == Run(sandboxed=True)


def test_rule_that_allows_one_segment_of_two_allows_nothing() -> None:
    half = a_command("bash", "-lc", "make && ls", segments=(Segment(("make",), "free"), Segment(("ls",))))
    assert isinstance(half.judged(settings(), frozenset()), Ask)


def test_confined_rule_spares_the_question_and_not_the_sandbox() -> None:
    assert ruled("make", allowed="confined").judged(settings(), frozenset()) == Run(sandboxed=True)
    wider = ruled("make", allowed="confined", escalated=True).judged(settings("on-request"), frozenset())
    assert wider == Ask(None, sandboxed=False)
    nowhere = ruled("make", allowed="confined", confinable=False).judged(settings(), frozenset())
    assert isinstance(nowhere, Ask)


def test_rule_that_asks_does_so_where_the_policy_would_not() -> None:
    command = ruled(
        "git", "push", allowed="free", safe=True, strict_rule=StrictRule("prompt", "it is public")
    )
    assert command.judged(settings("on-request"), frozenset()) == Ask("it is public", sandboxed=True)
    refused = command.judged(settings("never"), frozenset())
    assert isinstance(refused, Refuse)
    assert "it is public" in refused.text
    approved = frozenset({command.key})
    assert command.judged(settings("on-request"), approved) == Run(sandboxed=True)


def test_rule_that_asks_proposes_no_prefix() -> None:
    command = ruled("touch", "x", strict_rule=StrictRule("prompt"))
    verdict = command.judged(settings(), frozenset({TOUCH}))
    assert isinstance(verdict, Ask)
    assert verdict.proposed == ()


# --- which prefixes


@pytest.mark.parametrize(
    ("words", "prefix"),
    [
        (("touch", "x"), ("touch",)),
        (("git", "push", "origin"), ("git", "push")),
        (("npm", "test"), ("npm", "test")),
        (("git", "-C", "x", "push"), ()),
        (("git",), ()),
        (("git", "reset", "--hard"), ()),
        (("npm", "exec", "x"), ()),
        (("uv", "run", "x"), ()),
        (("bash", "x.sh"), ()),
        (("python3.12", "x.py"), ()),
        (("python", "-c", "1"), ()),
        (("env", "A=1", "x"), ()),
        (("sudo", "ls"), ()),
        (("rm", "x"), ()),
        (("./touch", "x"), ()),
        (("/repo/touch", "x"), ()),
        ((), ()),
    ],
)
def test_person_is_offered_a_prefix_that_says_what_runs(words: tuple[str, ...], prefix: Any) -> None:
    assert offered(words) == prefix
    assert may_be_allowed(prefix) is bool(prefix)


def test_amendment_in_the_log_is_read_as_it_was_written() -> None:
    assert amended(amendment(("git", 'a "b" c'))) == ("git", 'a "b" c')
    for other in ("approved", "approved_execpolicy_amendment", "approved_execpolicy_amendment [1]", ""):
        assert amended(other) == ()


# --- answers


def test_prefix_that_a_person_allows_is_not_asked_about_again_and_stays_confined() -> None:
    session = asked("touch", "x")
    request = session.seen[-1].one("exec_approval_request")
    assert request["proposed_execpolicy_amendment"] == ["touch"]
    assert session.decides("c1", amends("touch")).types == ["exec_command_begin"]
    session.finishes("c1")
    assert session.assessed("c2", ruled("touch", "y")).types == ["exec_command_begin"]
    assert sandboxed(session.call("c2")) is True
    session.finishes("c2")
    assert session.assessed("c3", ruled("mv", "y", "z")).types == ["exec_approval_request"]


def test_prefix_allowed_for_an_unconfined_command_leaves_the_sandbox_the_next_time_too() -> None:
    session = asked("touch", "x", confinable=False)
    session.decides("c1", amends("touch"))
    assert session.state.approved == {unconfined_key(TOUCH)}
    session.finishes("c1")
    session.assessed("c2", ruled("touch", "y"))
    assert sandboxed(session.call("c2")) is False


def test_prefix_allows_no_command_that_destroys() -> None:
    session = asked("touch", "x")
    session.decides("c1", amends("touch"))
    session.finishes("c1")
    seen = session.assessed("c2", ruled("touch", "y", dangerous=True))
    assert "proposed_execpolicy_amendment" not in seen.one("exec_approval_request")


def test_script_needs_each_of_its_commands_allowed() -> None:
    session = asked("touch", "x")
    session.decides("c1", amends("touch"))
    session.finishes("c1")
    script = a_command(
        "bash", "-lc", "touch y; mv y z", segments=(Segment(("touch", "y")), Segment(("mv", "y")))
    )
    request = session.assessed("c2", script).one("exec_approval_request")
    assert request["proposed_execpolicy_amendment"] == ["mv"]


@pytest.mark.parametrize(
    "wrong", [[], ["rm"], ["git"], ["npm", "test"], ["git", "push", "-f"], ["git", "push", "a"]]
)
def test_prefix_that_is_not_the_commands_own_is_refused_and_the_request_stays(wrong: list[str]) -> None:
    session = asked("git", "push", "a")
    seen = session.decides("c1", amends(*wrong))
    assert "c1 was not answered" in seen.one("error")["message"]
    assert session.call("c1").phase == "awaiting_approval"
    assert session.state.approved == frozenset()


def test_longer_beginning_of_the_command_may_be_allowed() -> None:
    session = asked("git", "push", "origin", "main")
    session.decides("c1", amends("git", "push", "origin"))
    assert session.state.approved == {prefix_key(("git", "push", "origin"))}


def test_amendment_where_none_was_proposed_is_an_error_and_no_approval() -> None:
    session = asked("bash", "x.sh")
    assert "proposed_execpolicy_amendment" not in session.seen[-1].one("exec_approval_request")
    seen = session.decides("c1", amends("bash"))
    assert "no prefix of this command may be allowed" in seen.one("error")["message"]
    assert session.call("c1").phase == "awaiting_approval"


def test_amendment_of_a_patch_is_an_error() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    session.say("go")
    session.asks_for("p1", name="apply_patch")
    session.assessed("p1", a_patch("/other/b.txt", outside=("/other/b.txt",)))
    seen = session.decides("p1", amends("touch"), kind="patch")
    assert "p1 was not answered: it is no command" in seen.one("error")["message"]
    assert session.call("p1").phase == "awaiting_approval"


def test_same_amendment_again_does_no_harm_and_another_one_is_told() -> None:
    session = asked("git", "push", "origin", "main")
    session.decides("c1", amends("git", "push"))
    assert session.decides("c1", amends("git", "push")).types == []
    assert session.decides("c1", amends("git", "push", "origin")).types == ["error"]


def test_allowed_prefix_outlives_the_task_and_a_replay() -> None:
    session = asked("touch", "x")
    session.decides("c1", amends("touch"))
    work = session.call("c1").work
    assert isinstance(work, ExecWork)
    assert work.proposed == ("touch",)
    assert session.state.approved == {TOUCH}


@pytest.mark.parametrize(
    ("facts", "mode", "leaves"),
    [
        ({}, "workspace-write", True),
        ({}, "read-only", True),
        (AGENT, "workspace-write", True),
        (AGENT, "read-only", False),
        ({**AGENT, "helper_call": "h1"}, "workspace-write", False),
    ],
)
def test_rule_takes_no_agent_that_only_reads_out_of_its_sandbox(facts: Any, mode: str, leaves: bool) -> None:
    session = Session(settings={"sandbox_policy": {"mode": mode}}, facts={**FACTS, **facts})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", ruled("make", allowed="free"))
    assert sandboxed(session.call("c1")) is not leaves


def test_rule_takes_no_command_of_a_plan_out_of_its_sandbox_and_an_allowed_prefix_counts_for_none() -> None:
    session = asked("touch", "x")
    session.decides("c1", amends("touch"))
    session.finishes("c1")
    session.submit(op("override_turn_context", collaboration_mode=mode("plan")))
    session.say("plan")
    session.asks_for("d1", "d2")
    session.assessed("d1", ruled("make", allowed="free"))
    assert sandboxed(session.call("d1")) is True
    session.finishes("d1")
    assert session.assessed("d2", ruled("touch", "x")).types == ["exec_approval_request"]


BESIDE = {
    "plan": op("plan", plan_request={"goal": "Add login"}),
    "review": op("review", review_request={"prompt": "look", "user_facing_hint": "it"}),
}
"""Operations whose tasks have a conversation of their own."""


@pytest.mark.parametrize("kind", BESIDE)
def test_plan_and_review_have_no_rule_that_leaves_the_sandbox_and_nothing_that_was_approved(
    kind: str,
) -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    session.say("go")
    session.asks_for("c1", "c2")
    session.assessed("c1", ruled("touch", "x", confinable=False))
    session.decides("c1", amends("touch"))
    session.finishes("c1")
    session.assessed("c2", ruled("mv", "x", "y", confinable=False))
    session.decides("c2", "approved_for_session")
    session.finishes("c2")
    session.answers("done")
    assert len(session.state.approved) == 2
    session.submit(BESIDE[kind], "b1")
    session.asks_for("b1", "b2", "b3")
    session.assessed("b1", ruled("make", allowed="free"))
    assert sandboxed(session.call("b1")) is True
    session.finishes("b1")
    for call_id, words in (("b2", ("touch", "x")), ("b3", ("mv", "x", "y"))):
        seen = session.assessed(call_id, ruled(*words, confinable=False))
        assert "exec_approval_request" not in seen.types, words
        assert "the approval policy is never: not run" in str(session.output_of(call_id))


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("tar", "-x"),
            ("rsync", "a"),
            ("systemd-run", "x"),
            ("runuser", "x"),
            ("bwrap", "x"),
            ("less", "a"),
        ),
        *(
            ("prlimit", "x"),
            ("crontab", "a"),
            ("rbash", "a"),
            ("tsx", "a.ts"),
            ("socat", "a"),
            ("direnv", "x"),
        ),
        *(("git", "rebase"), ("git", "bisect"), ("git", "submodule"), ("git", "filter-branch")),
        *(("rustup", "run"), ("npm", "init"), ("conda", "run"), ("kubectl", "run")),
    ],
)
def test_prefix_of_what_runs_what_it_is_told_is_neither_offered_nor_taken(words: tuple[str, ...]) -> None:
    assert offered(words) == ()
    assert not may_be_allowed(words)


def test_prefix_of_as_many_words_as_may_be_is_allowed_and_remembered_and_no_longer_one() -> None:
    words = ("touch", *(f"f{n}" for n in range(MOST_WORDS)))
    assert may_be_allowed(words[:MOST_WORDS])
    assert not may_be_allowed(words)
    assert MOST_WORDS == 16, "docs/questions.md and clients know it"
    assert is_remembered(words, [prefix_key(words[:MOST_WORDS])])
    assert not is_remembered((*words, "more"), [prefix_key(words)])
