"""Traces by OpenTelemetry: the observer that hands a session's spans to the SDK.

A worker that takes a session over in the middle of a task reads in the log what has begun; the steps that it
commits meanwhile wait here. The SDK's own variables say where spans go, and how many are kept. Whether a
trace is sampled follows from its id, so all workers decide alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, get_args

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Claim, Claimed, StoredEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import CallWork, Phase, UnknownWork
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.core.tokens import Usage
from orchestrator.protocol import events as ev
from orchestrator.protocol.events import fault_kind
from orchestrator.protocol.wire import JsonMapping
from orchestrator.telemetry.observer import CommittedStep, StreamMoment

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

    async def _since(self, session: SessionId, seq: int, task_id: str) -> Sequence[tuple[e.Entry, int]]:
        """The entries from the beginning of a task on; none if it is not in Redis any more."""
        found: list[tuple[e.Entry, int]] = []
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


def _timed(stored: StoredEntry) -> tuple[e.Entry, int]:
    return e.decode_entry(stored.payload), e.line_ms(stored.payload)


def _begins(entry: e.Entry, task_id: str) -> bool:
    if entry.type != e.DENDRO or f.kind_of(entry.payload) is not f.TaskBegun:
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


# ── spans ─────────────────────────────────────────────────────────────────────────────────────────
# The spans of a session, as a fold over its log: tasks, turns, model requests, tool calls.
#
# A span is told when it has ended, with its beginning. Ids are derived from the ids that the log has, so
# that workers which share a turn tell of one trace; a worker that has not seen a beginning reads it from
# the log. Knows no SDK. Names and attributes are those of OpenTelemetry's conventions for generative AI,
# as of version 1.41.
#
#   task ──► turn ──► chat MODEL           the trace is the tree's; a child's tasks hang under the call or the
#              └────► execute_tool TOOL    task that made it


Value = str | int | float | bool
MOST_CONTENT = 4_096
"""Characters of a prompt or an output in a span, where a person wants them there."""
_TOOL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FACTS: frozenset[e.Kind] = frozenset(
    {f.TaskBegun, f.TaskEnded, f.RequestBegun, *get_args(f.RequestEnded), f.CallMoved, f.CallsClosed}
)
_CONTENTS: frozenset[e.Kind] = frozenset({ev.UserMessage, ev.TaskComplete})
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "reasoning_output_tokens": "gen_ai.usage.reasoning.output_tokens",
}


def trace_id(tree: str) -> int:
    """The trace of a tree."""
    return int.from_bytes(blake2b(tree.encode(), digest_size=16, person=b"dendro-trace").digest()) or 1


def span_id(session: str, *key: str) -> int:
    """The id of a span, by its session and what it is about; ids of clients may hold anything."""
    digest = blake2b(digest_size=8, person=b"dendro-span")
    for part in (session, *key):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return int.from_bytes(digest.digest()) or 1


@record
class EndedSpan:
    """A span that is over; times are milliseconds since the epoch."""

    name: str
    id: int
    parent: int | None
    begun_ms: int
    ended_ms: int
    attributes: Mapping[str, Value]
    error: str = ""
    """The kind of error that it ended with (`error.type`)."""
    client: bool = False
    """Whether it is a call of another system."""


@dataclass(slots=True)
class _Open:
    """A span that has begun."""

    id: int
    begun_ms: int
    attributes: dict[str, Value] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class SessionSpans:
    """The open spans of one session."""

    facts: SessionFacts
    contents: bool = False
    """Whether prompts, outputs and arguments are told."""
    task: _Open | None = None
    task_id: str = ""
    _turn: _Open | None = None
    _answered: bool = False
    """Whether the turn's request was answered: the next one begins another turn."""
    _requests: dict[int, _Open] = field(default_factory=dict)
    _calls: dict[str, _Open] = field(default_factory=dict)

    @property
    def _session(self) -> str:
        return self.facts.session_id

    def receive(self, entry: e.Entry, at_ms: int) -> Iterator[EndedSpan]:
        """The spans that end with the next entry of the log."""
        kind = e.kind_of(entry.type, entry.payload)
        if kind in _FACTS:
            yield from self._fact(f.decode(entry.payload), at_ms)
        elif entry.type == e.RESPONSE_ITEM:
            self._item(entry.payload, at_ms)
        elif self.task is not None and entry.id == self.task_id and self._tells(kind):
            self._event(e.read_event(entry.payload), self.task)

    def _tells(self, kind: e.Kind) -> bool:
        """Whether an event of this kind tells of its task as a whole."""
        return kind is ev.Error or (self.contents and kind in _CONTENTS)

    def begin_unseen(self, task_id: str, at_ms: int) -> None:
        """Takes a task as begun whose beginning cannot be read any more."""
        self._begin_task(task_id, "", None, at_ms)
        if self.task is not None:
            self.task.attributes["dendro.begin_unknown"] = True

    def _fact(self, fact: f.Fact | f.UnknownFact, at_ms: int) -> Iterator[EndedSpan]:
        match fact:
            case f.TaskBegun():
                self._begin_task(fact.id, fact.task, fact.settings, at_ms)
            case f.TaskEnded(outcome):
                yield from self._end_task(outcome, at_ms)
            case f.RequestBegun(n, purpose):
                yield from self._begin_request(n, purpose, at_ms)
            case ended if isinstance(ended, f.RequestEnded):
                yield from self._end_request(ended, at_ms)
            case f.CallMoved(call_id, Phase.DONE):
                yield from self._end_call(call_id, at_ms)
            case f.CallMoved(call_id, work=work):
                self._move_call(call_id, work, at_ms)
            case f.CallsClosed(call_ids):
                for call_id in call_ids:
                    yield from self._end_call(call_id, at_ms, "closed")
            case _:
                # Nothing else begins or ends a span.
                return

    # ── tasks and turns ───────────────────────────────────────────────────────────────────────

    def _begin_task(self, id: str, kind: str, settings: TurnSettings | None, at_ms: int) -> None:
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": (settings and settings.model_provider) or "other",
            "gen_ai.request.model": (settings and settings.model) or "other",
            "gen_ai.conversation.id": self._session,
            "gen_ai.agent.id": str(self.facts.agent_id),
            "dendro.task.kind": kind,
            "dendro.task.id": id,
        }
        self.task, self.task_id = _Open(span_id(self._session, "task", id), at_ms, attributes), id
        self._turn, self._answered = None, False
        self._requests.clear()
        self._calls.clear()

    def _end_task(self, outcome: str, at_ms: int) -> Iterator[EndedSpan]:
        for call_id in list(self._calls):
            yield from self._end_call(call_id, at_ms, outcome)
        yield from self._end_turn(at_ms)
        if self.task is None:
            return
        ended, self.task, self.task_id = self.task, None, ""
        ended.attributes["dendro.task.outcome"] = outcome
        error = "" if outcome == "completed" and not ended.error else ended.error or outcome
        yield self._ended("invoke_agent", ended, self._origin(), at_ms, error)

    def _origin(self) -> int | None:
        """The span under which the session's tasks hang: the call or the task of the parent that made it."""
        facts = self.facts
        if facts.parent_session is None or facts.born_in is None:
            return None
        if facts.helper_call is not None:
            return span_id(facts.parent_session, "call", facts.born_in, facts.helper_call)
        return span_id(facts.parent_session, "task", facts.born_in)

    def _end_turn(self, at_ms: int) -> Iterator[EndedSpan]:
        turn, self._turn = self._turn, None
        if turn is not None:
            yield self._ended("turn", turn, self.task.id if self.task is not None else None, at_ms)

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _begin_request(self, n: int, purpose: str, at_ms: int) -> Iterator[EndedSpan]:
        if self._answered or self._turn is None:
            yield from self._end_turn(at_ms)
            self._turn = _Open(span_id(self._session, "turn", str(n)), at_ms)
            self._answered = False
        known = self.task.attributes if self.task is not None else {}
        taken = ("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.conversation.id")
        attributes: dict[str, Value] = {name: known[name] for name in taken if name in known}
        attributes |= {"gen_ai.operation.name": "chat", "dendro.request.purpose": purpose}
        self._requests[n] = _Open(span_id(self._session, "request", str(n)), at_ms, attributes)

    def _end_request(self, fact: f.RequestEnded, at_ms: int) -> Iterator[EndedSpan]:
        begun = self._requests.pop(fact.n, None)
        if begun is None:
            return
        self._answered = isinstance(fact, f.RequestCompleted)
        if isinstance(fact, f.RequestCompleted) and fact.response_id:
            begun.attributes["gen_ai.response.id"] = fact.response_id
        for name, tokens in Usage.of(fact.usage or {}).counts().items():
            if tokens and name in _USAGE:
                begun.attributes[_USAGE[name]] = tokens
        parent = self._turn.id if self._turn is not None else None
        name = f"chat {begun.attributes.get('gen_ai.request.model', '')}".strip()
        yield self._ended(name, begun, parent, at_ms, "" if self._answered else fact.outcome, client=True)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def _item(self, item: JsonMapping, at_ms: int) -> None:
        call_id, kind = item.get("call_id"), str(item.get("type"))
        if not isinstance(call_id, str) or self.task is None:
            return
        if kind.endswith("_call"):
            call = self._call(call_id, at_ms)
            name = str(item.get("name") or kind.removesuffix("_call"))
            # A model may call a tool that there is not, by any text.
            call.attributes["gen_ai.tool.name"] = name if _TOOL.fullmatch(name) else "other"
            if self.contents:
                given = item.get("arguments") or item.get("input") or item.get("action") or ""
                call.attributes["gen_ai.tool.call.arguments"] = _content(given)
        elif self.contents and call_id in self._calls:
            self._calls[call_id].attributes["gen_ai.tool.call.result"] = _content(item.get("output"))

    def _call(self, call_id: str, at_ms: int) -> _Open:
        found = self._calls.get(call_id)
        if found is None:
            attributes: dict[str, Value] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "other",
                "gen_ai.tool.call.id": call_id[:100],
                "gen_ai.tool.type": "function",
            }
            id = span_id(self._session, "call", self.task_id, call_id)
            found = self._calls[call_id] = _Open(id, at_ms, attributes)
        return found

    def _move_call(self, call_id: str, work: CallWork | None, at_ms: int) -> None:
        call = self._call(call_id, at_ms)
        kind = work.spec.get("kind") if isinstance(work, UnknownWork) else work and work.kind
        if kind:
            call.attributes["dendro.call.kind"] = str(kind)[:64]

    def _end_call(self, call_id: str, at_ms: int, error: str = "") -> Iterator[EndedSpan]:
        call = self._calls.pop(call_id, None)
        if call is not None:
            parent = self._turn.id if self._turn is not None else None
            yield self._ended(
                f"execute_tool {call.attributes['gen_ai.tool.name']}", call, parent, at_ms, error
            )

    def _event(self, event: ev.EventMsg, task: _Open) -> None:
        match event:
            case ev.Error(codex_error_info=info):
                kind = fault_kind(info)
                task.error = kind if kind is not None and _TOOL.fullmatch(kind) else "other"
            case ev.UserMessage(message=said):
                task.attributes.setdefault("gen_ai.input.messages", _content(said))
            case ev.TaskComplete(last_agent_message=said):
                task.attributes["gen_ai.output.messages"] = _content(said)
            case _:
                # Nothing else tells of a task as a whole.
                return

    def _ended(
        self,
        name: str,
        begun: _Open,
        parent: int | None,
        at_ms: int,
        error: str = "",
        *,
        client: bool = False,
    ) -> EndedSpan:
        return EndedSpan(
            name,
            begun.id,
            parent,
            begun.begun_ms,
            max(at_ms, begun.begun_ms),
            begun.attributes,
            error,
            client,
        )


def _content(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text[:MOST_CONTENT]
