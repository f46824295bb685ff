"""Changes of a session's turns as notifications of the app-server protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, assert_never

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.write_items import camel, fault_json, item_json, turn_json
from orchestrator.protocol.usage import TokenUsage
from orchestrator.protocol.wire import JsonObject
from orchestrator.views.turns import records as r

Notification = tuple[str, JsonObject]
_DELTAS: Final[Mapping[r.DeltaKind, str]] = {
    r.DeltaKind.MESSAGE: "item/agentMessage/delta",
    r.DeltaKind.PLAN: "item/plan/delta",
    r.DeltaKind.REASONING_SUMMARY: "item/reasoning/summaryTextDelta",
    r.DeltaKind.REASONING_PART: "item/reasoning/summaryPartAdded",
    r.DeltaKind.REASONING_TEXT: "item/reasoning/textDelta",
    r.DeltaKind.COMMAND_OUTPUT: "item/commandExecution/outputDelta",
    r.DeltaKind.TERMINAL_INPUT: "item/commandExecution/terminalInteraction",
    r.DeltaKind.PROGRESS: "item/mcpToolCall/progress",
}
_NEW_FILE: Final = re.compile(r"^(diff --git a/)(.+) b/(.+)(\nnew file mode )", re.MULTILINE)
"""The beginning of a file that the turn has made: it has one name, also where a patch moved it."""
_STEPS: Final = frozenset({"pending", "in_progress", "completed"})


def notifications(
    thread: SessionId, change: r.Change, root_turn: str | None = None
) -> Iterator[Notification]:
    """The methods and parameters that tell clients of a change; requests have identities of their own.

    `root_turn` is the turn of the root in which the task of an agent was begun.
    """
    match change:
        case r.TurnStarted(turn):
            yield "turn/started", {"threadId": thread, "turn": turn_json(turn, "notLoaded", root_turn)}
        case r.TurnCompleted(turn):
            yield "turn/completed", {"threadId": thread, "turn": turn_json(turn, "summary", root_turn)}
        case r.ItemStarted(turn, item):
            at_ms = {"startedAtMs": item.started_ms or 0}
            yield "item/started", _of(thread, turn) | {"item": item_json(item), **at_ms}
        case r.ItemCompleted(turn, item):
            at_ms = {"completedAtMs": item.completed_ms or 0}
            yield "item/completed", _of(thread, turn) | {"item": item_json(item), **at_ms}
        case r.ItemDelta():
            yield _DELTAS[change.kind], _delta(thread, change)
        case r.PlanUpdated(turn, explanation, steps):
            plan = [{"step": step, "status": camel(_step(status))} for step, status in steps]
            yield "turn/plan/updated", _of(thread, turn) | {"explanation": explanation, "plan": plan}
        case r.DiffUpdated(turn, diff):
            yield "turn/diff/updated", _of(thread, turn) | {"diff": _NEW_FILE.sub(r"\1\3 b/\3\4", diff)}
        case r.TokenUsageUpdated():
            yield "thread/tokenUsage/updated", _of(thread, change.turn) | {"tokenUsage": usage_json(change)}
        case r.TurnError(turn, fault, will_retry):
            error = fault_json(fault, will_retry=will_retry)
            yield "error", _of(thread, turn) | {"error": error, "willRetry": will_retry}
        case r.Warned(message):
            yield "warning", {"threadId": thread, "message": message}
        case r.StatusChanged(status):
            yield "thread/status/changed", {"threadId": thread, "status": status_json(status)}
        case r.NameChanged(name):
            yield "thread/name/updated", {"threadId": thread, "threadName": name}
        case r.TurnsDropped():
            yield "thread/reverted", {"threadId": thread}
        case r.QueueChanged():
            yield "thread/queue/changed", {"threadId": thread}
        case r.RequestOpened() | r.RequestResolved():
            return
        case _:
            assert_never(change)


def _of(thread: SessionId, turn: r.TurnId) -> JsonObject:
    return {"threadId": thread, "turnId": turn}


def _step(status: str) -> str:
    return status if status in _STEPS else "pending"


def _delta(thread: SessionId, delta: r.ItemDelta) -> JsonObject:
    place: JsonObject = {"threadId": thread, "turnId": delta.turn, "itemId": delta.item}
    match delta.kind:
        case r.DeltaKind.REASONING_PART:
            return place | {"summaryIndex": delta.index}
        case r.DeltaKind.REASONING_SUMMARY:
            return place | {"delta": delta.text, "summaryIndex": delta.index}
        case r.DeltaKind.REASONING_TEXT:
            return place | {"delta": delta.text, "contentIndex": delta.index}
        case r.DeltaKind.TERMINAL_INPUT:
            return place | {"processId": delta.process_id or "", "stdin": delta.text}
        case r.DeltaKind.PROGRESS:
            return place | {"message": delta.text}
        case r.DeltaKind.MESSAGE | r.DeltaKind.PLAN | r.DeltaKind.COMMAND_OUTPUT:
            return place | {"delta": delta.text}
        case _:
            assert_never(delta.kind)


def usage_json(usage: r.TokenUsageUpdated) -> JsonObject:
    """A `ThreadTokenUsage`."""
    return {
        "total": _tokens(usage.total),
        "last": _tokens(usage.last),
        "modelContextWindow": usage.window,
    }


def _tokens(usage: TokenUsage) -> JsonObject:
    return {
        "totalTokens": usage.total_tokens,
        "inputTokens": usage.input_tokens,
        "cachedInputTokens": usage.cached_input_tokens,
        "outputTokens": usage.output_tokens,
        "reasoningOutputTokens": usage.reasoning_output_tokens,
    }


def status_json(status: r.Status) -> JsonObject:
    """A `ThreadStatus`."""
    match status:
        case r.Idle():
            return {"type": "idle"}
        case r.Active(flags):
            return {"type": "active", "activeFlags": [camel(flag) for flag in flags]}
        case r.Broken():
            return {"type": "systemError"}
        case _:
            assert_never(status)
