"""Model requests that end early: what is retried, waited out, or fails the task."""

from __future__ import annotations

import pytest

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.commands import ResponseCompleted
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.entries import DENDRO
from orchestrator.core.history import for_model, made_together
from orchestrator.core.outstanding import AssessCall, OweRequest, RunCall, StopAll
from orchestrator.core.settings import Rules
from orchestrator.core.state import MOST_TEXTS
from tests.core.driver import Session, a_command, assistant


def requesting(**rules: int) -> Session:
    session = Session(rules=Rules(**rules))  # type: ignore[arg-type]
    session.say("go", "u1")
    session.begin()
    return session


def test_broken_stream_is_told_and_tried_again_from_the_history() -> None:
    session = requesting(stream_max_retries=5)
    session.item(assistant("half"))
    seen = session.breaks("stream", "connection reset")
    assert "retrying 1/5" in seen.one("stream_error")["message"]
    assert session.owes() == (OweRequest(session.now_ms + 200),)
    assert session.begin() == 2
    assert session.texts() == ["go", "half"]


def test_delays_double_and_a_provider_may_name_its_own() -> None:
    session = requesting()
    delays = []
    for _ in range(4):
        session.breaks()
        delays.append(session.task.not_before_ms - session.now_ms)
        session.begin()
    session.breaks("stream", delay_ms=1_234)
    assert [*delays, session.task.not_before_ms - session.now_ms] == [200, 400, 800, 1_600, 1_234]


def test_task_fails_when_its_stream_budget_is_spent() -> None:
    session = requesting(stream_max_retries=2)
    session.breaks()
    session.begin()
    session.breaks()
    session.begin()
    seen = session.breaks("stream", "gone for good")
    assert [(id, message["type"]) for id, message in seen.events] == [
        ("u1", "error"),
        ("u1", "task_complete"),
    ]
    assert seen.one("error")["message"] == "gone for good"
    assert seen.one("task_complete")["last_agent_message"] is None
    assert (session.status, session.state.outcome) == ("idle", "failed")


def test_completed_response_gives_the_budget_back() -> None:
    session = requesting(stream_max_retries=1)
    session.breaks()
    session.begin()
    session.calls("c1")
    session.ends()
    session.runs("c1")
    session.finishes("c1")
    session.begin()
    assert "retrying 1/1" in session.breaks().one("stream_error")["message"]


def test_fatal_answer_fails_the_task_at_once_with_what_the_provider_said() -> None:
    session = requesting()
    seen = session.breaks("fatal", "no quota", codex_error_info="usage_limit_exceeded")
    assert seen.types == ["error", "task_complete"]
    assert seen.one("error")["codex_error_info"] == "usage_limit_exceeded"


def test_failed_task_lets_queued_input_and_later_input_start() -> None:
    session = requesting()
    session.breaks("fatal")
    assert session.say("again", "u2").types == ["task_started", "user_message"]


def test_takeover_and_a_worker_that_leaves_forget_no_http_attempts() -> None:
    session = requesting()
    session.breaks("limited", http_used=1, delay_ms=1)
    session.begin()
    session.is_taken_over()
    assert (session.task.http_used, session.task.stream_retries) == (2, 1)
    session.begin()
    session.breaks("stream", "the worker shuts down", delay_ms=0)
    assert (session.task.http_used, session.task.stream_retries) == (2, 2)


def test_http_attempts_that_were_used_stay_used_in_the_retried_request() -> None:
    session = requesting()
    session.breaks("stream", http_used=3)
    assert session.task.http_used == 3
    session.begin()
    assert session.task.http_used == 3
    session.item(assistant("ok"))
    session.calls("c1")
    session.ends()
    assert session.task.http_used == 0


def test_long_limit_is_waited_out_as_a_timer_and_owes_nothing() -> None:
    session = requesting()
    assert session.breaks("limited", "slow down", delay_ms=60_000).types == []
    assert (session.status, session.owes()) == ("retrying", ())
    assert session.timers["retry"].at_ms == session.now_ms + 60_000
    with pytest.raises(IllegalCommand, match="no model request is owed"):
        session.begin()
    session.fires("retry")
    assert session.owes() == (OweRequest(),)
    assert session.answers("at last").types[-1] == "task_complete"


def test_short_limit_is_waited_out_by_the_worker() -> None:
    session = requesting()
    session.breaks("limited", delay_ms=5_000)
    assert session.timers == {}
    assert session.owes() == (OweRequest(session.now_ms + 5_000),)


def test_limit_counts_as_http_attempt_and_then_as_broken_stream() -> None:
    session = requesting(request_max_retries=2, stream_max_retries=1)
    for used in (0, 1):
        assert session.breaks("limited", http_used=used, delay_ms=1).types == []
        session.begin()
    assert session.breaks("limited", http_used=2, delay_ms=1).types == ["stream_error"]
    session.begin()
    assert session.breaks("limited", http_used=2, delay_ms=1).types == ["error", "task_complete"]


def test_stale_retry_timer_does_not_end_a_later_wait() -> None:
    session = requesting()
    session.breaks("limited", delay_ms=60_000)
    stale = session.timers["retry"].generation
    session.interrupt()
    assert session.timers == {}
    session.say("again")
    session.begin()
    session.breaks("limited", delay_ms=60_000)
    assert session.timers["retry"].generation > stale
    assert session.fires("retry", stale).decision.entries == ()
    assert session.status == "retrying"


def test_timer_of_a_task_that_is_gone_does_nothing() -> None:
    session = requesting()
    session.breaks("limited", delay_ms=60_000)
    stale = session.timers["retry"].generation
    session.interrupt()
    assert session.fires("retry", stale).decision.entries == ()


def test_retry_waits_for_the_calls_that_the_cut_stream_began() -> None:
    session = requesting()
    session.calls("c1", "c2")
    session.runs("c1")
    session.breaks()
    assert session.owes() == (RunCall("c1", 1),)
    session.finishes("c1")
    assert session.owes() == (AssessCall("c2"),)
    session.runs("c2")
    session.finishes("c2")
    assert session.owes() == (OweRequest(session.now_ms + 200),)
    session.begin()
    assert session.texts() == ["go", "call c1", "output c1: ok", "call c2", "output c2: ok"]


def test_fatal_break_stops_running_calls_before_the_task_fails() -> None:
    session = requesting()
    session.calls("c1")
    session.runs("c1")
    assert session.breaks("fatal", "bad request").types == []
    assert session.owes() == (StopAll("failed"),)
    seen = session.stopped(c1=2.0)
    assert seen.types == ["error", "task_complete"]
    assert seen.one("error")["message"] == "bad request"
    assert session.output_of("c1") == "aborted because the model request failed after 2.0s"


def test_fatal_break_closes_calls_that_wait_for_approval() -> None:
    session = requesting()
    session.calls("c1")
    session.assessed("c1", a_command(dangerous=True))
    session.breaks("fatal")
    assert session.approvals == {}
    assert session.output_of("c1") == "aborted because the model request failed"


def test_input_while_a_failing_task_stops_starts_after_it() -> None:
    session = requesting()
    session.calls("c1")
    session.runs("c1")
    session.breaks("fatal")
    session.say("next", "u2")
    assert session.stopped().types == ["error", "task_complete", "task_started", "user_message"]


def test_report_about_another_request_is_refused() -> None:
    session = requesting()
    session.breaks()
    session.begin()
    before = session.digest
    with pytest.raises(IllegalCommand, match="request 1 is not in flight"):
        session.happens(ResponseCompleted(1, "r1"))
    assert session.digest == before


def test_rate_limits_of_the_provider_are_told_with_the_next_count() -> None:
    session = requesting()
    session.item(assistant("ok"))
    limits = {"primary": {"used_percent": 12.5, "window_minutes": 300}, "secondary": None}
    assert session.ends(rate_limits=limits).one("token_count")["rate_limits"] == limits


def test_tokens_are_summed_over_the_session_and_the_last_response_stands_alone() -> None:
    session = requesting()
    session.item(assistant("ok"))
    session.ends(
        usage={"input_tokens": 100, "cached_input_tokens": 40, "output_tokens": 20, "total_tokens": 120}
    )
    session.say("again")
    session.begin()
    seen = session.ends(usage={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10})
    info = seen.one("token_count")["info"]
    assert info["last_token_usage"]["total_tokens"] == 10
    assert info["total_token_usage"] == {
        "input_tokens": 107,
        "cached_input_tokens": 40,
        "output_tokens": 23,
        "reasoning_output_tokens": 0,
        "total_tokens": 130,
    }
    assert info["model_context_window"] == 272_000


def test_response_without_usage_leaves_the_accounts() -> None:
    session = requesting()
    session.item(assistant("ok"))
    assert session.ends(usage=None).one("token_count")["info"] is None


def test_request_begins_with_the_accounts_so_far() -> None:
    session = requesting()
    seen = session.seen[-1]
    assert seen.one("token_count") == {
        "type": "token_count",
        "info": None,
        "rate_limits": {"primary": None, "secondary": None},
    }


def test_count_of_a_response_is_told_when_its_calls_have_ended() -> None:
    session = requesting()
    session.calls("c1")
    assert session.ends().types == []
    session.runs("c1")
    info = session.finishes("c1").one("token_count")["info"]
    assert info["last_token_usage"]["total_tokens"] == 120


def test_usage_of_an_interrupted_turn_counts_for_the_window_but_is_not_told() -> None:
    session = Session(rules=Rules(auto_compact_limit=100))
    session.say("go")
    session.begin()
    session.calls("c1")
    session.ends()
    session.interrupt()
    session.say("again")
    n = session.begin()
    assert session.seen[-1].one("token_count")["info"] is None
    assert session.task.request is not None
    assert (session.task.request.n, session.task.request.purpose) == (n, "compact")


def test_request_that_the_fleet_held_back_counts_against_no_budget() -> None:
    session = requesting(request_max_retries=1, stream_max_retries=0)
    session.breaks("limited", http_used=0, delay_ms=1)
    session.begin()
    for _ in range(5):
        assert session.breaks("unsent", delay_ms=60_000).types == []
        assert (session.task.http_used, session.task.stream_retries) == (1, 0)
        session.fires("retry")
        session.begin()
    assert session.answers_now("at last").types[-1] == "task_complete"


def test_long_hold_of_the_fleet_parks_the_session_and_an_interrupt_ends_it() -> None:
    session = requesting()
    session.breaks("unsent", delay_ms=5_001)
    assert (session.status, session.owes()) == ("retrying", ())
    assert session.interrupt().types == ["turn_aborted"]
    assert session.timers == {}


@pytest.mark.parametrize(("kind", "served"), [("limited", True), ("stream", False), ("fatal", False)])
def test_request_that_no_provider_worked_on_is_told_so_where_its_task_is_stopped(
    kind: str, served: bool
) -> None:
    session = requesting()
    session.interrupt()
    n = session.request_n
    seen = session.breaks(kind, served=served)
    assert f.RequestStopped(n, served=False) in [
        f.decode(entry.payload) for entry in seen.entries if entry.type == DENDRO
    ]


def test_task_that_is_being_stopped_does_not_wait_for_the_fleet() -> None:
    session = requesting()
    session.interrupt()
    session.breaks("unsent", delay_ms=60_000)
    assert session.timers == {}
    assert session.stopped().types == ["turn_aborted"]


def test_call_that_ends_while_its_broken_response_waits_for_a_long_retry_leaves_the_retry_waiting() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    session.calls("c1")
    session.runs("c1", "ls")
    session.breaks("stream", delay_ms=60_000)
    session.finishes("c1")
    assert (session.owes(), session.status) == ((), "retrying")
    session.fires("retry")
    assert session.owes() == (OweRequest(session.task.not_before_ms),)


def test_call_behind_the_output_of_another_of_its_response_is_marked_for_no_model() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.calls("c1")
    session.runs("c1")
    session.finishes("c1")
    session.calls("c2", "c3")
    session.ends()
    made = [item for item in session.state.history if item["type"] == "function_call"]
    assert [item.get("beside") for item in made] == [None, True, None]
    assert made_together(session.state.history) == {"c2", "c3"}
    assert not any("beside" in item for item in for_model(session.state.history))


def test_text_that_requests_name_is_written_once_until_it_is_forgotten() -> None:
    session = Session()
    session.say("go")
    session.begin()

    def written(*names: str) -> list[str]:
        texts = {name: f"text {name}" for name in names}
        seen = session.happens(c.RequestSent(session.request_n, "sent", "instructions", "tools", texts))
        assert session.replayed() == session.state
        return [entry.payload["sha256"] for entry in seen.entries if entry.payload.get("kind") == "text"]

    assert written("a", "b") == ["a", "b"]
    assert written("b", "c") == ["c"]
    assert written("a", "b", "c") == []
    many = [f"n{number}" for number in range(MOST_TEXTS)]
    assert written(*many) == many
    assert written("a", many[-1]) == ["a"]


@pytest.mark.parametrize("compacts", [False, True])
def test_search_is_told_of_a_turn_and_not_of_a_compaction(compacts: bool) -> None:
    session = Session()
    session.say("go")
    session.answers("done")
    session.compact() if compacts else session.say("and?")
    session.begin()
    seen = session.happens(c.SearchBegun(session.request_n, "ws-1"))
    assert seen.types == ([] if compacts else ["web_search_begin"])
