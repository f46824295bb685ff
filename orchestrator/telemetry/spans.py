"""The spans of a session, as a fold over its log: tasks, turns, model requests, tool calls.

A span is told when it has ended, with its beginning. Ids are derived from the ids that the log has, so that
workers which share a turn tell of one trace; a worker that has not seen a beginning reads it from the log.
Knows no SDK.
Names and attributes are those of OpenTelemetry's conventions for generative AI, as of version 1.41.

    task ──► turn ──► chat MODEL           the trace is the tree's; a child's tasks hang under the call or the
               └────► execute_tool TOOL    task that made it
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import get_args

from orchestrator.core import facts as f
from orchestrator.core.calls import CallWork, UnknownWork
from orchestrator.core.entries import RESPONSE_ITEM, Entry
from orchestrator.core.entries.stored import Kind, kind_of, read_event
from orchestrator.core.frozen import record
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.tokens import Usage
from orchestrator.core.turn_calls import Phase
from orchestrator.protocol import events as ev
from orchestrator.protocol.faults import fault_kind
from orchestrator.protocol.wire import JsonMapping

Value = str | int | float | bool
MOST_CONTENT = 4_096
"""Characters of a prompt or an output in a span, where a person wants them there."""
_TOOL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FACTS: frozenset[Kind] = frozenset(
    {f.TaskBegun, f.TaskEnded, f.RequestBegun, *get_args(f.RequestEnded), f.CallMoved, f.CallsClosed}
)
_CONTENTS: frozenset[Kind] = frozenset({ev.UserMessage, ev.TaskComplete})
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

    def receive(self, entry: Entry, at_ms: int) -> Iterator[EndedSpan]:
        """The spans that end with the next entry of the log."""
        kind = kind_of(entry.type, entry.payload)
        if kind in _FACTS:
            yield from self._fact(f.decode(entry.payload), at_ms)
        elif entry.type == RESPONSE_ITEM:
            self._item(entry.payload, at_ms)
        elif self.task is not None and entry.id == self.task_id and self._tells(kind):
            self._event(read_event(entry.payload), self.task)

    def _tells(self, kind: Kind) -> bool:
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
            case (
                f.RequestCompleted()
                | f.RequestRetried()
                | f.RequestDelayed()
                | f.RequestFailed()
                | f.RequestStopped()
            ):
                yield from self._end_request(fact, at_ms)
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
