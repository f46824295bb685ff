"""A worker is lost: what its successor finds void, in doubt, or done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.calls.exec import Shown
from orchestrator.core.commands import TaskRefused, TookOver
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.decide.takeover import IN_DOUBT
from orchestrator.core.outstanding import AssessCall, OweRequest, RunCall, StopAll
from orchestrator.core.settings import Rules
from tests.core.driver import RULES, Session, a_command, a_patch, assistant, op
from tests.core.tree_driver import a_family


def running_command(**fields: object) -> Session:
    session = Session(**fields)  # type: ignore[arg-type]
    session.say("go", "u1")
    session.asks_for("c1")
    session.runs("c1", "make")
    return session


def writing_patch() -> Session:
    session = Session()
    session.say("go", "u1")
    session.asks_for("p1", name="apply_patch")
    session.assessed("p1", a_patch())
    return session


def test_lost_request_is_void_told_and_tried_again() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    seen = session.is_taken_over()
    assert "1/5" in seen.one("stream_error")["message"]
    assert session.owes() == (OweRequest(session.now_ms),)
    session.begin()
    assert session.task.request is not None
    assert (session.task.request.n, session.task.request.epoch) == (2, 2)


def test_session_that_kills_its_workers_runs_out_of_retries() -> None:
    session = Session(rules=Rules(stream_max_retries=2))
    session.say("go", "u1")
    for _ in range(2):
        session.begin()
        assert session.is_taken_over().types == ["stream_error"]
    session.begin()
    assert session.is_taken_over().types == ["error", "task_complete"]


def test_items_that_came_before_the_loss_stay() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.item(assistant("so far"))
    session.is_taken_over()
    assert session.texts() == ["go", "so far"]


def test_command_that_was_running_is_in_doubt_and_never_run_again() -> None:
    session = running_command()
    seen = session.is_taken_over()
    end = seen.one("exec_command_end")
    assert (end["exit_code"], end["aggregated_output"]) == (-1, IN_DOUBT)
    assert seen.types.index("exec_command_end") < seen.types.index("warning")
    assert "c1" in seen.one("warning")["message"]
    assert session.output_of("c1") == IN_DOUBT
    assert session.owes() == (OweRequest(),)


def test_output_that_a_lost_command_had_shown_is_kept() -> None:
    session = running_command()
    seen = session.is_taken_over({"c1": Shown("out", "err", "outerr")})
    end = seen.one("exec_command_end")
    assert (end["stdout"], end["stderr"]) == ("out", f"{IN_DOUBT}\nerr")
    assert end["aggregated_output"] == session.output_of("c1")
    assert session.output_of("c1") == f"{IN_DOUBT}; its output until then:\nouterr"
    assert seen.one("warning")["message"] == f"call c1 is {IN_DOUBT}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "what it had shown until then is not kept any more"),
        ("end", "its output until then, of which the beginning is lost:\nend"),
    ],
)
def test_output_that_no_queue_has_any_more_is_said_to_be_lost(text: str, told: str) -> None:
    session = running_command()
    session.is_taken_over({"c1": Shown(text, "", text, whole=False)})
    assert session.output_of("c1") == f"{IN_DOUBT}; {told}"


def test_takeover_by_the_same_claim_changes_nothing() -> None:
    session = running_command()
    before = session.digest
    session.epoch -= 1
    assert session.is_taken_over().decision.entries == ()
    assert session.digest == before
    assert session.owes() == (RunCall("c1", 1),)


def test_second_takeover_finds_nothing_more_to_say() -> None:
    session = running_command()
    session.is_taken_over()
    assert session.is_taken_over().decision.entries == ()


def test_takeover_of_an_idle_session_changes_nothing() -> None:
    assert Session().is_taken_over().decision.entries == ()


def test_patch_that_left_no_trace_may_be_written_again() -> None:
    session = writing_patch()
    assert session.is_taken_over(p1="none").types == []
    assert session.owes() == (AssessCall("p1"),)
    session.assessed("p1", a_patch())
    assert session.owes() == (RunCall("p1", 2),)


def test_patch_that_was_written_whole_is_done() -> None:
    session = writing_patch()
    seen = session.is_taken_over(p1="all")
    assert seen.one("patch_apply_end")["success"] is True
    assert "warning" not in seen.types
    assert session.output_of("p1").startswith("Success.")
    assert dict(session.task.baselines) == {"/repo/a.txt": None}


@pytest.mark.parametrize("judgements", [{}, {"p1": "in_doubt"}])
def test_patch_that_was_written_in_part_or_not_judged_is_in_doubt(judgements: dict[str, str]) -> None:
    session = writing_patch()
    seen = session.is_taken_over(**judgements)
    assert seen.one("patch_apply_end")["success"] is False
    assert session.output_of("p1") == IN_DOUBT
    assert session.task.baselines == {}


def test_call_that_only_reads_is_run_again() -> None:
    session = Session(rules=Rules(repeatable=frozenset({"view"})))
    session.say("go")
    session.asks_for("v1", name="view")
    session.runs("v1")
    assert session.is_taken_over().types == []
    assert session.owes() == (AssessCall("v1"),)


def test_call_that_had_not_begun_is_carried_on() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    assert session.is_taken_over().decision.entries == ()
    assert session.owes() == (AssessCall("c1"),)


def test_open_approval_is_nobodys_loss() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command(dangerous=True))
    assert session.is_taken_over().decision.entries == ()
    assert session.status == "awaiting_approval"
    assert set(session.approvals) == {"c1"}


def test_running_call_and_lost_stream_are_both_told() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.calls("c1", "c2")
    session.runs("c1")
    seen = session.is_taken_over()
    assert {"exec_command_end", "warning", "stream_error"} <= set(seen.types)
    assert session.owes() == (AssessCall("c2"),)


@pytest.mark.parametrize(("stop", "reason"), [("interrupt", "interrupted"), ("replace", "replaced")])
def test_task_that_was_being_stopped_is_over_at_the_takeover(stop: str, reason: str) -> None:
    session = running_command()
    if stop == "interrupt":
        session.interrupt()
    else:
        session.say("next", "u2")
    seen = session.is_taken_over()
    assert seen.one("turn_aborted")["reason"] == reason
    assert session.output_of("c1") == IN_DOUBT
    assert session.status == ("idle" if stop == "interrupt" else "running")


def test_task_that_was_failing_fails_at_the_takeover() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.calls("c1")
    session.runs("c1")
    session.breaks("fatal", "bad request")
    seen = session.is_taken_over()
    assert seen.types[-2:] == ["error", "task_complete"]
    assert seen.one("error")["message"] == "bad request"


def test_shutdown_is_completed_by_the_successor() -> None:
    session = running_command()
    session.shutdown("bye")
    assert session.is_taken_over().types[-2:] == ["turn_aborted", "shutdown_complete"]
    assert session.status == "closed"


def test_wait_for_a_limit_outlives_its_worker() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.breaks("limited", delay_ms=60_000)
    assert session.is_taken_over().decision.entries == ()
    session.fires("retry")
    assert session.owes() == (OweRequest(),)


def test_task_that_its_worker_cannot_do_fails_with_the_reason() -> None:
    session = Session()
    session.say("go", "u1")
    seen = session.happens(TaskRefused("this folder is another one"))
    assert seen.types == ["error", "task_complete"]
    assert seen.one("error")["message"] == "this folder is another one"
    assert (session.status, session.state.outcome) == ("idle", "failed")


def test_refused_task_closes_calls_that_wait_and_nothing_of_it_goes_on() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command(dangerous=True))
    session.happens(TaskRefused("no"))
    assert session.approvals == {}
    assert [session.output_of(id) for id in ("c1", "c2")] == ["not run: no"] * 2
    assert session.owes() == ()


def test_refusal_of_a_task_stops_what_runs_of_it_first() -> None:
    session = running_command()
    assert session.happens(TaskRefused("no")).types == []
    assert session.owes() == (StopAll("failed"),)
    assert session.stopped().types == ["error", "task_complete"]


def test_refusal_that_comes_while_a_request_is_in_flight_is_illegal() -> None:
    session = Session()
    session.say("go")
    session.begin()
    with pytest.raises(IllegalCommand, match="in flight"):
        session.happens(TaskRefused("no"))


# ── what a failed task says that one can go on from ───────────────────────────────────────────────


def goes_on_from(session: Session, response_id: str) -> bool:
    seen = session.say("from there", last_response_id=response_id)
    return "error" not in seen.types


def test_task_that_fails_behind_a_turn_names_the_turn_and_people_go_on_from_there() -> None:
    session = Session()
    session.say("go", "u1")
    session.asks_for("c1")
    session.runs("c1")
    session.finishes("c1")
    seen = session.happens(TaskRefused("no"))
    assert seen.one("task_complete")["response_id"] == "resp-1"
    assert goes_on_from(session, "resp-1")


@pytest.mark.parametrize("began", [False, True])
def test_task_that_fails_in_the_middle_of_a_turn_names_none(began: bool) -> None:
    session = Session()
    session.say("go", "u1")
    session.asks_for("c1", "c2")
    if began:
        session.assessed("c1", a_command(dangerous=True))
    seen = session.happens(TaskRefused("no"))
    assert "response_id" not in seen.one("task_complete")
    assert not goes_on_from(session, "resp-1")


def test_task_that_fails_behind_a_compaction_of_its_own_names_no_turn() -> None:
    session = Session(rules=replace(RULES, auto_compact_limit=100))
    session.say("go", "u1")
    session.asks_for("c1")
    session.runs("c1")
    session.finishes("c1")
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"
    session.item(assistant("sum"))
    session.ends()
    seen = session.happens(TaskRefused("no"))
    assert "response_id" not in seen.one("task_complete")


@pytest.mark.parametrize("kind", ["plan", "review"])
def test_task_beside_the_conversation_that_fails_names_no_turn(kind: str) -> None:
    session = Session()
    session.say("hello", "u1")
    session.answers("hi", "r0")
    asked = {"plan": {"plan_request": {"goal": "go"}}, "review": {"review_request": {"prompt": "look"}}}
    session.submit(op(kind, **asked[kind]), "t1")
    session.asks_for("c1")
    session.runs("c1")
    session.finishes("c1")
    seen = session.happens(TaskRefused("no"))
    assert "response_id" not in seen.one("task_complete")


# ── several at once ───────────────────────────────────────────────────────────────────────────────


def several(name: str, *assessments: Any) -> Session:
    """Calls of one tool that run together."""
    session = Session(rules=replace(RULES, parallel_safe=frozenset({name})))
    session.say("go", "u1")
    ids = [f"c{number}" for number in range(1, len(assessments) + 1)]
    session.asks_for(*ids, name=name)
    for call_id, asked in zip(ids, assessments, strict=True):
        session.assessed(call_id, asked)
    assert len(session.task.running) == len(ids)
    return session


def test_each_lost_command_is_told_with_what_that_one_had_shown() -> None:
    session = several("shell", *[a_command("make", f"{n}", safe=True) for n in range(3)])
    shown = {call_id: Shown(f"out {call_id}", "", f"out {call_id}") for call_id in ("c3", "c1")}
    seen = session.is_taken_over(shown)
    told = {end["call_id"]: end["stdout"] for end in seen.all("exec_command_end")}
    assert told == {"c1": "out c1", "c2": "", "c3": "out c3"}
    outputs = [session.output_of(call_id) for call_id in ("c1", "c2", "c3")]
    assert ["out c1" in outputs[0], "out" in outputs[1].partition("in doubt")[0], "out c3" in outputs[2]] == [
        True,
        False,
        True,
    ]


def test_each_lost_patch_is_judged_by_its_own_files() -> None:
    session = several("apply_patch", *[a_patch(f"/repo/{name}.txt") for name in "abcd"])
    session.is_taken_over(c1="all", c3="none", c4="in_doubt")
    phases = [session.call(f"c{number}").phase for number in (1, 2, 3, 4)]
    assert phases == ["done", "done", "proposed", "done"]
    assert session.output_of("c1").startswith("Success.")
    assert [session.output_of(call_id).startswith(IN_DOUBT) for call_id in ("c2", "c4")] == [True, True]
    assert session.owes() == (AssessCall("c3"),)


def test_takeover_by_the_same_claim_leaves_its_own_request_in_flight() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    before = session.state
    assert session.happens(TookOver()).types == []
    assert session.state == before


def test_tree_is_told_of_a_root_that_was_taken_over_and_nobody_of_a_session_alone() -> None:
    tree, _ = a_family()
    tree.root.asks_for("c1")
    tree.root.runs("c1")
    tree.root.is_taken_over()
    told = [fact.about for fact in tree.log if "takeover" in fact.about]
    assert told == [{"agent_id": 0, "takeover": tree.root.epoch}]
    assert running_command().is_taken_over().decision.tree is None


def test_end_of_an_agent_that_ran_nothing_when_its_worker_was_lost_is_proved() -> None:
    tree, (child,) = a_family()
    child.begin()
    child.is_taken_over()
    tree.root.cancels(1)
    tree.settle()
    child.stopped() if child.state.task is not None else None
    tree.settle()
    told = [fact.message["cancel"] for fact in tree.log if fact.message.get("status") == "canceled"]
    assert told == ["proved"]
