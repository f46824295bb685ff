"""Traces by OpenTelemetry: the observer that hands a session's spans to the SDK.

A worker that takes a session over in the middle of a task reads in the log what has begun; the steps that it
commits meanwhile wait here. The SDK's own variables say where spans go, and how many are kept. Whether a
trace is sampled follows from its id, so all workers decide alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Claim, Claimed, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.entries import DENDRO, Entry
from orchestrator.core.entries.stored import decode_entry, line_ms
from orchestrator.core.ids import SessionId
from orchestrator.core.state import State
from orchestrator.telemetry.observer import CommittedStep, StreamMoment
from orchestrator.telemetry.spans import EndedSpan, SessionSpans, Value, span_id, trace_id

PAGE = 500
MOST_READ = 20
"""Pages of a log in which the beginning of a running task is looked for."""
CLOSE_S = 3.0
KEPT = 1_000
"""Sessions between two claims whose open spans are remembered."""


class _DerivedIds(IdGenerator):
    """Answers the ids that were put there for the next span."""

    def __init__(self) -> None:
        self.trace = self.span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


@dataclass(slots=True)
class _Traced:
    """A claimed session."""

    claim_id: str
    epoch: int
    pool: str
    seq: int
    claimed_ms: int
    claimed_at: float
    spans: SessionSpans | None = None
    """None until it is known what has begun."""
    waiting: list[CommittedStep] = field(default_factory=list)
    recalling: asyncio.Task[None] | None = None


class Tracing:
    """The traces of one worker."""

    def __init__(
        self,
        processor: SpanProcessor,
        reader: Logs,
        clock: Callable[[], float],
        resource: Resource | None = None,
        *,
        contents: bool = False,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._ids = _DerivedIds()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("dendro")
        self._reader = reader
        self._clock = clock
        self._contents = contents
        self._give_up = give_up
        self._held: dict[SessionId, _Traced] = {}
        self._left: OrderedDict[SessionId, tuple[int, SessionSpans]] = OrderedDict()

    async def aclose(self) -> None:
        """Sends what is left, if that is done within `CLOSE_S`: a worker that leaves waits no longer."""
        for held in self._held.values():
            if held.recalling is not None:
                held.recalling.cancel()
        sending = asyncio.create_task(asyncio.to_thread(self._provider.shutdown))
        done, _ = await asyncio.wait({sending}, timeout=CLOSE_S)
        if not done:
            # The exporter tries again and again; told to end, it stops.
            self._give_up()
        await sending

    # ── moments ───────────────────────────────────────────────────────────────────────────────

    def claimed(self, claimed: Claimed) -> None:
        claim = claimed.claim
        self._held[claim.session] = _Traced(
            claim.claim_id, claim.epoch, claim.pool, claimed.seq, claimed.now_ms, self._clock()
        )

    def began(self, claim: Claim, state: State, *, took_over: bool) -> None:
        held = self._of(claim)
        if held is None:
            return
        left = self._left.pop(claim.session, None)
        if left is not None and left[0] == held.seq:
            held.spans = left[1]
        elif state.task is None:
            held.spans = SessionSpans(state.facts, self._contents)
        else:
            held.recalling = asyncio.get_running_loop().create_task(
                self._recall(claim, held, state, state.task.id), name=f"trace:{claim.session}"
            )

    def committed(self, step: CommittedStep) -> None:
        held = self._of(step.claim)
        if held is None:
            return
        held.seq = step.seq
        if held.spans is None:
            held.waiting.append(step)
        else:
            self._fold(held.spans, step)

    def streamed(self, state: State, moment: StreamMoment) -> None:
        """The log tells of requests, too."""

    def ended(self, claim: Claim, how: str, status: str) -> None:
        held = self._of(claim)
        if held is None:
            return
        del self._held[claim.session]
        ended_ms = held.claimed_ms + int((self._clock() - held.claimed_at) * 1000)
        attributes: dict[str, Value] = {
            "dendro.pool": held.pool,
            "dendro.epoch": held.epoch,
            "dendro.worker": claim.worker,
        }
        id = span_id(claim.session, "claim", str(held.epoch))
        span = EndedSpan("claim", id, None, held.claimed_ms, ended_ms, {**attributes, "dendro.end": how})
        self._tell(claim.tree, span)
        if held.spans is not None and held.spans.task is not None:
            self._left[claim.session] = held.seq, held.spans
            if len(self._left) > KEPT:
                self._left.popitem(last=False)

    def renewed(self, kept: int, lost: int) -> None:
        """No part of a trace."""

    def renewals_failed(self, claims: int) -> None:
        """No part of a trace."""

    def killed(self, why: str) -> None:
        """The log tells of the command's end."""

    def _of(self, claim: Claim) -> _Traced | None:
        held = self._held.get(claim.session)
        return held if held is not None and held.claim_id == claim.claim_id else None

    # ── what began before ─────────────────────────────────────────────────────────────────────

    async def _recall(self, claim: Claim, held: _Traced, state: State, task_id: str) -> None:
        """Folds the log from the running task's beginning; of the spans that ended there others have told."""
        spans = SessionSpans(state.facts, self._contents)
        with contextlib.suppress(BrokerError):
            for entry, at_ms in await self._since(claim.session, held.seq, task_id):
                for _ in spans.receive(entry, at_ms):
                    pass
        if spans.task is None:
            spans.begin_unseen(task_id, held.claimed_ms)
        held.spans, waiting = spans, held.waiting
        held.waiting = []
        for step in waiting:
            self._fold(spans, step)

    async def _since(self, session: SessionId, seq: int, task_id: str) -> Sequence[tuple[Entry, int]]:
        """The entries from the beginning of a task on; none if it is not in Redis any more."""
        found: list[tuple[Entry, int]] = []
        last = seq
        for _ in range(MOST_READ):
            first = max(0, last - PAGE)
            page = list(await self._reader.read_rollout(session, first, last - first))
            found = [*map(_timed, page), *found]
            if any(_begins(entry, task_id) for entry, _ in found[: len(page)]):
                at = max(n for n, (entry, _) in enumerate(found) if _begins(entry, task_id))
                return found[at:]
            if not page or not first:
                return ()
            last = first
        return ()

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def _fold(self, spans: SessionSpans, step: CommittedStep) -> None:
        for entry in step.entries:
            for span in spans.receive(entry, step.at_ms):
                self._tell(step.claim.tree, span)

    def _tell(self, tree: str, span: EndedSpan) -> None:
        self._ids.trace, self._ids.span = trace_id(tree), span.id
        told = self._tracer.start_span(
            span.name,
            context=self._under(span.parent),
            kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
            attributes=dict(span.attributes),
            start_time=span.begun_ms * 1_000_000,
        )
        if span.error:
            told.set_attribute("error.type", span.error)
            told.set_status(Status(StatusCode.ERROR))
        told.end(span.ended_ms * 1_000_000)

    def _under(self, parent: int | None) -> Any:
        """The context of a parent that perhaps another worker tells of, sampled as its trace is."""
        if parent is None:
            return trace.set_span_in_context(trace.INVALID_SPAN)
        decision = self._provider.sampler.should_sample(None, self._ids.trace, "tree").decision
        kept = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if kept else TraceFlags.DEFAULT)
        above = SpanContext(self._ids.trace, parent, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(above))


def _timed(stored: StoredEntry) -> tuple[Entry, int]:
    return decode_entry(stored.payload), line_ms(stored.payload)


def _begins(entry: Entry, task_id: str) -> bool:
    if entry.type != DENDRO or f.kind_of(entry.payload) is not f.TaskBegun:
        return False
    fact = f.decode(entry.payload)
    return isinstance(fact, f.TaskBegun) and fact.id == task_id


def exported(
    environ: Mapping[str, str], version: str, worker: str, reader: Logs, *, contents: bool
) -> Tracing:
    """Traces of a worker that go by OTLP over HTTP, as the standard variables say."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    given = {"service.version": version, "service.instance.id": worker}
    # What is given here would win over the variable.
    name = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "dendro-worker"}
    exporter = OTLPSpanExporter()
    return Tracing(
        BatchSpanProcessor(exporter),
        reader,
        time.monotonic,
        Resource.create({**given, **name}),
        contents=contents,
        give_up=exporter.shutdown,
    )
