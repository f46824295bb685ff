"""Approvals: who is asked, who may answer, and what an answer does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from orchestrator.core import facts as f
from orchestrator.core.calls import Phase
from orchestrator.core.calls.approval_policy import StrictRule, unconfined_key
from orchestrator.core.calls.exec import UNSANDBOXED_REASON
from orchestrator.core.commands import Signature
from orchestrator.core.evolve import stated
from orchestrator.core.frozen import replace
from orchestrator.core.outstanding import AssessCall, OweRequest, RunCall
from orchestrator.core.sender import Sender
from orchestrator.core.settings import Rules
from orchestrator.protocol.ids import CallId
from tests.core.driver import (
    WORKSPACE,
    Seen,
    Session,
    a_command,
    a_patch,
    exec_end,
    op,
    patch_end,
    sandboxed,
    text,
)

TWO_AT_ONCE = Rules(parallel_safe=frozenset({"shell"}))


def asked(client: str = "", **fields: Any) -> Session:
    """A session that waits for a decision about call `c1` of task `u1`."""
    session = Session(**fields)
    session.submit(op("user_input", items=[text("go")]), "u1", client=client)
    session.asks_for("c1")
    session.assessed("c1", a_command("rm", "-rf", "build", dangerous=True))
    return session


def asked_twice() -> Session:
    """Two calls of one turn that wait at the same time."""
    session = Session(rules=TWO_AT_ONCE)
    session.say("go", "u1")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command("rm", "a", dangerous=True))
    session.assessed("c2", a_command("rm", "b", dangerous=True))
    return session


def patching(*outside: str, settings: Mapping[str, Any] | None = None) -> Session:
    session = Session(settings=settings or {})
    session.say("go", "u1")
    session.asks_for("p1", name="apply_patch")
    session.assessed("p1", a_patch(*outside, outside=outside))
    return session


def test_request_names_the_call_the_command_and_the_reason() -> None:
    session = asked()
    request = session.seen[-1].one("exec_approval_request")
    assert request["call_id"] == "c1"
    assert request["command"] == ["rm", "-rf", "build"]
    assert "destructive" in request["reason"]
    assert session.seen[-1].id_of("exec_approval_request") == "u1"
    assert orjson.loads(session.approvals["c1"].payload)["turn"] == "u1"


def test_request_shows_the_variables_that_the_model_sets_and_nothing_where_it_sets_none() -> None:
    session = asked()
    assert "env" not in session.seen[-1].one("exec_approval_request")
    session.decides("c1", "denied")
    session.asks_for("c2")
    session.assessed("c2", a_command("make", dangerous=True, env={"A": "1"}))
    assert session.seen[-1].one("exec_approval_request")["env"] == {"A": "1"}


def test_session_that_waits_for_a_decision_owes_nothing() -> None:
    session = asked()
    assert (session.status, session.owes(), session.timers) == ("awaiting_approval", (), {})


@pytest.mark.parametrize("target", ["c1", "u1"])
def test_approved_call_starts_by_call_id_and_by_turn_id(target: str) -> None:
    session = asked()
    seen = session.decides(target, "approved", who="ann")
    assert seen.types == ["exec_command_begin"]
    assert session.owes() == (RunCall("c1", 1),)
    assert session.approvals == {}
    assert session.state.answers[-1].who == "ann"


def answer_facts(seen: Seen) -> list[Mapping[str, Any]]:
    return [entry.payload for entry in seen.entries if entry.payload.get("kind") == "answer"]


@pytest.mark.parametrize("decision", ["approved", "denied", "abort"])
def test_answer_keeps_exactly_what_the_person_had_before_them(decision: str) -> None:
    shown: dict[str, Any] = {
        "text": "OUTSIDE THE SANDBOX\n" + "rm " * 30_000,
        "surface": "terminal",
        "opened_ms": 7,
    }
    answer = op("exec_approval", id="c1", decision=decision, shown=shown)
    seen = asked().submit(answer, "a1", who="ann")
    [fact] = answer_facts(seen)
    kept = hashlib.sha256(shown["text"].encode()).hexdigest()
    assert fact["shown"] == {"$blob": kept, "bytes": len(shown["text"])}, "a long one stands beside the log"
    assert (fact["surface"], fact["opened_ms"]) == ("terminal", 7)


def test_answer_of_a_client_that_says_nothing_of_what_it_shows_says_nothing() -> None:
    [fact] = answer_facts(asked().decides("c1", "approved", who="ann"))
    assert not {"shown", "surface", "opened_ms"} & fact.keys()


def resolutions(seen: Seen) -> list[tuple[str, str]]:
    """The resolutions that followers of the queue get: the decision, and whose it was."""
    events = seen.decision.tree.events if seen.decision.tree is not None else ()
    told = [orjson.loads(b"0".join(event.parts))["msg"] for event in events]
    return [(msg["decision"], msg["who"]) for msg in told if msg["type"] == "request_resolved"]


def test_client_that_gave_the_task_is_not_told_what_it_has_decided_itself() -> None:
    seen = asked(client="front").decides("c1", "denied", who="ann", client="front")
    assert resolutions(seen) == []


@pytest.mark.parametrize("decision", ["approved", "denied"])
def test_client_that_gave_the_task_is_told_what_another_decided(decision: str) -> None:
    seen = asked(client="front").decides("c1", decision, who="ann", client="beside")
    assert resolutions(seen) == [(decision, "ann")]


def test_client_is_told_that_nobody_answered_in_time() -> None:
    session = asked(client="front", facts={"approval_timeout_ms": 5_000})
    assert resolutions(session.fires("approval:c1")) == [("denied", "timer")]


def test_end_of_the_turn_tells_by_itself_that_nothing_is_asked_any_more() -> None:
    session = asked(client="front")
    seen = session.decides("c1", "abort", who="ann", client="beside")
    assert resolutions(seen) == []
    assert "turn_aborted" in seen.types


def test_approval_given_under_a_later_claim_runs_under_that_claim() -> None:
    session = asked()
    session.is_taken_over()
    session.decides("c1", "approved")
    assert session.owes() == (RunCall("c1", 2),)


def test_denied_call_has_an_output_and_the_turn_goes_on() -> None:
    session = asked()
    assert session.decides("c1", "denied").types == ["token_count"]
    assert session.output_of("c1") == "exec command rejected by user"
    assert session.owes() == (OweRequest(),)


def test_denied_patch_has_its_own_words() -> None:
    session = patching("/etc/hosts")
    session.decides("p1", "denied", kind="patch")
    assert session.output_of("p1") == "patch rejected by user"


def test_abort_ends_the_task() -> None:
    session = asked()
    assert session.decides("c1", "abort").types == ["turn_aborted"]
    assert session.status == "idle"
    assert session.output_of("c1") == "aborted by user"


def test_abort_of_one_call_stops_what_else_runs() -> None:
    session = Session(rules=TWO_AT_ONCE)
    session.say("go")
    session.asks_for("c1", "c2")
    session.runs("c1")
    session.assessed("c2", a_command(dangerous=True))
    session.decides("c2", "abort")
    assert session.approvals == {}
    assert session.stopped().types == ["turn_aborted"]


def test_answer_by_turn_id_counts_only_for_a_request_that_stood_when_it_was_sent() -> None:
    session = Session()
    session.say("go", "u1")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command("rm", "a", dangerous=True))
    both_saw = session.seq
    session.decides("u1", "approved", who="ann", seq=both_saw)
    session.finishes("c1")
    session.assessed("c2", a_command("rm", "b", dangerous=True))
    late = session.decides("u1", "approved", who="bob", seq=both_saw)
    assert late.types == []
    assert session.call("c2").phase == "awaiting_approval"
    session.decides("u1", "approved", who="bob")
    assert session.call("c2").phase == "running"


def test_second_answer_to_a_confined_command_does_not_let_it_run_unconfined() -> None:
    session = Session(
        settings={"approval_policy": "untrusted", "sandbox_policy": {"mode": "workspace-write"}}
    )
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    both_saw = session.seq
    session.decides("c1", "approved", who="ann", seq=both_saw)
    session.finishes("c1", "denied", events=(exec_end("c1", 1),), sandbox_denied=True)
    assert session.decides("c1", "approved", who="bob", seq=both_saw).types == []
    assert session.call("c1").phase == "awaiting_approval"
    session.decides("c1", "approved", who="bob")
    assert sandboxed(session.call("c1")) is False


def test_contrary_answer_by_turn_id_to_a_decided_request_names_who_decided() -> None:
    session = asked()
    session.decides("u1", "approved", who="ann")
    seen = session.decides("u1", "denied", who="bob")
    assert "approved, by ann" in seen.one("error")["message"]
    assert session.call("c1").phase == "running"


def test_answer_by_turn_id_is_refused_while_several_requests_are_open() -> None:
    session = asked_twice()
    message = session.decides("u1", "approved").one("error")["message"]
    assert "c1, c2" in message
    assert len(session.task.awaiting) == 2


def test_answer_by_turn_id_to_several_requests_is_refused_after_an_earlier_answer_too() -> None:
    session = Session(rules=TWO_AT_ONCE)
    session.say("go", "u1")
    session.asks_for("c0", "c1", "c2")
    for call_id in ("c0", "c1", "c2"):
        session.assessed(call_id, a_command("rm", call_id, dangerous=True))
    session.decides("c0", "approved")
    assert "c1, c2" in session.decides("u1", "approved").one("error")["message"]


def test_answers_by_call_id_reach_their_calls_in_any_order() -> None:
    session = asked_twice()
    session.decides("c2", "approved")
    session.decides("c1", "denied")
    assert [call.phase for call in session.task.calls] == ["done", "running"]


def test_same_second_answer_is_ignored_and_another_one_is_told_who_decided() -> None:
    session = asked()
    session.decides("c1", "approved", who="ann")
    assert session.decides("c1", "approved", who="bob").decision.entries == ()
    seen = session.decides("c1", "denied", id="late", who="bob")
    assert seen.id_of("error") == "late"
    assert seen.one("error")["message"] == "c1 was already decided: approved, by ann"


def test_second_answer_is_still_known_after_the_task_has_ended() -> None:
    session = asked()
    session.decides("c1", "abort", who="ann")
    assert session.decides("c1", "abort").types == []
    assert "by ann" in session.decides("c1", "approved").one("error")["message"]


def test_answer_to_nothing_names_what_is_pending() -> None:
    assert "no request is open" in Session().decides("c9", "approved").one("error")["message"]
    assert "open are c1" in asked().decides("c9", "approved").one("error")["message"]


def test_late_approval_is_not_about_a_later_calls_request_that_the_model_gave_the_same_id() -> None:
    session = asked()
    session.decides("c1", "denied")
    session.asks_for("c1")
    session.assessed("c1#2", a_command("rm", "-rf", "dist", dangerous=True))
    session.decides("c1", "approved")
    assert session.status == "awaiting_approval"
    assert session.decides("c1#2", "approved").types == ["exec_command_begin"]


def test_approval_for_the_session_lets_the_same_command_run_again_unasked() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    session.say("go")
    session.asks_for("c1", "c2", "c3")
    session.assessed("c1", a_command("make", "test"))
    session.decides("c1", "approved_for_session")
    session.finishes("c1")
    assert session.assessed("c2", a_command("make", "test")).types == ["exec_command_begin"]
    session.finishes("c2")
    assert session.assessed("c3", a_command("make", "all")).types == ["exec_approval_request"]


def test_approval_for_the_session_holds_in_later_tasks() -> None:
    session = asked()
    session.decides("c1", "approved_for_session")
    session.finishes("c1")
    session.answers("done")
    session.say("again")
    session.asks_for("c1")
    session.assessed("c1", a_command("rm", "-rf", "build", dangerous=True))
    assert session.call("c1").phase == "running"


def test_plain_approval_is_forgotten() -> None:
    session = asked()
    session.decides("c1", "approved")
    assert session.state.approved == frozenset()


def test_approval_of_a_confined_run_is_none_to_run_unconfined() -> None:
    session = asked()
    session.decides("c1", "approved_for_session")
    assert sandboxed(session.call("c1")) is True
    session.finishes("c1")
    session.answers("done")
    session.say("again")
    session.asks_for("c2")
    wider = a_command("rm", "-rf", "build", dangerous=True, escalated=True)
    assert session.assessed("c2", wider).types == ["exec_approval_request"]


def test_approval_to_run_unconfined_covers_the_next_run_at_once() -> None:
    session = Session(settings={"approval_policy": "on-failure"})
    session.say("go")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command("make"))
    session.finishes("c1", "denied", sandbox_denied=True)
    session.decides("c1", "approved_for_session")
    session.finishes("c1")
    session.assessed("c2", a_command("make"))
    assert sandboxed(session.call("c2")) is False


def _stopped_by_the_sandbox() -> Session:
    session = Session(settings={"approval_policy": "on-failure"}, facts={"approval_timeout_ms": 60_000})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    session.finishes("c1", "12 tests passed, 1 was denied", sandbox_denied=True)
    return session


def _output_of_c1(session: Session) -> str:
    return str(session.output_of("c1"))


def test_model_reads_the_confined_run_of_a_command_whose_other_run_was_denied() -> None:
    session = _stopped_by_the_sandbox()
    session.decides("c1", "denied")
    said = "exec command rejected by user; its run in the sandbox gave:\n12 tests passed, 1 was denied"
    assert _output_of_c1(session) == said


def test_model_reads_the_confined_run_of_a_command_whose_question_an_interrupt_withdrew() -> None:
    session = _stopped_by_the_sandbox()
    session.interrupt()
    assert _output_of_c1(session).endswith("its run in the sandbox gave:\n12 tests passed, 1 was denied")


def test_second_run_of_a_command_replaces_the_confined_one() -> None:
    session = _stopped_by_the_sandbox()
    session.decides("c1", "approved")
    session.finishes("c1", "13 tests passed")
    assert _output_of_c1(session) == "13 tests passed"


def test_patch_outside_of_the_roots_offers_its_folder_and_the_grant_stays() -> None:
    session = patching("/other/b.txt")
    request = session.seen[-1].one("apply_patch_approval_request")
    assert request["grant_root"] == "/other"
    seen = session.decides("p1", "approved_for_session", kind="patch")
    assert seen.one("patch_apply_begin")["auto_approved"] is False
    assert session.state.granted_roots == ("/other",)
    assert session.state.approved == {"patch:/other/b.txt"}


def test_patch_into_several_folders_offers_none() -> None:
    session = patching("/other/b.txt", "/third/c.txt")
    assert "grant_root" not in session.seen[-1].one("apply_patch_approval_request")


@pytest.mark.parametrize(
    "leads",
    [
        [(f"{WORKSPACE}/a.txt", "abc", None), ("/other/b.txt", None, "abc")],
        [("/other/b.txt", None, "abc")],
        '[["/other/b.txt", null, "abc"]]',
    ],
    ids=["moved away", "through a link", "of many files"],
)
def test_approval_of_a_path_is_none_of_where_it_leads_later(leads: Any) -> None:
    session = patching(settings={"approval_policy": "untrusted"})
    session.decides("p1", "approved_for_session", kind="patch")
    session.finishes("p1", "ok", events=(patch_end("p1"),))
    session.asks_for("p2", "p3", name="apply_patch")
    elsewhere = replace(a_patch(outside=["/other/b.txt"]), record=leads)
    asked = session.assessed("p2", elsewhere).one("apply_patch_approval_request")
    assert asked["reach"]["sandboxed"] is False
    assert "/other/b.txt" in asked["reach"]["text"]
    session.decides("p2", "denied", kind="patch")
    assert session.assessed("p3", a_patch()).one("patch_apply_begin")["auto_approved"] is True


def test_patch_of_approved_paths_is_not_asked_about_again() -> None:
    session = patching("/other/b.txt")
    session.decides("p1", "approved_for_session", kind="patch")
    session.finishes("p1", "ok", events=(patch_end("p1"),))
    session.asks_for("p2", "p3", name="apply_patch")
    seen = session.assessed("p2", a_patch("/other/b.txt", outside=["/other/b.txt"]))
    assert seen.one("patch_apply_begin")["auto_approved"] is True
    session.finishes("p2", "ok")
    seen = session.assessed("p3", a_patch("/other/x.txt", outside=["/other/x.txt"]))
    assert seen.types == ["apply_patch_approval_request"]


def test_patch_inside_of_the_roots_runs_unasked() -> None:
    session = patching()
    assert session.seen[-1].one("patch_apply_begin")["auto_approved"] is True


def test_later_patch_changes_and_drops_baselines_of_an_earlier_one() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2", name="apply_patch")
    first: dict[str, Any] = {"set": {"/a": {"n": 1}, "/b": {"n": 1}, "/c": {"n": 1}}, "drop": []}
    second: dict[str, Any] = {"set": {"/a": {"n": 2}, "/d": {"n": 2}}, "drop": ["/b"]}
    state = session.state
    for call_id, moved in (("c1", first), ("c2", second)):
        state = stated(state, f.CallMoved(CallId(call_id), Phase.DONE, baselines=moved), session.seq)
    assert state.task is not None
    assert state.task.baselines == {"/a": {"n": 2}, "/c": {"n": 1}, "/d": {"n": 2}}


def test_only_a_written_patch_moves_the_baselines_of_the_diff() -> None:
    session = patching()
    session.finishes("p1", "failed", events=(patch_end("p1", success=False),))
    assert session.task.baselines == {}
    session.asks_for("p2", name="apply_patch")
    session.assessed("p2", a_patch())
    session.finishes("p2", "ok", events=(patch_end("p2"),), applied=True)
    assert dict(session.task.baselines) == {"/repo/a.txt": None}


def test_command_that_the_sandbox_stopped_is_asked_about_again_under_on_failure() -> None:
    session = Session(settings={"approval_policy": "on-failure"})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    seen = session.finishes("c1", "denied", events=(exec_end("c1", 1),), sandbox_denied=True)
    assert seen.types == ["exec_command_end", "exec_approval_request"]
    assert seen.one("exec_approval_request")["reach"]["why"] == UNSANDBOXED_REASON
    session.decides("c1", "approved")
    assert sandboxed(session.call("c1")) is False
    session.finishes("c1", "built", events=(exec_end("c1"),))
    assert session.output_of("c1") == "built"


def test_command_that_fails_unconfined_is_not_asked_about_again() -> None:
    session = Session(settings={"approval_policy": "on-failure"})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    session.finishes("c1", "denied", sandbox_denied=True)
    session.decides("c1", "approved")
    assert "exec_approval_request" not in session.finishes("c1", "denied", sandbox_denied=True).types
    assert session.output_of("c1") == "denied"


@pytest.mark.parametrize(
    ("policy", "again"), [("untrusted", True), ("on-failure", True), ("on-request", False), ("never", False)]
)
def test_policy_decides_whether_a_stopped_command_may_be_asked_about(policy: str, again: bool) -> None:
    session = Session(settings={"approval_policy": policy})
    session.say("go")
    session.asks_for("c1")
    session.runs("c1")
    seen = session.finishes("c1", "denied", sandbox_denied=True)
    assert ("exec_approval_request" in seen.types) is again


def test_approval_that_nobody_gives_in_time_is_denied_by_the_timer() -> None:
    session = asked(facts={"approval_timeout_ms": 5_000})
    assert session.timers["approval:c1"].at_ms == session.now_ms + 5_000
    session.fires("approval:c1")
    assert session.output_of("c1") == "exec command rejected by user"
    assert session.state.answers[-1].who == "timer"
    assert "by timer" in session.decides("c1", "approved").one("error")["message"]


def test_answer_clears_the_timer_and_a_stale_one_does_nothing() -> None:
    session = asked(facts={"approval_timeout_ms": 5_000})
    stale = session.timers["approval:c1"].generation
    session.decides("c1", "approved")
    assert session.timers == {}
    assert session.fires("approval:c1", stale).decision.entries == ()
    assert session.call("c1").phase == "running"


def test_timer_of_an_earlier_request_does_not_deny_the_one_asked_again() -> None:
    session = Session(settings={"approval_policy": "on-failure"}, facts={"approval_timeout_ms": 5_000})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("rm", dangerous=True))
    first = session.timers["approval:c1"].generation
    session.decides("c1", "approved")
    session.finishes("c1", "denied", sandbox_denied=True)
    assert session.timers["approval:c1"].generation > first
    assert session.fires("approval:c1", first).decision.entries == ()
    assert session.call("c1").phase == "awaiting_approval"


def test_interrupt_withdraws_open_requests_and_their_timers() -> None:
    session = asked(facts={"approval_timeout_ms": 5_000})
    session.interrupt()
    assert (session.approvals, session.timers) == ({}, {})


def test_call_that_waits_for_an_earlier_one_is_assessed_after_the_answer() -> None:
    session = Session()
    session.say("go", "u1")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command(dangerous=True))
    session.decides("c1", "denied")
    assert session.owes() == (AssessCall("c2"),)


def test_run_without_the_sandbox_names_the_program_that_the_first_run_may_have_planted() -> None:
    session = Session(settings={"approval_policy": "on-failure"})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    planted = ("/repo/.venv/bin/make",)
    seen = session.finishes("c1", "denied", sandbox_denied=True, planted=planted)
    request = seen.one("exec_approval_request")
    assert "what it runs is /repo/.venv/bin/make, which commands of the session" in request["reach"]["why"]
    session.decides("c1", "approved_for_session")
    assert session.state.approved == {unconfined_key("make", planted)}


# ── signatures ────────────────────────────────────────────────────────────────────────────────────


def signed_at(session: Session, later_ms: int = 0, turn: str = "s1", call_id: str = "c1") -> Signature:
    """A signature under an answer to what a call asks now, that the worker has found to hold."""
    asked, at_ms = session.call(call_id).request, session.now_ms + later_ms
    return Signature(at_ms, "c2ln", "ada", call_id=call_id, turn=turn, request=asked)


def test_signature_of_a_confined_run_does_not_allow_the_one_without_the_sandbox() -> None:
    session = Session(settings={"approval_policy": "untrusted"}, rules=Rules(signed_answers="required"))
    session.say("go", "s1")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    given, another = signed_at(session), signed_at(session, 1)
    session.decides("c1", "approved", signature=given)
    session.finishes("c1", "denied", events=(exec_end("c1", 1),), sandbox_denied=True)
    for of_the_confined_run in (given, another):
        seen = session.decides("c1", "approved", signature=of_the_confined_run)
        assert "its signature is for another request" in seen.one("error")["message"]
    seen = session.decides("c1", "approved", signature=signed_at(session))
    assert "its signature has decided an earlier request of that name" in seen.one("error")["message"]
    assert session.call("c1").phase == "awaiting_approval"
    assert session.replayed() == session.state
    session.decides("c1", "approved", signature=signed_at(session, 1))
    assert sandboxed(session.call("c1")) is False


@pytest.mark.parametrize("late", [False, True])
def test_answers_to_two_requests_count_in_whatever_order_their_person_has_signed_them(late: bool) -> None:
    session = Session(settings={"approval_policy": "untrusted"}, rules=Rules(signed_answers="required"))
    session.say("go", "s1")
    for call_id in ("c1", "c2"):
        session.asks_for(call_id)
        session.assessed(call_id, a_command("make", call_id))
        given = signed_at(session, 0 if (call_id == "c1") == late else -1, call_id=call_id)
        session.decides(call_id, "approved", signature=given)
        assert session.call(call_id).phase == "running"
        session.finishes(call_id)


@pytest.mark.parametrize(
    ("later_ms", "counts"),
    [(-600_001, False), (-600_000, True), (0, True), (300_000, True), (300_001, False)],
)
def test_signature_counts_for_ten_minutes_by_a_clock_that_is_five_ahead_at_most(
    later_ms: int, counts: bool
) -> None:
    session = asked(rules=Rules(signed_answers="required"))
    seen = session.decides("c1", "approved", signature=signed_at(session, later_ms, session.task.id))
    assert (session.call("c1").phase == "running") == counts
    if not counts:
        assert "look at the clocks; it stays open" in seen.one("error")["message"]


def test_signature_for_a_request_of_another_turn_decides_nothing() -> None:
    session = asked()
    seen = session.decides("c1", "approved", signature=signed_at(session, turn="u0"))
    assert "its signature is for another request; it stays open" in seen.one("error")["message"]


def test_timer_decides_what_nobody_has_signed_in_time() -> None:
    session = asked(facts={"approval_timeout_ms": 60_000}, rules=Rules(signed_answers="required"))
    assert "answers have to be signed here" in session.decides("c1", "denied").one("error")["message"]
    session.now_ms += 60_000
    session.fires("approval:c1")
    assert session.state.answers[-1].who == "timer"


@pytest.mark.parametrize("escalated", [False, True])
def test_rule_asks_for_a_signature_whatever_the_settings_are(escalated: bool) -> None:
    session = Session()
    session.say("go", "s1")
    session.asks_for("c1")
    rule = StrictRule("prompt", "deploys are signed", sign=True)
    session.assessed("c1", a_command("make", "deploy", strict_rule=rule, escalated=escalated))
    seen = session.decides("c1", "approved")
    assert "answers have to be signed here" in seen.one("error")["message"]
    assert session.replayed() == session.state
    session.decides("c1", "approved", signature=signed_at(session))
    assert session.call("c1").phase == "running"


def deploy(session: Session, call_id: str, rule: StrictRule | None = None) -> None:
    """The model asks to run the same command again."""
    session.asks_for(call_id)
    session.assessed(call_id, a_command("make", "deploy", strict_rule=rule))


@pytest.mark.parametrize("by", ["rule", "settings"])
@pytest.mark.parametrize("signed", [False, True])
def test_session_wide_approval_is_asked_again_unless_it_was_signed(by: str, signed: bool) -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    session.say("go", "s1")
    deploy(session, "c1")
    given = signed_at(session) if signed else None
    session.decides("c1", "approved_for_session", signature=given)
    session.finishes("c1", "done", events=(exec_end("c1", 0),))
    if by == "settings":
        session.rules = Rules(signed_answers="required")
    deploy(session, "c2", StrictRule("prompt", sign=True) if by == "rule" else None)
    assert session.call("c2").phase == ("running" if signed else "awaiting_approval")
    assert session.replayed() == session.state


@pytest.mark.parametrize(("namespace", "phase"), [("acme", "awaiting_approval"), ("other", "running")])
def test_answers_have_to_be_signed_in_the_work_of_a_namespace(namespace: str, phase: str) -> None:
    rules = Rules(signed_in={"acme": "required", "home": "required"})
    session = Session(settings={"approval_policy": "untrusted"}, rules=rules)
    by = Sender("ann", namespace, "submit", "app-server", "tk")
    session.submit(op("user_input", items=[text("go")]), "s1", by=by)
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    session.decides("c1", "approved")
    assert session.call("c1").phase == phase


def test_work_that_nobody_is_known_to_have_given_is_the_machines_own() -> None:
    rules = Rules(signed_answers="required", signed_in={"home": "off", "acme": "wanted"})
    assert [rules.signing(by) for by in (None, Sender("ann", "acme", "submit", "cli", "tk"))] == [
        "off",
        "wanted",
    ]
    assert rules.signing(Sender("ann", "new", "submit", "cli", "tk")) == "required"
