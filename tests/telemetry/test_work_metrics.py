"""A worker's metrics: what it did, counted once, under labels of few values."""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.broker.records import Claim, Claimed, Settlement, Spend, SqEntry
from orchestrator.config_keys import WorkerSettings
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Call, Calls, CallWork, Mcp, Phase
from orchestrator.core.calls.agents import AwaitWork
from orchestrator.core.facts import CallMoved, TaskEnded
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import Request, State, Task
from orchestrator.core.user_turns import TaskKind
from orchestrator.model.provider_errors import RetryableModelError
from orchestrator.protocol.events import CodexErrorKind
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.runtime.renewal import Leases
from orchestrator.runtime.runner import Ended
from orchestrator.telemetry.metrics import MOST_NAMES, Metrics
from orchestrator.telemetry.observer import CommittedStep, Observer, Observers
from orchestrator.telemetry.work_metrics import FleetMetrics, WorkMetrics
from tests.broker.actors import holder_died
from tests.runtime.connections import Gate, lost
from tests.runtime.harness import POOL, Harness
from tests.runtime.players import calls, ends, message
from tests.telemetry.samples import figures

CLAIM = Claim(SessionId("s"), TreeId("s"), "w", "c1", 1, POOL)


def observed(harness: Harness) -> Metrics:
    """Metrics that the harness's workers count in."""
    metrics = Metrics("1.2.3")
    observer: Observer = Observers(WorkMetrics(metrics, time.monotonic))
    harness.ports = replace(harness.ports, observer=observer)
    return metrics


async def served(harness: Harness, session: SessionId, until: str) -> None:
    """A worker serves the session until an event came, and leaves."""
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    await harness.until(session, until)
    worker.drain()
    await running


def claimed() -> Claimed:
    return Claimed(CLAIM, 0, b"", "0-0", "0-0", 0, AgentId(0), 0, 0, 0, ())


async def test_worker_counts_a_turn_with_a_call_from_its_claim_to_its_park(harness: Harness) -> None:
    metrics = observed(harness)
    harness.models.will([calls("c1"), ends()], [message("done"), ends()])
    session = await harness.session()
    born = len(await harness.log(session))
    await harness.say(session)
    await served(harness, session, "task_complete")
    found = figures(metrics.page())
    assert found["dendro_claims_total", POOL] == 1
    assert found["dendro_sessions_parked_total", "idle"] == 1
    assert found["dendro_claims_ended_total", "parked"] == 1
    assert found["dendro_tasks_begun_total", "user"] == 1
    assert found["dendro_tasks_ended_total", "user", "completed"] == 1
    assert found["dendro_turns_total", "turn"] == 2
    assert found["dendro_model_tokens_total", "input", "gpt-5"] == 20
    assert found["dendro_model_tokens_total", "output", "gpt-5"] == 4
    assert found["dendro_model_request_seconds_count", "gpt-5", "completed"] == 2
    assert found["dendro_first_token_seconds_count", "gpt-5"] == 2
    assert found["dendro_tool_call_seconds_count", "exec"] == 1
    for name in ("response_to_commit", "claim_to_request"):
        assert found[f"dendro_{name}_seconds_count",] == (2 if name == "response_to_commit" else 1)
    assert found["dendro_submit_to_claim_seconds_count", POOL] == 1
    assert found["dendro_commit_seconds_count",] >= 4
    assert found["dendro_rollout_entries_total",] == len(await harness.log(session)) - born
    assert found["dendro_sessions_held",] == 0
    assert found["dendro_takeovers_total",] == 0


async def test_session_that_waits_for_a_person_is_parked_as_that(harness: Harness) -> None:
    metrics = observed(harness)
    harness.models.will([calls("c1", ask=True), ends()])
    session = await harness.session("untrusted")
    await harness.say(session)
    await served(harness, session, "exec_approval_request")
    assert figures(metrics.page())["dendro_sessions_parked_total", "awaiting_approval"] == 1
    fleet = FleetMetrics(metrics, harness.broker, (POOL,), time.monotonic)
    await fleet.look()
    assert figures(metrics.page())["dendro_open_requests",] == 1


async def test_next_worker_counts_a_takeover_and_not_the_time_that_the_lost_one_began(
    harness: Harness,
) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    runner.lose()
    assert await task is Ended.LOST
    await holder_died(harness.broker, session)
    metrics = observed(harness)
    await served(harness, session, "task_complete")
    found = figures(metrics.page())
    assert found["dendro_takeovers_total",] == 1
    assert ("dendro_tool_call_seconds_count", "exec") not in found
    assert found["dendro_tasks_ended_total", "user", "completed"] == 1


async def test_worker_counts_a_request_that_is_sent_again(harness: Harness) -> None:
    metrics = observed(harness)
    harness.models.will([RetryableModelError("cut off", delay_s=0.0)], [message("done"), ends()])
    session = await harness.session()
    await harness.say(session)
    await served(harness, session, "task_complete")
    found = figures(metrics.page())
    assert found["dendro_model_retries_total", "retry"] == 1
    assert found["dendro_model_request_seconds_count", "gpt-5", "retry"] == 1
    assert found["dendro_turns_total", "turn"] == 1


@pytest.mark.parametrize(
    ("info", "label"),
    [
        (CodexErrorKind.CONTEXT_WINDOW_EXCEEDED, "context_window_exceeded"),
        ({"response_stream_disconnected": {"http_status_code": 500}}, "response_stream_disconnected"),
        ("a kind of a later version", "other"),
        ({"sk-secret": 1}, "other"),
        (None, "other"),
    ],
)
def test_worker_counts_errors_by_the_kinds_that_it_knows(info: object, label: str) -> None:
    metrics = Metrics("1")
    work = WorkMetrics(metrics, time.monotonic)
    entry = e.Entry(e.EVENT_MSG, {"type": "error", "message": "x", "codex_error_info": info})
    work.claimed(claimed())
    work.committed(CommittedStep(CLAIM, State(), State(), (entry,), (), 0, 0, 0.001))
    assert figures(metrics.page())["dendro_errors_total", label] == 1


def test_models_beyond_the_hundredth_are_one_label() -> None:
    metrics = Metrics("1")
    names = [metrics.name(f"model-{number}") for number in range(MOST_NAMES + 50)]
    assert names[:MOST_NAMES] == [f"model-{number}" for number in range(MOST_NAMES)]
    assert set(names[MOST_NAMES:]) == {"other"}
    assert metrics.name("model-0") == "model-0"


@pytest.mark.parametrize("name", ["x" * 65, "", "new\nline", 'quo"te', "é{}"])
def test_name_that_is_none_is_no_label(name: str) -> None:
    assert Metrics("1").name(name) == "other"


def test_claim_that_was_lost_does_not_end_the_one_that_followed_it() -> None:
    metrics = Metrics("1")
    work = WorkMetrics(metrics, time.monotonic)
    work.claimed(claimed())
    work.ended(replace(CLAIM, claim_id="c0"), "lost", "running")
    assert figures(metrics.page())["dendro_sessions_held",] == 1
    work.ended(CLAIM, "parked", "idle")
    found = figures(metrics.page())
    assert found["dendro_sessions_held",] == 0
    # A session that is lost is not parked, whatever it does.
    assert {key for key in found if key[0] == "dendro_sessions_parked_total"} == {
        ("dendro_sessions_parked_total", "idle")
    }


async def test_queue_tells_how_many_sessions_wait_and_for_how_long(harness: Harness) -> None:
    metrics = Metrics("1")
    sessions = [await harness.session(shard=shard) for shard in (0, 1, 1)]
    for session in sessions:
        await harness.say(session)
    clock = [0.0]
    fleet = FleetMetrics(metrics, harness.broker, (POOL,), lambda: clock[0])
    await fleet.look()
    found = figures(metrics.page())
    assert found["dendro_queue_depth", POOL] == 3
    assert found["dendro_sessions_leased", POOL] == 0
    assert 0 <= found["dendro_queue_age_seconds", POOL] < 60
    await harness.claimed(sessions[0])
    await fleet.look()
    assert figures(metrics.page())["dendro_queue_depth", POOL] == 3, "asked for again within two seconds"
    clock[0] = 3.0
    await fleet.look()
    found = figures(metrics.page())
    assert (found["dendro_queue_depth", POOL], found["dendro_sessions_leased", POOL]) == (2, 1)


def test_call_that_its_task_ended_is_not_counted_when_its_id_comes_again() -> None:
    metrics = Metrics("1")
    work = WorkMetrics(metrics, time.monotonic)
    work.claimed(claimed())
    for fact in (
        CallMoved(CallId("c1"), Phase.RUNNING),
        TaskEnded("failed"),
        CallMoved(CallId("c1"), Phase.DONE),
    ):
        work.committed(CommittedStep(CLAIM, State(), State(), (e.fact(fact),), (), 0, 0, 0.001))
    found = figures(metrics.page())
    assert found["dendro_tasks_ended_total", "other", "failed"] == 1
    assert not [key for key in found if key[0] == "dendro_tool_call_seconds_count"]


async def test_worker_counts_renewals_that_stand_are_lost_and_are_not_answered(harness: Harness) -> None:
    metrics = observed(harness)
    assert harness.ports.observer is not None
    session = await harness.session()
    await harness.say(session)
    held = (await harness.claimed(session)).claim
    leases = Leases(
        WorkerSettings(), lambda *_: None, lambda: 0.0, None, harness.ports.observer.renewals_failed
    )
    leases.hold(held, 0.0, lambda: 0)
    worker = harness.worker()
    worker._renewed(await leases.renew(harness.broker))
    await harness.broker.trees.revoke(session)
    worker._renewed(await leases.renew(harness.broker))
    harness.connection.before["renew"] = lost(1)
    await leases.renew(harness.ports.broker)
    found = figures(metrics.page())
    assert found["dendro_renewals_total", "renewed"] == 1
    assert found["dendro_renewals_total", "lost"] == 1
    assert found["dendro_renewals_total", "unanswered"] == 1


def test_worker_counts_what_its_supervisor_killed() -> None:
    metrics = Metrics("1")
    work = WorkMetrics(metrics, time.monotonic)
    for why in ("timeout", "killed", "killed"):
        work.killed(why)
    found = figures(metrics.page())
    assert (
        found["dendro_supervisor_kills_total", "killed"],
        found["dendro_supervisor_kills_total", "timeout"],
    ) == (2, 1)


STATE = State(settings=TurnSettings("/w", "never", {"mode": "read-only"}, "gpt-5"))
USED = {
    "input_tokens": 100,
    "cached_input_tokens": 40,
    "output_tokens": 30,
    "reasoning_output_tokens": 7,
    "total_tokens": 130,
}


def step(*facts: f.Fact, spent: tuple[Settlement, ...] = ()) -> CommittedStep:
    """A step of the claimed session that says these facts."""
    return CommittedStep(CLAIM, STATE, STATE, tuple(map(e.fact, facts)), spent, 0, 0, 0.001)


def working() -> tuple[Metrics, WorkMetrics, list[float]]:
    """The metrics of a worker that holds a session, and the time of its clock."""
    metrics, now = Metrics("1"), [0.0]
    work = WorkMetrics(metrics, lambda: now[0])
    work.claimed(claimed())
    return metrics, work, now


@pytest.mark.parametrize(
    "ended", [f.RequestCompleted, f.RequestRetried, f.RequestDelayed, f.RequestFailed, f.RequestStopped]
)
def test_tokens_are_counted_as_providers_bill_them_however_their_request_ended(ended: type) -> None:
    metrics, work, _ = working()
    for number in (1, 2):
        work.committed(step(ended(n=number, usage=USED)))
    found = figures(metrics.page())
    counted = {key[1:]: value for key, value in found.items() if key[0] == "dendro_model_tokens_total"}
    assert counted == {
        ("input", "gpt-5"): 120,
        ("cached_input", "gpt-5"): 80,
        ("output", "gpt-5"): 60,
        ("reasoning_output", "gpt-5"): 14,
    }


def test_cost_of_requests_is_counted_in_dollars_and_an_unseen_end_costs_nothing_known() -> None:
    metrics, work, _ = working()
    seen = (Settlement("r1", Spend(cost=1_500_000)), Settlement("r2", Spend(cost=250_000)))
    for spent in (seen, (Settlement("r3", None),), (Settlement("r4", Spend(cost=1_000_000)),)):
        work.committed(step(spent=spent))
    assert figures(metrics.page())["dendro_model_cost_dollars_total", "gpt-5"] == 2.75


def test_each_request_has_its_own_time_to_the_first_event_and_to_its_end() -> None:
    metrics, work, now = working()
    for number, (first, end) in enumerate(((1.0, 5.0), (2.0, 3.0)), 1):
        work.streamed(STATE_OF_CLAIM, "sent")
        now[0] += first
        work.streamed(STATE_OF_CLAIM, "coming")
        now[0] += end - first
        for moment in ("coming", "completed"):
            work.streamed(STATE_OF_CLAIM, moment)
        now[0] += 0.5
        work.committed(step(f.RequestCompleted(n=number)))
    found = figures(metrics.page())
    assert found["dendro_first_token_seconds_sum", "gpt-5"] == 1 + 2
    assert found["dendro_model_request_seconds_sum", "gpt-5", "completed"] == 5 + 3 + 2 * 0.5
    assert found["dendro_response_to_commit_seconds_sum",] == 2 * 0.5


STATE_OF_CLAIM = replace(STATE, facts=replace(STATE.facts, session_id=CLAIM.session))


async def test_each_pool_of_a_worker_has_figures_of_its_own(harness: Harness) -> None:
    metrics = Metrics("1")
    session = await harness.session()
    await harness.say(session)
    pools = ("before", POOL, "behind")
    await FleetMetrics(metrics, harness.broker, pools, time.monotonic).look()
    found = figures(metrics.page())
    assert [found["dendro_queue_depth", pool] for pool in pools] == [0, 1, 0]
    await harness.claimed(session)
    await FleetMetrics(metrics, harness.broker, pools, time.monotonic).look()
    found = figures(metrics.page())
    assert [found["dendro_sessions_leased", pool] for pool in pools] == [0, 1, 0]
    assert [found["dendro_queue_depth", pool] for pool in pools] == [0, 0, 0]


def given(model: str) -> TurnSettings:
    return TurnSettings("/w", "never", {"mode": "read-only"}, model)


def at_work(kind: TaskKind = "user", model: str = "gpt-5", **more: Any) -> State:
    """The state of the claimed session in the middle of a task."""
    return replace(STATE_OF_CLAIM, task=Task(SubmissionId("u1"), kind, given(model), **more))


def between(before: State, after: State, *facts: f.Fact) -> CommittedStep:
    return CommittedStep(CLAIM, before, after, tuple(map(e.fact, facts)), (), 0, 0, 0.001)


def begun(kind: TaskKind) -> f.TaskBegun:
    return f.TaskBegun(SubmissionId("u2"), kind, given("gpt-5"))


@pytest.mark.parametrize("kind", ["user", "compact", "plan", "review", "shell"])
def test_task_that_ends_in_the_step_that_begins_it_ends_as_its_own_kind(kind: Any) -> None:
    """A task whose folder is not there is over as soon as it has begun."""
    metrics, work, _ = working()
    other: TaskKind = "plan" if kind == "user" else "user"
    work.committed(step(begun(kind), TaskEnded("failed")))
    # The same behind the end of another one, then one that a lost worker had begun.
    work.committed(between(at_work(other), STATE, TaskEnded("replaced"), begun(kind), TaskEnded("failed")))
    work.committed(between(STATE, at_work(kind), begun(kind)))
    work.committed(between(at_work(kind), STATE, TaskEnded("completed")))
    work.committed(between(at_work(other), STATE, TaskEnded("interrupted")))
    found = figures(metrics.page())
    assert {key[1:]: value for key, value in found.items() if key[0] == "dendro_tasks_ended_total"} == {
        (kind, "failed"): 2,
        (other, "replaced"): 1,
        (kind, "completed"): 1,
        (other, "interrupted"): 1,
    }


@pytest.mark.parametrize("purpose", ["turn", "compact"])
def test_turn_is_counted_by_what_its_request_was_for_and_by_the_model_of_its_task(purpose: Any) -> None:
    metrics, work, now = working()
    state = at_work(model="o3", request=Request(1, purpose, 1))
    work.streamed(state, "sent")
    now[0] = 2.0
    work.committed(between(state, at_work(model="o3"), f.RequestCompleted(n=1, usage=USED)))
    work.committed(CommittedStep(CLAIM, state, STATE, (), (Settlement("r1", Spend(cost=1)),), 0, 0, 0.0))
    found = figures(metrics.page())
    assert {key for key in found if key[0] == "dendro_turns_total"} == {("dendro_turns_total", purpose)}
    assert found["dendro_model_request_seconds_sum", "o3", "completed"] == 2.0
    assert found["dendro_model_tokens_total", "output", "o3"] == 30
    assert ("dendro_model_cost_dollars_total", "o3") in found


def test_sessions_of_one_worker_have_their_own_times() -> None:
    metrics, work, now = working()
    others = replace(CLAIM, session=SessionId("t"), claim_id="c9")
    work.claimed(replace(claimed(), claim=others))
    there = replace(STATE, facts=replace(STATE.facts, session_id=others.session))
    for state, moment, at in (
        *((STATE_OF_CLAIM, "sent", 0.0), (there, "sent", 1.0)),
        *((STATE_OF_CLAIM, "coming", 5.0), (there, "coming", 6.5), (there, "completed", 8.0)),
        (STATE_OF_CLAIM, "completed", 9.0),
    ):
        now[0] = at
        work.streamed(state, moment)  # type: ignore[arg-type]
    for claim, at in ((CLAIM, 10.0), (others, 12.0)):
        now[0] = at
        work.committed(replace(step(f.RequestCompleted(n=1)), claim=claim))
    found = figures(metrics.page())
    assert found["dendro_first_token_seconds_sum", "gpt-5"] == 5.0 + 5.5
    assert found["dendro_model_request_seconds_sum", "gpt-5", "completed"] == 10.0 + 11.0
    assert found["dendro_response_to_commit_seconds_sum",] == 1.0 + 4.0


@pytest.mark.parametrize("end", ["each", "together", "with the task"])
def test_calls_that_run_at_once_have_their_own_times_by_their_kinds(end: str) -> None:
    metrics, work, now = working()
    mcp = Mcp("time", "now", {}, "/w").work(sandboxed=False)
    works: dict[str, CallWork] = {"c1": mcp, "c2": AwaitWork((), 1, 9)}
    made = Calls(Call(CallId(id), "x", {}, work=work) for id, work in works.items())
    during = at_work(calls=made)
    for at, (id, phase) in enumerate((("c1", Phase.RUNNING), ("c2", Phase.WAITING)), 1):
        now[0] = float(at)
        work.committed(between(at_work(), during, CallMoved(CallId(id), phase)))
    now[0] = 10.0
    ids = tuple(map(CallId, works))
    every: dict[str, tuple[f.Fact, ...]] = {
        "each": tuple(CallMoved(id, Phase.DONE) for id in ids),
        "together": (f.CallsClosed(ids),),
        "with the task": (f.CallsClosed(ids), TaskEnded("interrupted")),
    }
    work.committed(between(during, STATE, *every[end]))
    found = figures(metrics.page())
    kinds = {"mcp": 9.0, "await": 8.0}
    assert {
        key[1]: value for key, value in found.items() if key[0] == "dendro_tool_call_seconds_sum"
    } == kinds


@pytest.mark.parametrize(
    ("arrived", "waited"),
    [
        ([("submission", 2_000)], [3.0]),
        ([("submission", 4_000), ("submission", 1_000)], [1.0]),
        ([("submission", 9_000)], [0.0]),
        ([("timer", 1_000)], []),
        ([], []),
    ],
)
def test_wait_of_what_a_claim_finds_first_is_measured_where_a_person_has_sent_it(
    arrived: list[tuple[Any, int]], waited: list[float]
) -> None:
    metrics, now = Metrics("1"), [0.0]
    work = WorkMetrics(metrics, lambda: now[0])
    first = tuple(
        SqEntry(f"{n}-0", kind, b"{}", "ann", f"u{n}", "ann", 0, at_ms)
        for n, (kind, at_ms) in enumerate(arrived, 1)
    )
    work.claimed(replace(claimed(), now_ms=5_000, first=first))
    found = figures(metrics.page())
    assert found.get(("dendro_submit_to_claim_seconds_count", POOL), 0) == len(waited)
    assert found.get(("dendro_submit_to_claim_seconds_sum", POOL), 0) == sum(waited)
    assert found["dendro_claims_total", POOL] == 1


@pytest.mark.parametrize("how", list(Ended))
def test_claim_that_is_over_is_counted_as_it_ended_and_its_session_as_parked_where_it_was(how: Ended) -> None:
    metrics, work, _ = working()
    work.ended(CLAIM, how, "awaiting_answer")
    found = figures(metrics.page())
    assert found["dendro_claims_ended_total", str(how)] == 1
    parked = {key[1:] for key in found if key[0] == "dendro_sessions_parked_total"}
    assert parked == ({("awaiting_answer",)} if how is Ended.PARKED else set())


def test_first_request_of_each_claim_is_measured_from_that_claim() -> None:
    metrics, work, now = working()
    for at in (2.0, 7.0):
        now[0] = at
        work.committed(step(f.RequestBegun(1, "turn", 1)))
    work.ended(CLAIM, "parked", "idle")
    now[0] = 20.0
    work.claimed(claimed())
    now[0] = 23.0
    work.committed(step(f.RequestBegun(2, "turn", 2)))
    found = figures(metrics.page())
    assert found["dendro_claim_to_request_seconds_count",] == 2
    assert found["dendro_claim_to_request_seconds_sum",] == 2.0 + 3.0


def test_each_of_several_observers_hears_every_moment_in_their_order() -> None:
    heard: list[tuple[int, str, object]] = []

    class Hearing:
        def __init__(self, number: int) -> None:
            self.number = number

        def __getattr__(self, moment: str) -> Any:
            return lambda *given, **named: heard.append((self.number, moment, (given, named)))

    all_of_them: Any = Observers(*(Hearing(number) for number in range(3)))
    moments = [name for name in vars(Observer) if not name.startswith("_")]
    assert len(moments) >= 8
    for moment in moments:
        names = list(inspect.signature(getattr(Observer, moment)).parameters.values())[1:]
        given = [name.name for name in names if name.kind is not name.KEYWORD_ONLY]
        named = {name.name: True for name in names if name.kind is name.KEYWORD_ONLY}
        getattr(all_of_them, moment)(*given, **named)
        assert heard == [(number, moment, (tuple(given), named)) for number in range(3)]
        heard.clear()
