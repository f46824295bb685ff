"""Turns, their items, and what changes of them: closed unions, the same live and from a log.

Texts and JSON of a model, a tool or a person are held as they came; whoever writes them bounds nothing more.
Times are milliseconds since the epoch, None where a log does not tell them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import NewType, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.protocol.events import TokenUsage
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.protocol.wire import JsonMapping, JsonValue
from orchestrator.requests import KnownRequest

# ── statuses ──────────────────────────────────────────────────────────────────────────────────────
# The statuses of a session, as doors tell them.


class ActiveFlag(StrEnum):
    """A reason why an active session waits."""

    APPROVAL = "waiting_on_approval"
    USER_INPUT = "waiting_on_user_input"


@record
class Idle:
    """No turn runs."""


@record
class Active:
    """A turn runs; flags say whether it waits for a person."""

    flags: tuple[ActiveFlag, ...] = ()


@record
class Broken:
    """The last turn failed."""


Status: TypeAlias = Idle | Active | Broken


# ── records ───────────────────────────────────────────────────────────────────────────────────────


TurnId = NewType("TurnId", str)
ItemId = NewType("ItemId", str)


class TurnStatus(StrEnum):
    """A turn's end, or that it runs."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class ItemStatus(StrEnum):
    """A call's end, or that it runs: `declined` by a person, `interrupted` with its turn."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"


class CollabTool(StrEnum):
    """The kinds of calls that concern agents."""

    SPAWN = "spawn"
    SEND_INPUT = "send_input"
    INTERRUPT = "interrupt"
    WAIT = "wait"
    CLOSE = "close"
    LIST = "list"


class CollabStatus(StrEnum):
    """An agent's status as a call of another one saw it."""

    PENDING_INIT = "pending_init"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    ERRORED = "errored"
    SHUTDOWN = "shutdown"
    NOT_FOUND = "not_found"


@record
class CollabState:
    """An agent's status, and its last message or error."""

    status: CollabStatus
    message: str | None = None


class ChangeKind(StrEnum):
    """The change of a file by a patch."""

    ADD = "add"
    DELETE = "delete"
    UPDATE = "update"


@record
class FileDiff:
    """A file of a patch; `diff` is the whole text of a new or deleted one, the hunks of a changed one."""

    path: str
    kind: ChangeKind
    diff: str
    move_path: str | None = None


# ── items ─────────────────────────────────────────────────────────────────────────────────────────


@record
class UserMessage:
    """A message of a person, a watchdog or another agent; `content` as the items of an input."""

    id: ItemId
    content: tuple[JsonMapping, ...]
    client_id: str | None = None
    who: str | None = None
    """The person who wrote it, where the log says so."""
    from_session: str | None = None
    """The agent's session that wrote it."""
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class AgentMessage:
    """A message of the agent."""

    id: ItemId
    text: str = ""
    phase: str | None = None
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class Reasoning:
    """The agent's reasoning: parts of its summary, and raw texts where they are shown."""

    id: ItemId
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class Plan:
    """A plan that the agent proposed in plan mode."""

    id: ItemId
    text: str = ""
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class CommandExecution:
    """A command: `command` is its argv."""

    id: ItemId
    command: tuple[str, ...]
    cwd: str
    status: ItemStatus = ItemStatus.IN_PROGRESS
    source: ExecCommandSource = ExecCommandSource.AGENT
    actions: tuple[JsonMapping, ...] = ()
    """The parts of it that are understood, as `parsed_cmd` has them."""
    output: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None
    process_id: str | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    in_doubt: str = ""
    """The words of the one who took over from a lost worker, for an end that nobody saw; so of all calls."""


@record
class FileChange:
    """A patch, file by file; `left_out` more files than are shown."""

    id: ItemId
    changes: tuple[FileDiff, ...]
    status: ItemStatus = ItemStatus.IN_PROGRESS
    left_out: int = 0
    started_ms: int | None = None
    completed_ms: int | None = None
    in_doubt: str = ""


@record
class McpToolCall:
    """A call of a tool of an MCP server, or of one of the program's own (server `custom`)."""

    id: ItemId
    server: str
    tool: str
    arguments: JsonValue = None
    status: ItemStatus = ItemStatus.IN_PROGRESS
    result: JsonMapping | None = None
    error: str | None = None
    duration_ms: int | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    in_doubt: str = ""


@record
class DynamicToolCall:
    """A call of a tool that is none of the others; `output` is its text, `parts` has its images, too."""

    id: ItemId
    tool: str
    arguments: JsonValue = None
    namespace: str | None = None
    status: ItemStatus = ItemStatus.IN_PROGRESS
    output: str | None = None
    success: bool | None = None
    duration_ms: int | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    parts: tuple[JsonMapping, ...] = ()


@record
class CollabToolCall:
    """A call that makes, tells, awaits or ends agents; agents are named by their sessions."""

    id: ItemId
    tool: CollabTool
    sender: str
    receivers: tuple[str, ...] = ()
    prompt: str | None = None
    model: str | None = None
    effort: str | None = None
    states: Mapping[str, CollabState] = field(default_factory=dict)
    status: ItemStatus = ItemStatus.IN_PROGRESS
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class WebSearch:
    """A search on the web; `action` as the model's item has it."""

    id: ItemId
    query: str = ""
    action: JsonMapping | None = None
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class ImageView:
    """A look at an image file."""

    id: ItemId
    path: str
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class EnteredReview:
    """The begin of a review; `review` says of what."""

    id: ItemId
    review: str
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class ExitedReview:
    """The end of a review; `review` is its result in words."""

    id: ItemId
    review: str
    started_ms: int | None = None
    completed_ms: int | None = None


@record
class ContextCompaction:
    """The conversation is summed up here."""

    id: ItemId
    started_ms: int | None = None
    completed_ms: int | None = None


ThreadItem: TypeAlias = (
    UserMessage
    | AgentMessage
    | Reasoning
    | Plan
    | CommandExecution
    | FileChange
    | McpToolCall
    | DynamicToolCall
    | CollabToolCall
    | WebSearch
    | ImageView
    | EnteredReview
    | ExitedReview
    | ContextCompaction
)


@record
class Fault:
    """The reason why a turn failed, or an attempt of it: `info` is the `codex_error_info` of the event."""

    message: str
    info: JsonValue = None
    details: str | None = None


@record
class Turn:
    """A turn; `items` are its calls that have begun and all else that is whole, oldest first."""

    id: TurnId
    status: TurnStatus = TurnStatus.IN_PROGRESS
    items: tuple[ThreadItem, ...] = ()
    fault: Fault | None = None
    started_ms: int | None = None
    completed_ms: int | None = None


# ── changes ───────────────────────────────────────────────────────────────────────────────────────


@record
class TurnStarted:
    """A turn began; it has no items yet."""

    turn: Turn


@record
class TurnCompleted:
    """A turn ended: with all of its items, and its last message among them."""

    turn: Turn
    last_message: AgentMessage | None = None


@record
class ItemStarted:
    """An item began."""

    turn: TurnId
    item: ThreadItem


@record
class ItemCompleted:
    """An item is done."""

    turn: TurnId
    item: ThreadItem


class DeltaKind(StrEnum):
    """The text that a piece belongs to."""

    MESSAGE = "message"
    PLAN = "plan"
    REASONING_SUMMARY = "reasoning_summary"
    REASONING_PART = "reasoning_part"
    """A new part of the summary begins; its text is empty."""
    REASONING_TEXT = "reasoning_text"
    COMMAND_OUTPUT = "command_output"
    TERMINAL_INPUT = "terminal_input"
    """A text that was typed into a running command."""
    PROGRESS = "progress"
    """A word of an MCP server or a helper on a call that runs."""


@record
class ItemDelta:
    """A piece of an item that has begun; `index` is the place of the summary's part."""

    turn: TurnId
    item: ItemId
    kind: DeltaKind
    text: str
    index: int = 0
    process_id: str | None = None


@record
class PlanUpdated:
    """The agent's plan as it stands: steps with their status, as `plan_update` has them."""

    turn: TurnId
    explanation: str | None
    steps: tuple[tuple[str, str], ...]


@record
class DiffUpdated:
    """The changes of files in the turn so far."""

    turn: TurnId
    diff: str


@record
class TokenUsageUpdated:
    """The tokens of the last response, and of all of the session."""

    turn: TurnId
    total: TokenUsage
    last: TokenUsage
    window: int | None = None


@record
class TurnError:
    """An attempt failed: the turn goes on if `will_retry`, else it ends next."""

    turn: TurnId
    fault: Fault
    will_retry: bool


@record
class Warned:
    """A word to the person; nothing failed."""

    message: str
    turn: TurnId | None = None


@record
class RequestOpened:
    """A request to people, or to the program that brings a tool.

    `session` is the agent that asks, if it is another one than the session that is projected.
    """

    turn: TurnId
    item: ItemId
    request: KnownRequest
    session: str | None = None
    at_ms: int | None = None


@record
class RequestResolved:
    """A request is over: `decision` is the answer's word, `withdrawn`, or empty where none was told."""

    turn: TurnId
    item: ItemId
    decision: str = ""
    who: str = ""
    session: str | None = None


@record
class StatusChanged:
    """The session's status is another one."""

    status: Status


@record
class NameChanged:
    """The session has a new name, or none any more."""

    name: str | None


@record
class TurnsDropped:
    """The last `count` turns of a person were taken back, with what came after the first of them."""

    count: int


@record
class QueueChanged:
    """Other inputs wait for the running turn's end than before, or in another order."""


Change: TypeAlias = (
    TurnStarted
    | TurnCompleted
    | ItemStarted
    | ItemDelta
    | ItemCompleted
    | PlanUpdated
    | DiffUpdated
    | TokenUsageUpdated
    | TurnError
    | Warned
    | RequestOpened
    | RequestResolved
    | StatusChanged
    | NameChanged
    | TurnsDropped
    | QueueChanged
)
