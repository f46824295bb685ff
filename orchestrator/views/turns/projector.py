"""The fold from a session's events to the changes of its turns and items.

The same fold is used live and over a log: a log has no deltas, and gives the same items with the same ids.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar, assert_never

import orjson
from pydantic import ValidationError

from orchestrator import requests
from orchestrator.core.agent_views import TOLD_BY_ITEMS
from orchestrator.core.calls.approval_policy import AMENDED
from orchestrator.core.calls.exec import DOUBT
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.compaction import COMPACTED_MESSAGE
from orchestrator.core.entries import EventKind
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.protocol import events as ev
from orchestrator.protocol.events import TokenUsage
from orchestrator.protocol.inputs import ImageInput, LocalImageInput, TextElement, TextInput
from orchestrator.protocol.scalars import CompactionPhase, Delivered, ExecCommandSource, TurnAbortReason
from orchestrator.protocol.turn_items import PlanItem
from orchestrator.protocol.wire import JsonMapping, JsonValue, written
from orchestrator.views.event import Event
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.open_turn import CALLS, OpenTurn

Out = list[r.Change]
BUDGET_SPENT: Final = "session_budget_exceeded"
"""The kind of the fault of a turn that its tree's budget ended; events name it by the turn's end."""
_THINKS: Final = frozenset[EventKind](
    {
        ev.AgentReasoning,
        ev.AgentReasoningDelta,
        ev.AgentReasoningRawContent,
        ev.AgentReasoningRawContentDelta,
        ev.AgentReasoningSectionBreak,
    }
)

UNSEEN: Final = -1
"""The exit code of a command whose end nobody saw."""
_APPROVED: Final = frozenset({"approved", "approved_for_session"})
_DENIED: Final = "denied"


def _refuses(decision: str) -> bool:
    """Whether the answer to an approval refuses it; an empty one is not known."""
    return bool(decision) and decision not in _APPROVED and not decision.startswith(AMENDED)


class Projector:
    """The turns of one session, by its events in their order.

    An event's `id` is the turn that it belongs to. Events of a log and of the EQ may follow each other, so a
    door reads the log up to a place and goes on live from there.
    """

    def __init__(self, session: SessionId, *, counts: bool = True) -> None:
        """`counts`: whether the tokens that are used are told as well."""
        self._session = str(session)
        self._counts = counts
        self._turn: OpenTurn | None = None
        self._status: r.Status = r.Idle()
        self._waiting: dict[str, r.RequestOpened] = {}
        """The session's own requests that are open, by their call."""
        self._queued: set[str] = set()
        """Inputs that were queued since the events began, and have not begun."""
        self._commands = RunningCommands()
        self._total: TokenUsage | None = None

    @property
    def turn(self) -> r.Turn | None:
        """The turn that runs, with its items as they stand."""
        return None if self._turn is None else self._turn.turn()

    @property
    def status(self) -> r.Status:
        """The session's status after the last event."""
        return self._status

    @property
    def waiting(self) -> tuple[r.RequestOpened, ...]:
        """The session's own requests to people that are open, oldest first."""
        return tuple(self._waiting.values())

    def receive(self, event: Event) -> tuple[r.Change, ...]:
        """The changes that follow from the next event."""
        kind = event.kind
        handle = HANDLERS.get(kind)
        if handle is None:
            return ()
        out: Out = []
        if kind not in _THINKS and self._turn is not None:
            self._turn.thought_ends(out)
        handle(self, out, event)
        return tuple(out)

    # ── turns ─────────────────────────────────────────────────────────────────────────────────

    def _task_started(self, out: Out, event: Event) -> None:
        if self._turn is not None:
            self._ends(
                out,
                r.TurnStatus.COMPLETED if self._turn.implied else r.TurnStatus.INTERRUPTED,
                event,
            )
        self._begins(out, event)
        if event.id in self._queued:
            self._queued.discard(event.id)
            out.append(r.QueueChanged())

    def _begins(self, out: Out, event: Event, *, implied: bool = False) -> OpenTurn:
        id = r.TurnId(event.id or f"turn-{event.seq}")
        self._turn = OpenTurn(id, _at(event), implied)
        self._stands(out, r.Active())
        out.append(r.TurnStarted(self._turn.turn()))
        return self._turn

    def _task_complete(self, out: Out, event: Event) -> None:
        turn = self._turn
        if turn is None:
            return
        told = event.told
        answer = told.last_agent_message if isinstance(told, ev.TaskComplete) else None
        failed = turn.fault is not None and answer is None
        self._ends(out, r.TurnStatus.FAILED if failed else r.TurnStatus.COMPLETED, event)

    def _turn_aborted(self, out: Out, event: Event) -> None:
        if self._turn is None:
            return
        told = event.told
        if isinstance(told, ev.TurnAborted) and told.reason is TurnAbortReason.BUDGET_LIMITED:
            self._turn.fault = self._turn.fault or r.Fault("the budget is used up", BUDGET_SPENT)
            self._ends(out, r.TurnStatus.FAILED, event)
        else:
            self._ends(out, r.TurnStatus.INTERRUPTED, event)

    def _ends(self, out: Out, status: r.TurnStatus, event: Event) -> None:
        turn = self._turn
        assert turn is not None
        turn.thought_ends(out)
        rest = r.ItemStatus.INTERRUPTED if status is r.TurnStatus.INTERRUPTED else r.ItemStatus.FAILED
        turn.ends_calls(out, rest, {*self._waiting}, _at(event))
        turn.joins_held(out)
        self._commands.outlive(turn)
        if status is r.TurnStatus.FAILED and turn.fault is not None:
            self._stands(out, r.Broken())
            out.append(r.TurnError(turn.id, turn.fault, will_retry=False))
        else:
            self._stands(out, r.Idle())
        self._turn = None
        out.append(r.TurnCompleted(turn.turn(status, _at(event)), turn.last_message))
        for call_id, request in self._waiting.items():
            out.append(r.RequestResolved(request.turn, r.ItemId(call_id), WITHDRAWN))
        self._waiting.clear()

    def _stands(self, out: Out, status: r.Status) -> None:
        if status != self._status:
            self._status = status
            out.append(r.StatusChanged(status))

    def _waits(self, out: Out) -> None:
        """Tells what a running turn waits for."""
        asked = [
            opened.request for opened in self._waiting.values() if opened.request.answered_by == "person"
        ]
        flags = [r.ActiveFlag.APPROVAL] * any(not one.needs_words for one in asked)
        flags += [r.ActiveFlag.USER_INPUT] * any(one.needs_words for one in asked)
        if self._turn is not None:
            self._stands(out, r.Active(tuple(flags)))

    def _error(self, out: Out, event: Event) -> None:
        message = text(event.msg.get("message"))
        if self._turn is not None and event.id == self._turn.id:
            self._turn.fault = r.Fault(message, event.msg.get("codex_error_info"))
        elif not event.id:
            out.append(r.Warned(message))

    def _stream_error(self, out: Out, event: Event) -> None:
        if self._turn is None:
            return
        self._turn.breaks_off()
        msg = event.msg
        details = optional(msg.get("additional_details"))
        fault = r.Fault(text(msg.get("message")), msg.get("codex_error_info"), details)
        out.append(r.TurnError(self._turn.id, fault, will_retry=True))

    def _warning(self, out: Out, event: Event, told: ev.WarningEvent) -> None:
        turn = self._turn.id if self._turn is not None and event.id == self._turn.id else None
        out.append(r.Warned(told.message, turn))

    def _thread_name_updated(self, out: Out, event: Event, told: ev.ThreadNameUpdated) -> None:
        out.append(r.NameChanged(told.thread_name))

    def _thread_rolled_back(self, out: Out, event: Event, told: ev.ThreadRolledBack) -> None:
        out.append(r.TurnsDropped(told.num_turns))

    def _input_accepted(self, out: Out, event: Event, told: ev.InputAccepted) -> None:
        if told.delivery is Delivered.QUEUED:
            self._queued.add(event.id)
            out.append(r.QueueChanged())

    def _queue_changed(self, out: Out, event: Event) -> None:
        out.append(r.QueueChanged())

    def _token_count(self, out: Out, event: Event) -> None:
        if self._turn is None:
            return
        self._turn.speech.response_ends()
        # The calls of a response have ended: an answer of which no event told was a refusal.
        for call_id, request in [*self._waiting.items()]:
            decision = (
                _DENIED
                if isinstance(request.request, requests.CommandRequest | requests.PatchRequest)
                else ""
            )
            self._resolved(out, call_id, decision, "", _at(event))
        self._turn.joins_held(out)
        told = event.told if self._counts else None
        if not isinstance(told, ev.TokenCount) or told.info is None:
            return
        total, info = told.info.total_token_usage, told.info
        if total != self._total:
            self._total = total
            last, window = info.last_token_usage, info.model_context_window
            out.append(r.TokenUsageUpdated(self._turn.id, total, last, window))

    def _plan_update(self, out: Out, event: Event) -> None:
        if self._turn is not None:
            explanation = optional(event.msg.get("explanation"))
            out.append(r.PlanUpdated(self._turn.id, explanation, steps_of(event.msg)))

    def _turn_diff(self, out: Out, event: Event, told: ev.TurnDiff) -> None:
        if self._turn is not None:
            out.append(r.DiffUpdated(self._turn.id, told.unified_diff))

    # ── what is said ──────────────────────────────────────────────────────────────────────────

    def _user_message(self, out: Out, event: Event) -> None:
        if event.msg.get("kind") not in (None, "plain"):
            return
        turn = self._turn
        if turn is None or turn.implied:
            if turn is not None:
                self._ends(out, r.TurnStatus.COMPLETED, event)
            turn = self._begins(out, event, implied=True)
        turn.inputs += 1
        id = r.ItemId(f"{turn.id}-in-{turn.inputs}")
        client_id = optional(event.msg.get("client_id"))
        who, session = optional(event.msg.get("who")), optional(event.msg.get("from_session"))
        said = r.UserMessage(id, content_of(event.msg), client_id, who, session, _at(event), _at(event))
        turn.hears(out, said)

    def _agent_message(self, out: Out, event: Event) -> None:
        said = text(event.msg.get("message"))
        # A compaction tells of its end in words, too, where a client knows no items.
        if (turn := self._turn) is not None and not (turn.only_compacts and said == COMPACTED_MESSAGE):
            phase = optional(event.msg.get("phase"))
            turn.last_message = turn.speech.message(out, said, phase, _at(event))
            turn.says([turn.last_message])

    def _agent_message_delta(self, out: Out, event: Event, told: ev.AgentMessageDelta) -> None:
        if self._turn is not None:
            self._turn.speech.message_piece(out, told.delta, _at(event))

    def _agent_reasoning(
        self, out: Out, event: Event, told: ev.AgentReasoning | ev.AgentReasoningRawContent
    ) -> None:
        if (turn := self._turn) is not None:
            raw = isinstance(told, ev.AgentReasoningRawContent)
            turn.says([*turn.speech.thought(out, told.text, _at(event), event.seq or None, raw=raw)])

    def _agent_reasoning_delta(
        self, out: Out, event: Event, told: ev.AgentReasoningDelta | ev.AgentReasoningRawContentDelta
    ) -> None:
        if (turn := self._turn) is not None:
            raw = isinstance(told, ev.AgentReasoningRawContentDelta)
            turn.says([*turn.speech.thought_piece(out, told.delta, _at(event), raw=raw)])

    def _section_break(self, out: Out, event: Event) -> None:
        if self._turn is not None:
            self._turn.speech.thought_breaks()

    def _item_started(self, out: Out, event: Event, told: ev.ItemStarted) -> None:
        if self._turn is not None and isinstance(told.item, PlanItem):
            self._turn.speech.plan_piece(out, "", _at(event))

    def _item_completed(self, out: Out, event: Event, told: ev.ItemCompleted) -> None:
        if self._turn is not None and isinstance(told.item, PlanItem):
            self._turn.says([self._turn.speech.plan(out, told.item.text, _at(event))])

    def _plan_delta(self, out: Out, event: Event, told: ev.PlanDelta) -> None:
        if self._turn is not None:
            self._turn.speech.plan_piece(out, told.delta, _at(event))

    def _context_compaction(self, out: Out, event: Event, told: ev.ContextCompaction) -> None:
        if (turn := self._turn) is not None:
            turn.phased = True
            if told.phase is CompactionPhase.DONE:
                turn.compacted(out, _at(event))
            else:
                turn.compacts(out, _at(event))

    def _context_compacted(self, out: Out, event: Event) -> None:
        """The older word for the end of a compaction, the only one in older logs."""
        if self._turn is not None and not self._turn.phased:
            self._turn.compacts(out, _at(event))
            self._turn.compacted(out, _at(event))

    def _entered_review_mode(self, out: Out, event: Event) -> None:
        if (turn := self._turn) is not None:
            turn.reviews += 1
            id = r.ItemId(f"{turn.id}-review-{turn.reviews}")
            turn.shows(out, r.EnteredReview(id, subject(event.msg), _at(event), _at(event)))

    def _exited_review_mode(self, out: Out, event: Event) -> None:
        if (turn := self._turn) is not None:
            id = r.ItemId(f"{turn.id}-reviewed-{turn.reviews}")
            turn.shows(out, r.ExitedReview(id, outcome(event.msg), _at(event), _at(event)))

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def _exec_command_begin(self, out: Out, event: Event) -> None:
        turn, id = self._turn, _call_id(event)
        if turn is None:
            return
        self._resolved(out, id, "", "", _at(event))
        found = turn.items.get(id)
        if isinstance(found, r.CommandExecution) and found.status is r.ItemStatus.IN_PROGRESS:
            turn.items[id] = begun_command(found, event.msg)
        else:
            turn.starts(out, command_of(id, event.msg, _at(event)))

    def _exec_command_output_delta(self, out: Out, event: Event) -> None:
        self._commands.said(out, self._turn, _call_id(event), event.msg)

    def _terminal_interaction(self, out: Out, event: Event) -> None:
        self._commands.typed(out, self._turn, _call_id(event), event.msg)

    def _exec_command_end(self, out: Out, event: Event) -> None:
        self._commands.ended(out, self._turn, _call_id(event), event.msg, _at(event))

    def _patch_apply_begin(self, out: Out, event: Event) -> None:
        turn, id = self._turn, _call_id(event)
        if turn is None:
            return
        self._resolved(out, id, "", "", _at(event))
        found = turn.items.get(id)
        if not (isinstance(found, r.FileChange) and found.status is r.ItemStatus.IN_PROGRESS):
            turn.starts(out, patch_of(id, event.msg, _at(event)))

    def _patch_apply_end(self, out: Out, event: Event) -> None:
        found = self._running(_call_id(event))
        if self._turn is not None and isinstance(found, r.FileChange):
            self._turn.completes(out, ended_patch(found, event.msg, _at(event)))

    def _mcp_tool_call_begin(self, out: Out, event: Event) -> None:
        if self._turn is not None:
            self._resolved(out, _call_id(event), "", "", _at(event))
            self._turn.starts(out, tool_of(_call_id(event), event.msg, _at(event)))

    def _mcp_tool_call_end(self, out: Out, event: Event) -> None:
        found = self._running(_call_id(event))
        if self._turn is not None and isinstance(found, r.McpToolCall):
            self._turn.completes(out, ended_tool(found, event.msg, _at(event)))

    def _sub_agent_tool_call_begin(self, out: Out, event: Event) -> None:
        if self._turn is not None:
            self._turn.starts(out, helper_of(_call_id(event), event.msg, self._session, _at(event)))

    def _sub_agent_tool_call_end(self, out: Out, event: Event) -> None:
        found = self._running(_call_id(event))
        if self._turn is not None and isinstance(found, r.CollabToolCall):
            self._turn.completes(out, ended_helper(found, event.msg, _at(event)))

    def _running(self, id: r.ItemId) -> r.ThreadItem | None:
        found = None if self._turn is None else self._turn.items.get(id)
        return found if isinstance(found, CALLS) and found.status is r.ItemStatus.IN_PROGRESS else None

    def _dynamic_tool_call_response(self, out: Out, event: Event) -> None:
        found = self._running(_call_id(event))
        if self._turn is not None and isinstance(found, r.DynamicToolCall):
            # No event but this one tells of an answer by the client that gave the task.
            self._resolved(out, found.id, found.tool, "", _at(event))
            self._turn.completes(out, ended_client_tool(found, event.msg, _at(event)))

    def _web_search_begin(self, out: Out, event: Event) -> None:
        if self._turn is not None:
            self._turn.starts(out, r.WebSearch(_call_id(event), started_ms=_at(event)))

    def _web_search_end(self, out: Out, event: Event) -> None:
        turn, id = self._turn, _call_id(event)
        found = None if turn is None else turn.items.get(id)
        if turn is not None and isinstance(found, r.WebSearch):
            action = mapping(event.msg.get("action")) or None
            turn.whole.add(id)
            query = text(event.msg.get("query"))
            turn.completes(out, replace(found, query=query, action=action, completed_ms=_at(event)))

    def _view_image_tool_call(self, out: Out, event: Event, told: ev.ViewImageToolCall) -> None:
        if self._turn is not None:
            self._turn.shows(out, r.ImageView(r.ItemId(told.call_id), told.path, _at(event), _at(event)))

    def _raw_response_item(self, out: Out, event: Event) -> None:
        """Items of the conversation: calls about agents, of which nothing else tells."""
        item, turn = mapping(event.msg.get("item")), self._turn
        if turn is None:
            return
        if item.get("type") == "function_call" and item.get("name") in TOLD_BY_ITEMS:
            turn.starts(out, call_of(item, self._session, _at(event)))
        elif item.get("type") == "function_call_output":
            found = self._running(r.ItemId(text(item.get("call_id"))))
            if isinstance(found, r.CollabToolCall | r.DynamicToolCall):
                turn.completes(out, answered(found, item, _at(event), turn.items.values()))

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _asks(self, out: Out, event: Event) -> None:
        request = requests.known_request_of(event.msg)
        if request is None:
            return
        id = r.ItemId(request.call_id)
        asker = optional(event.msg.get("session_id"))
        if asker not in (None, self._session):
            out.append(r.RequestOpened(r.TurnId(event.id), id, request, asker, _at(event)))
            return
        turn = self._turn
        if turn is None:
            return
        opened = r.RequestOpened(turn.id, id, request, at_ms=_at(event))
        self._waiting[id] = opened
        self._waits(out)
        if self._running(id) is None and (item := asked_about(id, request, _at(event))) is not None:
            turn.starts(out, item)
        out.append(opened)

    def _request_resolved(self, out: Out, event: Event, told: ev.RequestResolved) -> None:
        id, asker = r.ItemId(told.call_id), told.session_id
        if asker not in (None, self._session):
            out.append(r.RequestResolved(r.TurnId(event.id), id, told.decision, told.who, asker))
        elif told.decision != WITHDRAWN:
            self._resolved(out, id, told.decision, told.who, _at(event))

    def _resolved(self, out: Out, id: str, decision: str, who: str, at_ms: int | None) -> None:
        """A request of the session's own is over; its call begins next, or is declined."""
        request = self._waiting.pop(id, None)
        if request is None:
            return
        out.append(r.RequestResolved(request.turn, request.item, decision, who))
        found = self._running(request.item)
        refused = isinstance(request.request, requests.CommandRequest | requests.PatchRequest) and _refuses(
            decision
        )
        if self._turn is not None and refused and isinstance(found, r.CommandExecution | r.FileChange):
            self._turn.completes(out, replace(found, status=r.ItemStatus.DECLINED, completed_ms=at_ms))
        self._waits(out)


def _at(event: Event) -> int | None:
    """The event's time; None where no log tells it."""
    return event.at_ms or None


def _call_id(event: Event) -> r.ItemId:
    return r.ItemId(text(event.msg.get("call_id")))


E = TypeVar("E", bound=ev.EventModel)
Handler = Callable[[Projector, Out, Event], None]
_Entry = tuple[type[ev.EventModel], Handler]


def _read(kind: type[E], handle: Callable[[Projector, Out, Event, E], None]) -> _Entry:
    """The handler of a kind that is given the record; an event that is not sound changes nothing."""

    def handled(projector: Projector, out: Out, event: Event) -> None:
        told = event.told
        if isinstance(told, kind):
            handle(projector, out, event, told)

    return kind, handled


HANDLERS: Final[Mapping[EventKind, Handler]] = {
    # These are told whatever form they have: newer versions and other programs write others.
    ev.TaskStarted: Projector._task_started,
    ev.TaskComplete: Projector._task_complete,
    ev.TurnAborted: Projector._turn_aborted,
    ev.Error: Projector._error,
    ev.StreamError: Projector._stream_error,
    ev.QueueChanged: Projector._queue_changed,
    ev.TokenCount: Projector._token_count,
    ev.PlanUpdate: Projector._plan_update,
    ev.UserMessage: Projector._user_message,
    ev.AgentMessage: Projector._agent_message,
    ev.AgentReasoningSectionBreak: Projector._section_break,
    ev.ContextCompacted: Projector._context_compacted,
    ev.EnteredReviewMode: Projector._entered_review_mode,
    ev.ExitedReviewMode: Projector._exited_review_mode,
    ev.ExecCommandBegin: Projector._exec_command_begin,
    ev.ExecCommandOutputDelta: Projector._exec_command_output_delta,
    ev.ExecCommandEnd: Projector._exec_command_end,
    ev.TerminalInteraction: Projector._terminal_interaction,
    ev.PatchApplyBegin: Projector._patch_apply_begin,
    ev.PatchApplyEnd: Projector._patch_apply_end,
    ev.McpToolCallBegin: Projector._mcp_tool_call_begin,
    ev.McpToolCallEnd: Projector._mcp_tool_call_end,
    ev.SubAgentToolCallBegin: Projector._sub_agent_tool_call_begin,
    ev.SubAgentToolCallEnd: Projector._sub_agent_tool_call_end,
    ev.WebSearchBegin: Projector._web_search_begin,
    ev.WebSearchEnd: Projector._web_search_end,
    ev.DynamicToolCallResponse: Projector._dynamic_tool_call_response,
    ev.RawResponseItem: Projector._raw_response_item,
    **{ev.EVENTS[tag]: Projector._asks for tag in requests.TYPES},
    **dict(
        (
            _read(ev.WarningEvent, Projector._warning),
            _read(ev.ThreadNameUpdated, Projector._thread_name_updated),
            _read(ev.ThreadRolledBack, Projector._thread_rolled_back),
            _read(ev.InputAccepted, Projector._input_accepted),
            _read(ev.TurnDiff, Projector._turn_diff),
            _read(ev.AgentMessageDelta, Projector._agent_message_delta),
            _read(ev.AgentReasoning, Projector._agent_reasoning),
            _read(ev.AgentReasoningDelta, Projector._agent_reasoning_delta),
            _read(ev.AgentReasoningRawContent, Projector._agent_reasoning),
            _read(ev.AgentReasoningRawContentDelta, Projector._agent_reasoning_delta),
            _read(ev.ItemStarted, Projector._item_started),
            _read(ev.ItemCompleted, Projector._item_completed),
            _read(ev.PlanDelta, Projector._plan_delta),
            _read(ev.ContextCompaction, Projector._context_compaction),
            _read(ev.ViewImageToolCall, Projector._view_image_tool_call),
            _read(ev.RequestResolved, Projector._request_resolved),
        )
    ),
}
"""The events that change turns, and how; no other one does."""


# ── reviews ───────────────────────────────────────────────────────────────────────────────────────
# Reviews in words: the subject as a review begins, and its findings as it ends.


NOTHING = "The review ended without findings of its own."


def subject(event: JsonMapping) -> str:
    """The subject of a review that begins, as people read it."""
    hint = optional(event.get("user_facing_hint"))
    target = mapping(event.get("target"))
    match target.get("type"):
        case _ if hint:
            return hint
        case "uncommittedChanges":
            return "current changes"
        case "baseBranch":
            return f"changes against '{text(target.get('branch'))}'"
        case "commit":
            title = optional(target.get("title"))
            sha = text(target.get("sha"))[:7]
            return f"commit {sha}: {title}" if title else f"commit {sha}"
        case "custom":
            return text(target.get("instructions")).strip()
        case _:
            return text(event.get("prompt")).strip()


def outcome(event: JsonMapping) -> str:
    """The explanation and the findings of a review that ends."""
    output = mapping(event.get("review_output"))
    parts = [text(output.get("overall_explanation")).strip()]
    findings = mappings(output.get("findings"))
    if findings:
        parts.append("Review comment:" if len(findings) == 1 else "Full review comments:")
        parts += map(_finding, findings)
    return "\n\n".join(part for part in parts if part) or NOTHING


def _finding(finding: JsonMapping) -> str:
    place = mapping(finding.get("code_location"))
    lines = mapping(place.get("line_range"))
    start, end = whole(lines.get("start")) or 0, whole(lines.get("end")) or 0
    where = f"{text(place.get('absolute_file_path'))}:{start}-{end}"
    body = "\n".join(f"  {line}" for line in text(finding.get("body")).splitlines())
    return f"- {text(finding.get('title'))} — {where}\n{body}".rstrip()


# ── commands ──────────────────────────────────────────────────────────────────────────────────────
# Commands between their begin and their end, which may come behind their turn's.


class RunningCommands:
    """The commands of one session that run: those of its open turn, and those that went on behind theirs."""

    def __init__(self) -> None:
        self._lasting: dict[r.ItemId, tuple[r.TurnId, r.CommandExecution]] = {}
        """Commands whose turn is over."""
        self._decoders: dict[tuple[r.ItemId, str], codecs.IncrementalDecoder] = {}
        """Of their output, by stream: a cut may fall inside a character."""

    def outlive(self, turn: OpenTurn) -> None:
        """Keeps what still runs of a turn that ends."""
        for item in turn.items.values():
            if isinstance(item, r.CommandExecution) and item.status is r.ItemStatus.IN_PROGRESS:
                self._lasting[item.id] = (turn.id, item)

    def said(self, out: list[r.Change], turn: OpenTurn | None, id: r.ItemId, event: JsonMapping) -> None:
        """Tells a piece of a command's output."""
        found = self._running(turn, id)
        if found is not None:
            key = found[1].id, text(event.get("stream"))
            if key not in self._decoders:
                self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
            if said := self._decoders[key].decode(chunk(event.get("chunk"))):
                out.append(r.ItemDelta(found[0], found[1].id, r.DeltaKind.COMMAND_OUTPUT, said))

    def typed(self, out: list[r.Change], turn: OpenTurn | None, id: r.ItemId, event: JsonMapping) -> None:
        """Tells of input that was written to a command's terminal."""
        found = self._running(turn, id)
        if found is not None:
            typed, process = text(event.get("stdin")), optional(event.get("process_id"))
            kind = r.DeltaKind.TERMINAL_INPUT
            out.append(r.ItemDelta(found[0], found[1].id, kind, typed, process_id=process))

    def ended(
        self,
        out: list[r.Change],
        turn: OpenTurn | None,
        id: r.ItemId,
        event: JsonMapping,
        at_ms: int | None,
    ) -> None:
        """Completes a command, in its turn or behind it."""
        found = self._running(turn, id)
        if found is None:
            return
        ended = ended_command(found[1], event, at_ms)
        for stream in ("stdout", "stderr"):
            self._decoders.pop((ended.id, stream), None)
        if turn is not None and found[0] == turn.id:
            turn.completes(out, ended)
        else:
            del self._lasting[ended.id]
            out.append(r.ItemCompleted(found[0], ended))

    def _running(self, turn: OpenTurn | None, id: r.ItemId) -> tuple[r.TurnId, r.CommandExecution] | None:
        """A command that has begun and not ended, with its turn."""
        found = None if turn is None else turn.items.get(id)
        if isinstance(found, r.CommandExecution) and found.status is r.ItemStatus.IN_PROGRESS:
            assert turn is not None
            return turn.id, found
        return self._lasting.get(id)


# ── agents ────────────────────────────────────────────────────────────────────────────────────────
# Calls that make, tell, await and end agents, by the conversation's items: the call, and its output.


NAMESPACE: Final = "dendro"
_COLLAB: Final[Mapping[str, r.CollabTool]] = {
    "subagent_spawn": r.CollabTool.SPAWN,
    "subagent_fork": r.CollabTool.SPAWN,
    "subagent_send_message": r.CollabTool.SEND_INPUT,
    "subagent_await": r.CollabTool.WAIT,
    "subagent_cancel": r.CollabTool.CLOSE,
    "subagent_list": r.CollabTool.LIST,
}
_STATUSES: Final[Mapping[str, r.CollabStatus]] = {
    "queued": r.CollabStatus.PENDING_INIT,
    "running": r.CollabStatus.RUNNING,
    "ready": r.CollabStatus.COMPLETED,
    "idle": r.CollabStatus.COMPLETED,
    "completed": r.CollabStatus.COMPLETED,
    "failed": r.CollabStatus.ERRORED,
    "canceled": r.CollabStatus.SHUTDOWN,
    "pruned": r.CollabStatus.NOT_FOUND,
}
_ENDS: Final = (("Completed", "last_message"), ("Failed", "message"), ("Canceled", "reason"))

AgentCall = r.CollabToolCall | r.DynamicToolCall


def call_of(item: JsonMapping, sender: str, at_ms: int | None) -> AgentCall:
    """The call as it begins; `item` is a function call of a tool that is told of by its items."""
    id, name, asked = (
        r.ItemId(text(item.get("call_id"))),
        text(item.get("name")),
        parsed(item.get("arguments")),
    )
    tool = _COLLAB.get(name)
    if tool is None:
        return r.DynamicToolCall(id, name, asked, NAMESPACE, started_ms=at_ms)
    given = mapping(asked)
    if tool is r.CollabTool.SEND_INPUT and given.get("interrupt") is True:
        tool = r.CollabTool.INTERRUPT
    prompt, model = optional(given.get("prompt")), optional(given.get("model"))
    return r.CollabToolCall(id, tool, sender, prompt=prompt, model=model, started_ms=at_ms)


def answered(
    call: AgentCall, item: JsonMapping, at_ms: int | None, before: Iterable[r.ThreadItem] = ()
) -> AgentCall:
    """The call with its output, by which a refusal is told from a result: results are JSON.

    `before` are the items of the turn: they have the last words of agents that it has awaited.
    """
    output = output_text(item.get("output"))
    result = parsed(output)
    status = r.ItemStatus.COMPLETED if isinstance(result, dict) else r.ItemStatus.FAILED
    if isinstance(call, r.DynamicToolCall):
        done = status is r.ItemStatus.COMPLETED
        return replace(call, status=status, output=output, success=done, completed_ms=at_ms)
    states = _with_last_words(call.tool, states_of(call.tool, mapping(result)), before)
    model = optional(mapping(result).get("model")) or call.model
    return replace(
        call, status=status, receivers=tuple(states), states=states, model=model, completed_ms=at_ms
    )


def _with_last_words(
    tool: r.CollabTool, states: Mapping[str, r.CollabState], before: Iterable[r.ThreadItem]
) -> dict[str, r.CollabState]:
    """An agent that is told something or closed stands there as its answer left it."""
    if tool not in (r.CollabTool.SEND_INPUT, r.CollabTool.INTERRUPT, r.CollabTool.CLOSE):
        return dict(states)
    earlier = [item for item in before if isinstance(item, r.CollabToolCall)]
    found = dict(states)
    for session, state in states.items():
        answer = _awaited_last(earlier, session)
        if answer is not None:
            closed = replace(state, message=answer.message)
            found[session] = closed if tool is r.CollabTool.CLOSE else answer
    return found


def _awaited_last(items: Sequence[r.CollabToolCall], session: str) -> r.CollabState | None:
    """The answer of an agent that was awaited; None if it has been told something since."""
    for item in reversed(items):
        if session in item.states:
            return item.states[session] if item.tool is r.CollabTool.WAIT else None
    return None


def output_text(output: JsonValue) -> str:
    """The text of a call's output, which may come in parts."""
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping):
        return text(output.get("content"))
    return "\n".join(text(part.get("text")) for part in mappings(output))


def states_of(tool: r.CollabTool, result: JsonMapping) -> dict[str, r.CollabState]:
    """The agents that a result tells of, by their sessions."""
    if tool is r.CollabTool.WAIT:
        told = [(one.get("session_id"), _awaited(one)) for one in mappings(result.get("ready"))]
    elif tool is r.CollabTool.LIST:
        told = [
            (one.get("session_id"), _state(one.get("status"))) for one in mappings(result.get("sessions"))
        ]
    else:
        made = tool is r.CollabTool.SPAWN
        told = [(result.get("session_id"), _state("queued" if made else result.get("status")))]
    return {session: state for session, state in told if isinstance(session, str)}


def _state(status: JsonValue) -> r.CollabState:
    return r.CollabState(_STATUSES.get(text(status), r.CollabStatus.RUNNING))


def _awaited(one: JsonMapping) -> r.CollabState:
    """An agent that has answered, with its last message; or one that has written without being done."""
    completion = mapping(one.get("completion"))
    messages = (optional(mapping(completion.get(kind)).get(field)) for kind, field in _ENDS)
    message = next((said for said in messages if said is not None), None)
    if message is None:
        said = [optional(letter.get("prompt")) for letter in mappings(one.get("messages"))]
        message = next((prompt for prompt in reversed(said) if prompt), None)
    status = one.get("completion_status") or one.get("lifecycle_status")
    return replace(_state(status), message=message)


# ── call items ────────────────────────────────────────────────────────────────────────────────────
# Items of calls, made of the events that tell of their begin and their end.


Call = r.CommandExecution | r.FileChange | r.DynamicToolCall

_TEXT: Final = written(TextInput(text="", text_elements=()))
_SOURCES = {source.value: source for source in ExecCommandSource}


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def command_of(id: r.ItemId, event: JsonMapping, at_ms: int | None) -> r.CommandExecution:
    """A command that is asked about, or begins."""
    return r.CommandExecution(
        id,
        command=texts(event.get("command")),
        cwd=text(event.get("cwd")),
        source=_SOURCES.get(text(event.get("source")), ExecCommandSource.AGENT),
        actions=mappings(event.get("parsed_cmd")),
        process_id=optional(event.get("process_id")),
        started_ms=at_ms,
    )


def begun_command(item: r.CommandExecution, event: JsonMapping) -> r.CommandExecution:
    """A command that was asked about, as it begins."""
    begun = command_of(item.id, event, item.started_ms)
    return replace(begun, actions=begun.actions or item.actions)


def ended_command(item: r.CommandExecution, event: JsonMapping, at_ms: int | None) -> r.CommandExecution:
    code = whole(event.get("exit_code"))
    return replace(
        item,
        status=r.ItemStatus.COMPLETED if code == 0 else r.ItemStatus.FAILED,
        output=text(event.get("aggregated_output")) or _both(event) or None,
        exit_code=code,
        duration_ms=milliseconds(event.get("duration")),
        completed_ms=at_ms,
        in_doubt=doubt_in(event.get("stderr")) if code == UNSEEN else "",
    )


def doubt_in(said: JsonValue) -> str:
    """The first line of an end's words if it says that the call is in doubt."""
    first = text(said).partition("\n")[0]
    return first if first.startswith(DOUBT) else ""


def _both(event: JsonMapping) -> str:
    """The output of an end that has it by streams only, as earlier versions wrote it."""
    return text(event.get("stdout")) + text(event.get("stderr"))


# ── patches ───────────────────────────────────────────────────────────────────────────────────────


def patch_of(id: r.ItemId, event: JsonMapping, at_ms: int | None) -> r.FileChange:
    """A patch that is asked about, or begins."""
    changes = mapping(event.get("changes"))
    return r.FileChange(
        id,
        tuple(_file(path, changes[path]) for path in sorted(changes)),
        left_out=whole(event.get("changes_left_out")) or 0,
        started_ms=at_ms,
    )


def _file(path: str, change: JsonValue) -> r.FileDiff:
    given = mapping(change)
    if "type" not in given and len(given) == 1:
        # The recorded Codex puts the kind outside.
        ((kind, body),) = given.items()
        given = mapping(body)
    else:
        kind = text(given.get("type"))
    match kind:
        case "add":
            return r.FileDiff(path, r.ChangeKind.ADD, text(given.get("content")))
        case "delete":
            return r.FileDiff(path, r.ChangeKind.DELETE, text(given.get("content")))
        case _:
            diff = text(given.get("unified_diff"))
            return r.FileDiff(path, r.ChangeKind.UPDATE, diff, optional(given.get("move_path")))


def ended_patch(item: r.FileChange, event: JsonMapping, at_ms: int | None) -> r.FileChange:
    status = r.ItemStatus.COMPLETED if event.get("success") is True else r.ItemStatus.FAILED
    return replace(item, status=status, completed_ms=at_ms, in_doubt=doubt_in(event.get("stderr")))


# ── tools of servers, and helpers ─────────────────────────────────────────────────────────────────


def tool_of(id: r.ItemId, event: JsonMapping, at_ms: int | None) -> r.McpToolCall:
    """A call of an MCP server's tool, as it begins."""
    asked = mapping(event.get("invocation"))
    server, tool = text(asked.get("server")), text(asked.get("tool"))
    return r.McpToolCall(id, server, tool, asked.get("arguments"), started_ms=at_ms)


def ended_tool(item: r.McpToolCall, event: JsonMapping, at_ms: int | None) -> r.McpToolCall:
    outcome = event.get("result")
    given = mapping(outcome)
    if given.keys() & {"Ok", "Err"} and len(given) == 1:
        ((_, outcome),) = given.items()
    result = outcome if isinstance(outcome, dict) else None
    error = optional(outcome)
    failed = result is None or bool(result.get("isError"))
    return replace(
        item,
        status=r.ItemStatus.FAILED if failed else r.ItemStatus.COMPLETED,
        result=result,
        error=error if result is not None or error is not None else "the call gave no result",
        duration_ms=milliseconds(event.get("duration")),
        completed_ms=at_ms,
        in_doubt=doubt_in(error),
    )


def helper_of(id: r.ItemId, event: JsonMapping, sender: str, at_ms: int | None) -> r.CollabToolCall:
    """A call that has a helper made, and waits for its answer."""
    asked = mapping(event.get("invocation"))
    prompt, model = optional(asked.get("prompt")), optional(asked.get("model"))
    return r.CollabToolCall(id, r.CollabTool.SPAWN, sender, prompt=prompt, model=model, started_ms=at_ms)


def ended_helper(item: r.CollabToolCall, event: JsonMapping, at_ms: int | None) -> r.CollabToolCall:
    failed = "Err" in mapping(event.get("result"))
    return replace(item, status=r.ItemStatus.FAILED if failed else r.ItemStatus.COMPLETED, completed_ms=at_ms)


# ── tools of clients ──────────────────────────────────────────────────────────────────────────────


def client_tool_of(id: r.ItemId, event: JsonMapping, at_ms: int | None) -> r.DynamicToolCall:
    """A call that a client is asked to carry out."""
    namespace = optional(event.get("namespace"))
    return r.DynamicToolCall(id, text(event.get("tool")), event.get("arguments"), namespace, started_ms=at_ms)


def ended_client_tool(item: r.DynamicToolCall, event: JsonMapping, at_ms: int | None) -> r.DynamicToolCall:
    done = event.get("success") is True
    return replace(
        item,
        status=r.ItemStatus.COMPLETED if done else r.ItemStatus.FAILED,
        output=text(event.get("output")),
        success=done,
        completed_ms=at_ms,
        parts=tuple(mappings(event.get("content_items"))),
    )


def asked_about(id: r.ItemId, request: requests.KnownRequest, at_ms: int | None) -> Call | None:
    """The item of a call that begins when somebody is asked about it; None if it begins otherwise."""
    match request:
        case requests.CommandRequest():
            return command_of(id, request.event, at_ms)
        case requests.PatchRequest():
            return patch_of(id, request.event, at_ms)
        case requests.ClientToolRequest():
            return client_tool_of(id, request.event, at_ms)
        case (
            requests.ChoicesRequest()
            | requests.InputRequest()
            | requests.PlanDecisionRequest()
            | requests.ServerRequest()
        ):
            return None
        case _:
            assert_never(request)


def steps_of(event: JsonMapping) -> tuple[tuple[str, str], ...]:
    """The steps of a plan with their status."""
    steps = (mapping(step) for step in listed(event.get("plan")))
    return tuple((text(step.get("step")), text(step.get("status"))) for step in steps)


def content_of(message: JsonMapping) -> tuple[JsonMapping, ...]:
    """A person's message as the items of an input."""
    said = text(message.get("message"))
    elements = _elements(message.get("text_elements"))
    images = [ImageInput(image_url=url) for url in texts(message.get("images"))]
    files = [LocalImageInput(path=path) for path in texts(message.get("local_images"))]
    if not (elements or images or files):
        return ({**_TEXT, "text": said},)
    spoken = [TextInput(text=said, text_elements=elements)] if said or not (images or files) else []
    return tuple(map(written, (*spoken, *images, *files)))


def _elements(value: JsonValue) -> tuple[TextElement, ...]:
    try:
        return tuple(TextElement.model_validate(one) for one in mappings(value))
    except ValidationError:
        # Of another program's log: the text is whole without them.
        return ()


# ── fields ────────────────────────────────────────────────────────────────────────────────────────
# Fields of events and of a model's JSON, read without trust: what has another form counts as absent.


def text(value: object) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def optional(value: object) -> str | None:
    """The text, or None."""
    return value if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """The integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(value: object) -> JsonMapping:
    """The object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> Sequence[JsonValue]:
    """The array, or an empty one."""
    return value if isinstance(value, list | tuple) else ()


def mappings(value: object) -> tuple[JsonMapping, ...]:
    """The objects of an array."""
    return tuple(one for one in listed(value) if isinstance(one, Mapping))


def texts(value: object) -> tuple[str, ...]:
    """The texts of an array."""
    return tuple(one for one in listed(value) if isinstance(one, str))


def parsed(value: object) -> JsonValue:
    """JSON that stands in a text; None for what is none."""
    try:
        found: JsonValue = orjson.loads(text(value))
    except orjson.JSONDecodeError:
        return None
    return found


def milliseconds(duration: object) -> int | None:
    """A duration of whole seconds and nanoseconds, in milliseconds."""
    given = mapping(duration)
    secs, nanos = whole(given.get("secs")), whole(given.get("nanos"))
    return None if secs is None else secs * 1000 + (nanos or 0) // 1_000_000


def chunk(value: object) -> bytes:
    """The bytes of a piece of output, which is base64 on the wire."""
    try:
        return base64.b64decode(text(value), validate=True)
    except (binascii.Error, ValueError):
        return b""
