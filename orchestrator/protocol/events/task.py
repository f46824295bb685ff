"""Events about a task as a whole: its start and end, errors, tokens, compaction."""

from __future__ import annotations

from typing import Literal

from orchestrator.protocol.agents import BudgetReport
from orchestrator.protocol.faults import CodexErrorInfo
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.scalars import (
    CompactionPhase,
    Delivered,
    LargeText,
    ModeKind,
    Refusal,
    TurnAbortReason,
)
from orchestrator.protocol.usage import RateLimitSnapshot, TokenUsageInfo
from orchestrator.protocol.wire import EventModel, Flag, JsonObject, Maybe, Settable, Source, Uint, tag_of


class Error(EventModel):
    """Something failed; `task_complete` with a null message follows if a task did."""

    type: Literal["error"] = "error"
    message: LargeText
    codex_error_info: Settable[CodexErrorInfo] = None
    """Absent where no kind of error was looked for."""
    reason: Maybe[Refusal] = None
    """Dendro's own: why a submission was refused, where a program has to know."""


class InputAccepted(EventModel):
    """Where input went whose submission said where it shall go, or which turn it is for.

    `turn_id` is the turn that it is part of: the running one (`steered`), or one of its own that begins
    later (`queued`). Input that begins its turn at once is answered by `task_started`.
    """

    stated_in = Source.DENDRO
    type: Literal["input_accepted"] = "input_accepted"
    turn_id: str
    delivery: Delivered


class ItemsInjected(EventModel):
    """Messages were added to the conversation without a turn; `count` says how many."""

    stated_in = Source.DENDRO
    type: Literal["items_injected"] = "items_injected"
    count: Uint


class QueueChanged(EventModel):
    """The inputs that wait were changed by an op; `waiting` is their number now."""

    stated_in = Source.DENDRO
    type: Literal["queue_changed"] = "queue_changed"
    waiting: Uint


class WarningEvent(EventModel):
    """Something a person should know; nothing failed."""

    stated_in = Source.OCTOBER_2025
    type: Literal["warning"] = "warning"
    message: str
    budget: Maybe[BudgetReport] = None


class StreamError(EventModel):
    """The model's stream broke and is tried again; partial text is void."""

    type: Literal["stream_error"] = "stream_error"
    message: str
    codex_error_info: CodexErrorInfo | None = None
    additional_details: str | None = None


class DeprecationNotice(EventModel):
    """Something in use will go away."""

    stated_in = Source.JANUARY_2026
    type: Literal["deprecation_notice"] = "deprecation_notice"
    summary: str
    details: Maybe[str] = None


class BackgroundEvent(EventModel):
    """Progress in words."""

    type: Literal["background_event"] = "background_event"
    message: str


class TaskStarted(EventModel):
    """A task began; also read as `turn_started`."""

    type: Literal["task_started"] = "task_started"
    model_context_window: Uint | None = None
    collaboration_mode_kind: Maybe[ModeKind] = None


class TaskComplete(EventModel):
    """A task is over, after an error too; also read as `turn_complete`."""

    type: Literal["task_complete"] = "task_complete"
    last_agent_message: str | None = None
    response_id: Maybe[ResponseId] = None


class TurnAborted(EventModel):
    """A task was stopped before its model was done."""

    type: Literal["turn_aborted"] = "turn_aborted"
    reason: TurnAbortReason
    turn_id: Maybe[str] = None


class TokenCount(EventModel):
    """Tokens used so far; after each turn with the bookmark of its response."""

    type: Literal["token_count"] = "token_count"
    info: TokenUsageInfo | None = None
    rate_limits: RateLimitSnapshot | None = None
    response_id: Maybe[ResponseId] = None


def token_count(
    info: JsonObject | None, rate_limits: JsonObject | None, response_id: ResponseId | None
) -> JsonObject:
    """The payload of a `TokenCount` of these parts, unchecked: each turn has two of them."""
    told: JsonObject = {"type": _TOKEN_COUNT, "info": info, "rate_limits": rate_limits}
    return told if response_id is None else {**told, "response_id": response_id}


_TOKEN_COUNT = tag_of(TokenCount)


def task_started(window: int | None, mode: ModeKind) -> JsonObject:
    """The payload of a `TaskStarted` of these parts, unchecked, as `token_count` is."""
    return {"type": _TASK_STARTED, "model_context_window": window, "collaboration_mode_kind": str(mode)}


def task_complete(last_agent_message: str | None, response_id: ResponseId | None = None) -> JsonObject:
    """The payload of a `TaskComplete` of these parts, unchecked."""
    told: JsonObject = {"type": _TASK_COMPLETE, "last_agent_message": last_agent_message}
    return told if response_id is None else {**told, "response_id": response_id}


_TASK_STARTED, _TASK_COMPLETE = tag_of(TaskStarted), tag_of(TaskComplete)


class ContextCompacted(EventModel):
    """The history was replaced by a summary."""

    stated_in = Source.JANUARY_2026
    type: Literal["context_compacted"] = "context_compacted"


class ContextCompaction(EventModel):
    """A compaction begins, or is done; an attempt after a broken one begins it again.

    In every log, whatever `item_events` says; `dendro proto` does not write it.
    """

    stated_in = Source.DENDRO
    type: Literal["context_compaction"] = "context_compaction"
    turn_id: str
    phase: CompactionPhase


class ThreadRolledBack(EventModel):
    """User turns were dropped from the model's history."""

    stated_in = Source.JANUARY_2026
    type: Literal["thread_rolled_back"] = "thread_rolled_back"
    num_turns: Uint


class UndoStarted(EventModel):
    """The workspace is being taken back."""

    stated_in = Source.JANUARY_2026
    type: Literal["undo_started"] = "undo_started"
    message: Maybe[str] = None


class UndoCompleted(EventModel):
    """The workspace was taken back, or could not be."""

    stated_in = Source.JANUARY_2026
    type: Literal["undo_completed"] = "undo_completed"
    success: Flag
    message: Maybe[str] = None


class TurnDiff(EventModel):
    """All that the task changed in files so far."""

    type: Literal["turn_diff"] = "turn_diff"
    unified_diff: str


class ShutdownComplete(EventModel):
    """The session is closed; the last event."""

    type: Literal["shutdown_complete"] = "shutdown_complete"
