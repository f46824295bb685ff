"""Interrupt and shutdown, at every phase of a task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.core.commands import CallAssessed
from orchestrator.core.context import TURN_ABORTED_MARKER
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.outstanding import OweRequest, StopAll
from tests.core.driver import Session, a_command, assistant, function_call, op

Phase = Callable[[], Session]


def owing() -> Session:
    session = Session()
    session.say("go", "u1")
    return session


def streaming() -> Session:
    session = owing()
    session.begin()
    session.item(assistant("so far"))
    return session


def assessing() -> Session:
    session = owing()
    session.asks_for("c1")
    return session


def waiting_for_approval() -> Session:
    session = assessing()
    session.assessed("c1", a_command(dangerous=True))
    return session


def running() -> Session:
    session = assessing()
    session.runs("c1")
    return session


def running_while_streaming() -> Session:
    session = streaming()
    session.calls("c1", "c2")
    session.runs("c1")
    return session


def waiting_out_a_limit() -> Session:
    session = owing()
    session.begin()
    session.breaks("limited", "slow down", delay_ms=60_000)
    return session


STILL = (owing, assessing, waiting_for_approval, waiting_out_a_limit)
BUSY = (streaming, running, running_while_streaming)


@pytest.mark.parametrize("phase", STILL)
def test_interrupt_ends_a_task_at_once_when_nothing_runs(phase: Phase) -> None:
    session = phase()
    seen = session.interrupt()
    assert seen.events == [("u1", {"type": "turn_aborted", "reason": "interrupted"})]
    assert (session.status, session.state.outcome, session.owes()) == ("idle", "interrupted", ())
    assert session.texts()[-1] == TURN_ABORTED_MARKER
    assert (session.timers, session.approvals) == ({}, {})


@pytest.mark.parametrize("phase", BUSY)
def test_interrupt_ends_a_busy_task_only_when_what_runs_is_proved_stopped(phase: Phase) -> None:
    session = phase()
    assert session.interrupt().types == []
    assert session.owes() == (StopAll("interrupted"),)
    seen = session.stopped()
    assert seen.types == ["turn_aborted"]
    assert session.texts()[-1] == TURN_ABORTED_MARKER
    assert "go" in session.texts()


@pytest.mark.parametrize("phase", [*STILL, *BUSY])
def test_every_call_of_an_interrupted_task_has_an_output_that_says_so(phase: Phase) -> None:
    session = phase()
    session.interrupt()
    if session.state.task:
        session.stopped(c1=1.24)
    calls = [item["call_id"] for item in session.shown() if item["type"] == "function_call"]
    for call_id in calls:
        assert session.output_of(call_id).startswith("aborted by user")


def test_output_of_a_stopped_command_says_how_long_it_ran() -> None:
    session = running()
    session.interrupt()
    session.stopped(c1=1.24)
    assert session.output_of("c1") == "aborted by user after 1.2s"


def test_interrupt_of_an_idle_session_does_nothing() -> None:
    session = Session()
    before = session.digest
    assert session.interrupt().decision.entries == ()
    assert session.digest == before


@pytest.mark.parametrize("phase", BUSY)
def test_second_interrupt_changes_nothing(phase: Phase) -> None:
    session = phase()
    session.interrupt()
    assert session.interrupt().decision.entries == ()
    assert session.stopped().types == ["turn_aborted"]
    assert session.interrupt().decision.entries == ()


def test_interrupted_session_goes_on_with_the_next_input() -> None:
    session = streaming()
    session.interrupt()
    session.stopped()
    session.say("go on", "u2")
    assert session.answers("as you wish").types[-1] == "task_complete"
    assert session.texts()[:2] == ["go", "so far"]


def test_queued_input_starts_right_after_the_interrupted_task() -> None:
    session = running()
    session.say("next", "u2")
    session.interrupt()
    seen = session.stopped()
    assert seen.types == ["turn_aborted", "task_started", "user_message"]
    assert session.owes() == (OweRequest(),)


def test_items_that_arrive_while_the_task_stops_are_not_lost() -> None:
    session = streaming()
    session.interrupt()
    session.item(function_call("late"))
    session.stopped()
    assert session.output_of("late") == "aborted by user"


def test_response_that_completes_while_the_task_stops_ends_nothing() -> None:
    session = streaming()
    session.interrupt()
    assert session.ends().types == []
    assert session.stopped().types == ["turn_aborted"]


@pytest.mark.parametrize("kind", ["fatal", "stream", "limited"])
def test_stream_that_breaks_while_the_task_stops_is_not_retried_and_fails_nothing(kind: str) -> None:
    session = running_while_streaming()
    session.interrupt()
    assert session.breaks(kind, delay_ms=60_000).types == []
    assert session.timers == {}
    assert session.owes() == (StopAll("interrupted"),)
    assert session.stopped().one("turn_aborted")["reason"] == "interrupted"
    assert session.state.outcome == "interrupted"


def test_compaction_that_completes_while_it_is_stopped_replaces_nothing() -> None:
    session = owing()
    session.answers("hello")
    session.compact()
    session.begin()
    session.item(assistant("summary"))
    session.interrupt()
    assert session.ends().types == []
    assert session.stopped().types == ["turn_aborted"]
    assert session.texts()[:2] == ["go", "hello"]


def test_call_that_ends_while_the_task_stops_keeps_its_output() -> None:
    session = running()
    session.interrupt()
    session.finishes("c1", "just in time")
    session.stopped()
    assert session.output_of("c1") == "just in time"


def test_call_cannot_start_in_a_task_that_is_being_stopped() -> None:
    session = streaming()
    session.calls("c1")
    session.interrupt()
    with pytest.raises(IllegalCommand, match="being stopped"):
        session.happens(CallAssessed("c1", a_command(safe=True)))
    assert session.call("c1").phase == "proposed"


def test_approval_cannot_start_a_call_in_a_task_that_is_being_stopped() -> None:
    session = streaming()
    session.calls("c1")
    session.assessed("c1", a_command(dangerous=True))
    session.interrupt()
    seen = session.decides("c1", "approved")
    assert seen.types == ["error"]
    assert session.call("c1").phase == "awaiting_approval"
    session.stopped()
    assert session.output_of("c1") == "aborted by user"
    assert session.approvals == {}


def test_stopped_means_nothing_when_nothing_was_being_stopped() -> None:
    session = running()
    with pytest.raises(IllegalCommand, match="nothing was being stopped"):
        session.stopped()


def test_idle_session_closes_at_once() -> None:
    session = Session()
    seen = session.shutdown("bye")
    assert seen.events == [("bye", {"type": "shutdown_complete"})]
    assert seen.decision.export
    assert session.status == "closed"


@pytest.mark.parametrize("phase", [*STILL, *BUSY])
def test_shutdown_interrupts_what_runs_and_is_complete_last(phase: Phase) -> None:
    session = phase()
    seen = session.shutdown("bye")
    if session.state.task:
        assert session.owes() == (StopAll("interrupted"),)
        seen = session.stopped()
    assert [(id, message["type"]) for id, message in seen.events] == [
        ("u1", "turn_aborted"),
        ("bye", "shutdown_complete"),
    ]
    assert (session.status, session.owes()) == ("closed", ())


@pytest.mark.parametrize("phase", BUSY)
def test_each_shutdown_of_a_session_that_is_being_closed_is_answered_under_its_own_id(phase: Phase) -> None:
    session = phase()
    session.shutdown("bye")
    for id in ("again", "and again"):
        seen = session.shutdown(id)
        assert [(told, message["type"]) for told, message in seen.events] == [(id, "error")]
        assert "being closed already, by bye" in seen.one("error")["message"]
        assert session.state.closing == "bye"
    seen = session.stopped()
    ends = [(id, message["type"]) for id, message in seen.events]
    assert ends == [("u1", "turn_aborted"), ("bye", "shutdown_complete")]
    assert session.shutdown("later").events == [("later", {"type": "shutdown_complete"})]


def test_shutdown_comes_before_input_that_was_queued_and_the_input_is_not_lost() -> None:
    session = running()
    session.say("queued", "u2")
    session.shutdown()
    assert session.stopped().types == ["turn_aborted", "shutdown_complete"]
    seen = session.say("back again", "u3")
    assert seen.types == ["task_started", "user_message"]
    session.stopped()
    assert session.task.id == "u3"
    assert session.texts()[-2:] == ["queued", "back again"]


def test_shutdown_while_the_task_is_being_replaced_closes_the_session() -> None:
    session = running()
    session.say("queued", "u2")
    session.shutdown()
    session.stopped()
    assert session.status == "closed"


def test_closed_session_is_resumed_by_input() -> None:
    session = Session()
    session.shutdown()
    session.say("again", "u2")
    assert session.status == "running"
    assert session.answers("here I am").types[-1] == "task_complete"
    assert session.status == "idle"


@pytest.mark.parametrize("phase", BUSY)
def test_configure_at_any_phase_stops_the_task_as_replaced(phase: Phase) -> None:
    session = phase()
    assert session.submit(op("configure_session", approval_policy="never")).types == ["session_configured"]
    assert session.stopped().one("turn_aborted")["reason"] == "replaced"
    assert session.state.settings.approval_policy == "never"


def test_command_that_the_sandbox_stopped_is_not_asked_about_in_a_task_that_is_being_stopped() -> None:
    session = Session(settings={"approval_policy": "on-failure"})
    session.say("go")
    session.asks_for("c1")
    session.runs("c1")
    session.interrupt()
    assert session.finishes("c1", "denied", sandbox_denied=True).types == []
    assert session.approvals == {}
    assert session.output_of("c1") == "denied"


def test_steered_input_beyond_measure_is_refused_clearly() -> None:
    session = Session(facts={"on_user_input": "steer"})
    session.say("go")
    session.begin()
    for number in range(100):
        session.say(f"input {number}")
    assert "100 inputs wait" in session.say("one more", "u101").one("error")["message"]
    assert session.state.queue == ()
