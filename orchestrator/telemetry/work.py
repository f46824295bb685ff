"""The observer that counts what a worker does.

Durations are measured by this process's clock between moments that it saw itself: what was begun under
another worker is counted, and its duration is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.broker.records import Claim, Claimed
from orchestrator.core import facts as f
from orchestrator.core.calls import UnknownWork
from orchestrator.core.entries import DENDRO, EVENT_MSG
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Phase
from orchestrator.protocol import events as ev
from orchestrator.protocol.faults import CodexErrorKind, HttpFaultKind
from orchestrator.protocol.wire import JsonMapping, tag_of
from orchestrator.telemetry import catalogue as m
from orchestrator.telemetry.metrics import OTHER, Metrics
from orchestrator.telemetry.observer import CommittedStep, StreamMoment

_ERROR = tag_of(ev.Error)
_FAULTS = frozenset(map(str, (*CodexErrorKind, *HttpFaultKind)))
_BEGUN = (Phase.RUNNING, Phase.WAITING)
_TOKENS = ("cached_input", "output", "reasoning_output")


@dataclass(slots=True)
class _Held:
    """The moments of one claim that durations are counted from."""

    claim_id: str
    claimed_at: float
    asked: bool = False
    """Whether a model request was begun under the claim."""
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
        self._facts: Mapping[str, Callable[[_Held, CommittedStep, JsonMapping], None]] = {
            f.RequestBegun.kind: self._request_begun,
            f.RequestCompleted.kind: self._request_ended,
            f.CallMoved.kind: self._call_moved,
            f.CallsClosed.kind: self._calls_closed,
            f.TaskBegun.kind: self._task_begun,
            f.TaskEnded.kind: self._task_ended,
        }
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
                count = self._facts.get(entry.payload["kind"])
                if count is not None:
                    count(held, step, entry.payload)
            elif entry.type == EVENT_MSG and entry.payload["type"] == _ERROR:
                self._metrics.counter(m.ERRORS, _fault(entry.payload.get("codex_error_info"))).inc()
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

    def _request_begun(self, held: _Held, step: CommittedStep, fact: JsonMapping) -> None:
        if not held.asked:
            held.asked = True
            self._metrics.histogram(m.CLAIM_TO_REQUEST).observe(self._clock() - held.claimed_at)

    def _request_ended(self, held: _Held, step: CommittedStep, fact: JsonMapping) -> None:
        now, outcome = self._clock(), str(fact["outcome"])
        model = self._model(step.before)
        if held.sent_at is not None:
            self._metrics.histogram(m.REQUEST, model, outcome).observe(now - held.sent_at)
        if held.completed_at is not None and outcome == "completed":
            self._metrics.histogram(m.RESPONSE_TO_COMMIT).observe(now - held.completed_at)
        held.sent_at = held.completed_at = None
        if outcome == "completed":
            request = step.before.task.request if step.before.task is not None else None
            self._metrics.counter(m.TURNS, request.purpose if request is not None else "turn").inc()
        elif outcome in ("retry", "waiting"):
            self._metrics.counter(m.RETRIES, outcome).inc()
        if usage := fact.get("usage"):
            self._used(model, usage)

    def _used(self, model: str, usage: JsonMapping) -> None:
        counts = {kind: int(usage.get(f"{kind}_tokens") or 0) for kind in _TOKENS}
        fresh = int(usage.get("input_tokens") or 0) - counts["cached_input"]
        for kind, tokens in (("input", max(0, fresh)), *counts.items()):
            if tokens:
                self._metrics.counter(m.TOKENS, model, kind).inc(tokens)

    def _spent(self, step: CommittedStep) -> None:
        cost = sum(one.used.cost for one in step.settlements if one.used is not None)
        if cost:
            self._metrics.counter(m.COST, self._model(step.before)).inc(cost / 1_000_000)

    def _call_moved(self, held: _Held, step: CommittedStep, fact: JsonMapping) -> None:
        call_id, phase = str(fact["call_id"]), fact["phase"]
        if phase in _BEGUN:
            held.calls[call_id] = _kind(step, call_id), self._clock()
        elif phase == Phase.DONE:
            self._call_over(held, call_id)

    def _calls_closed(self, held: _Held, step: CommittedStep, fact: JsonMapping) -> None:
        for call_id in fact["call_ids"]:
            self._call_over(held, call_id)

    def _call_over(self, held: _Held, call_id: str) -> None:
        begun = held.calls.pop(call_id, None)
        if begun is not None:
            kind, at = begun
            self._metrics.histogram(m.CALLS, kind).observe(self._clock() - at)

    def _task_begun(self, held: _Held, step: CommittedStep, fact: JsonMapping) -> None:
        self._metrics.counter(m.TASKS_BEGUN, str(fact["task"])).inc()

    def _task_ended(self, held: _Held, step: CommittedStep, fact: JsonMapping) -> None:
        kind = step.before.task.kind if step.before.task is not None else OTHER
        self._metrics.counter(m.TASKS_ENDED, kind, str(fact["outcome"])).inc()
        held.calls.clear()

    def _model(self, state: State) -> str:
        return self._metrics.name(state.in_force.model)


def _fault(info: object) -> str:
    """The kind of an `error` event; a kind of a newer version is `other`."""
    if isinstance(info, Mapping):
        info = next(iter(info), None)
    return str(info) if info in _FAULTS else OTHER


def _kind(step: CommittedStep, call_id: str) -> str:
    for task in (step.after.task, step.before.task):
        call = task.call(call_id) if task is not None else None
        if call is not None and call.work is not None:
            return OTHER if isinstance(call.work, UnknownWork) else call.work.kind
    return OTHER
