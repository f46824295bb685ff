"""The observer that counts what a worker does.

Durations are measured by this process's clock between moments that it saw itself: what was begun under
another worker is counted, and its duration is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Claim, Claimed
from orchestrator.core import facts as f
from orchestrator.core.calls import Phase
from orchestrator.core.entries import DENDRO, kind_of, read_event
from orchestrator.core.state import State
from orchestrator.core.tokens import Usage
from orchestrator.protocol import events as ev
from orchestrator.protocol.events import CodexErrorKind, HttpFaultKind, fault_kind
from orchestrator.telemetry import metric_names as m
from orchestrator.telemetry.metrics import OTHER, Metrics
from orchestrator.telemetry.observer import CommittedStep, StreamMoment

_FAULTS = frozenset(map(str, (*CodexErrorKind, *HttpFaultKind)))
_BEGUN = (Phase.RUNNING, Phase.WAITING)


@dataclass(slots=True)
class _Held:
    """The moments of one claim that durations are counted from."""

    claim_id: str
    claimed_at: float
    asked: bool = False
    """Whether a model request was begun under the claim."""
    task: str | None = None
    """The kind of the task that has begun under the claim and not ended: one step may hold both."""
    sent_at: float | None = None
    first: bool = False
    completed_at: float | None = None
    calls: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The kind and the beginning of each call that runs."""


class WorkMetrics:
    """Counts for one worker."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._held: dict[str, _Held] = {}
        metrics.gauge(m.HELD).set_function(lambda: len(self._held))

    def claimed(self, claimed: Claimed) -> None:
        pool = self._metrics.name(claimed.claim.pool)
        self._held[claimed.claim.session] = _Held(claimed.claim.claim_id, self._clock())
        self._metrics.counter(m.CLAIMS, pool).inc()
        first = claimed.first[0] if claimed.first else None
        if first is not None and first.kind == "submission":
            waited_s = max(0, claimed.now_ms - first.at_ms) / 1000
            self._metrics.histogram(m.SUBMIT_TO_CLAIM, pool).observe(waited_s)

    def began(self, claim: Claim, state: State, *, took_over: bool) -> None:
        if took_over:
            self._metrics.counter(m.TAKEOVERS).inc()

    def committed(self, step: CommittedStep) -> None:
        self._metrics.histogram(m.COMMIT).observe(step.took_s)
        self._metrics.counter(m.ENTRIES).inc(len(step.entries))
        held = self._held.get(step.claim.session)
        if held is None:
            return
        for entry in step.entries:
            if entry.type == DENDRO:
                self._fact(held, step, f.decode(entry.payload))
            elif kind_of(entry.type, entry.payload) is ev.Error:
                told = read_event(entry.payload)
                self._metrics.counter(m.ERRORS, _fault(told) if isinstance(told, ev.Error) else OTHER).inc()
        if step.settlements:
            self._spent(step)

    def streamed(self, state: State, moment: StreamMoment) -> None:
        held = self._held.get(state.facts.session_id)
        if held is None:
            return
        now = self._clock()
        match moment:
            case "sent":
                held.sent_at, held.first = now, False
            case "coming" if not held.first and held.sent_at is not None:
                held.first = True
                self._metrics.histogram(m.FIRST_TOKEN, self._model(state)).observe(now - held.sent_at)
            case "completed":
                held.completed_at = now
            case _:
                pass

    def ended(self, claim: Claim, how: str, status: str) -> None:
        held = self._held.get(claim.session)
        # This worker may have taken the session again before the end of a claim that it lost.
        if held is not None and held.claim_id == claim.claim_id:
            del self._held[claim.session]
        self._metrics.counter(m.CLAIMS_ENDED, how).inc()
        if how == "parked":
            self._metrics.counter(m.PARKED, status).inc()

    def renewed(self, kept: int, lost: int) -> None:
        self._metrics.counter(m.RENEWALS, "renewed").inc(kept)
        if lost:
            self._metrics.counter(m.RENEWALS, "lost").inc(lost)

    def renewals_failed(self, claims: int) -> None:
        self._metrics.counter(m.RENEWALS, "unanswered").inc(claims)

    def killed(self, why: str) -> None:
        self._metrics.counter(m.KILLS, why).inc()

    # ── facts ─────────────────────────────────────────────────────────────────────────────────

    def _fact(self, held: _Held, step: CommittedStep, fact: f.Fact | f.UnknownFact) -> None:
        match fact:
            case f.RequestBegun() if not held.asked:
                held.asked = True
                self._metrics.histogram(m.CLAIM_TO_REQUEST).observe(self._clock() - held.claimed_at)
            case ended if isinstance(ended, f.RequestEnded):
                self._request_ended(held, step, ended)
            case f.CallMoved(call_id, phase) if phase in _BEGUN:
                held.calls[call_id] = _kind(step, call_id), self._clock()
            case f.CallMoved(call_id, Phase.DONE):
                self._call_over(held, call_id)
            case f.CallsClosed(call_ids):
                for call_id in call_ids:
                    self._call_over(held, call_id)
            case f.TaskBegun(task=kind):
                self._metrics.counter(m.TASKS_BEGUN, kind).inc()
                held.task = kind
            case f.TaskEnded(outcome):
                before = step.before.task.kind if step.before.task is not None else OTHER
                self._metrics.counter(m.TASKS_ENDED, held.task or before, outcome).inc()
                held.task = None
                held.calls.clear()
            case _:
                # Nothing else is counted.
                return

    def _request_ended(self, held: _Held, step: CommittedStep, fact: f.RequestEnded) -> None:
        now, model = self._clock(), self._model(step.before)
        if held.sent_at is not None:
            self._metrics.histogram(m.REQUEST, model, fact.outcome).observe(now - held.sent_at)
        if held.completed_at is not None and isinstance(fact, f.RequestCompleted):
            self._metrics.histogram(m.RESPONSE_TO_COMMIT).observe(now - held.completed_at)
        held.sent_at = held.completed_at = None
        match fact:
            case f.RequestCompleted():
                request = step.before.task.request if step.before.task is not None else None
                self._metrics.counter(m.TURNS, request.purpose if request is not None else "turn").inc()
            case f.RequestRetried() | f.RequestDelayed():
                self._metrics.counter(m.RETRIES, fact.outcome).inc()
            case f.RequestFailed() | f.RequestStopped():
                pass
            case _:
                assert_never(fact)
        if fact.usage:
            self._used(model, Usage.of(fact.usage))

    def _used(self, model: str, usage: Usage) -> None:
        counts = {
            "input": max(0, usage.input_tokens - usage.cached_input_tokens),
            "cached_input": usage.cached_input_tokens,
            "output": usage.output_tokens,
            "reasoning_output": usage.reasoning_output_tokens,
        }
        for kind, tokens in counts.items():
            if tokens:
                self._metrics.counter(m.TOKENS, model, kind).inc(tokens)

    def _spent(self, step: CommittedStep) -> None:
        cost = sum(one.used.cost for one in step.settlements if one.used is not None)
        if cost:
            self._metrics.counter(m.COST, self._model(step.before)).inc(cost / 1_000_000)

    def _call_over(self, held: _Held, call_id: str) -> None:
        begun = held.calls.pop(call_id, None)
        if begun is not None:
            kind, at = begun
            self._metrics.histogram(m.CALLS, kind).observe(self._clock() - at)

    def _model(self, state: State) -> str:
        return self._metrics.name(state.in_force.model)


def _fault(error: ev.Error) -> str:
    """The kind of an `error` event; a kind of a newer version is `other`."""
    kind = fault_kind(error.codex_error_info)
    return kind if kind in _FAULTS else OTHER


def _kind(step: CommittedStep, call_id: str) -> str:
    for task in (step.after.task, step.before.task):
        call = task.call(call_id) if task is not None else None
        if call is not None and call.work is not None:
            return call.kind or OTHER
    return OTHER


# ── fleet ─────────────────────────────────────────────────────────────────────────────────────────
# Figures about the whole deployment, asked of Redis when somebody scrapes.
#
# Every worker tells the same figures of its pools: take their maximum. They are asked for at most every
# `FRESH_S` seconds, however many scrape.


FRESH_S = 2.0


class FleetMetrics:
    """The depth and age of each pool's queue, and the open requests."""

    def __init__(
        self, metrics: Metrics, broker: Broker, pools: Sequence[str], clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._broker = broker
        self._pools = tuple(pools)
        self._clock = clock
        self._looked_at: float | None = None

    async def look(self) -> None:
        """Brings the figures up to date; raises `BrokerError` where Redis does not answer."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < FRESH_S:
            return
        for pool in self._pools:
            queue = await self._broker.claims.queue_of(pool)
            label = self._metrics.name(pool)
            self._metrics.gauge(m.QUEUE_DEPTH, label).set(queue.due)
            self._metrics.gauge(m.LEASED, label).set(queue.leased)
            self._metrics.gauge(m.QUEUE_AGE, label).set(queue.age_ms / 1000)
        self._metrics.gauge(m.OPEN_REQUESTS).set(await self._broker.requests.count_open_requests())
        self._looked_at = now
