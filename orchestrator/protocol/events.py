"""Every event that an agent may report (`EventMsg`).

The classes stand by theme: text, task, session, asks, tools, tree; the union is at the end. An
event whose tag is not listed is an `UnknownEvent` and is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import Field

from orchestrator.protocol import agents, scalars
from orchestrator.protocol.catalog import CustomPrompt, HistoryEntry, ListedModel, SkillsListEntry
from orchestrator.protocol.commands import FileChangeField, ParsedCommandField
from orchestrator.protocol.ids import CallId, ResponseId
from orchestrator.protocol.inputs import TextElement
from orchestrator.protocol.items import ContentItemField, ResponseItemField, WebSearchActionField
from orchestrator.protocol.mcp import (
    McpInvocation,
    McpStartupFailure,
    McpStartupStatusField,
    RequestId,
    Tool,
    ToolOutcome,
)
from orchestrator.protocol.plans import (
    AskUserQuestion,
    PlanItemArg,
    PlanOutputEvent,
    PlanProposal,
    RequestUserInputQuestion,
)
from orchestrator.protocol.policy import AskForApproval, SandboxPolicyField
from orchestrator.protocol.review import ReviewOutputEvent, ReviewTargetField
from orchestrator.protocol.turn_items import TurnItemField
from orchestrator.protocol.wire import (
    EventModel,
    Flag,
    Int,
    JsonObject,
    JsonValue,
    Maybe,
    Number,
    OneOf,
    Settable,
    Source,
    Uint,
    Unknown,
    Unset,
    WireModel,
    tag_of,
    tags,
)

# ── faults ────────────────────────────────────────────────────────────────────────────────────────
# Why something failed, for programs: the `codex_error_info` beside a message.


class CodexErrorKind(StrEnum):
    """Faults that need no detail."""

    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    USAGE_LIMIT_EXCEEDED = "usage_limit_exceeded"
    INTERNAL_SERVER_ERROR = "internal_server_error"
    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad_request"
    SANDBOX_ERROR = "sandbox_error"
    THREAD_ROLLBACK_FAILED = "thread_rollback_failed"
    OTHER = "other"


class HttpFaultKind(StrEnum):
    """Faults on the way to the model."""

    HTTP_CONNECTION_FAILED = "http_connection_failed"
    RESPONSE_STREAM_CONNECTION_FAILED = "response_stream_connection_failed"
    RESPONSE_STREAM_DISCONNECTED = "response_stream_disconnected"
    RESPONSE_TOO_MANY_FAILED_ATTEMPTS = "response_too_many_failed_attempts"


class HttpFault(WireModel):
    """The status the server gave, if one came."""

    stated_in = Source.JANUARY_2026
    http_status_code: Uint | None = None


class ModelCap(WireModel):
    """A model's own cap was reached."""

    stated_in = Source.JANUARY_2026
    model: str
    reset_after_seconds: Uint | None = None


class ModelCapFault(WireModel):
    """The fault that a model's cap was reached."""

    stated_in = Source.JANUARY_2026
    model_cap: ModelCap


# Read left to right, raw JSON last: a newer version's fault must not make its error unreadable.
CodexErrorInfo: TypeAlias = Annotated[
    CodexErrorKind | dict[HttpFaultKind, HttpFault] | ModelCapFault | JsonValue,
    Field(union_mode="left_to_right"),
]


def fault_kind(info: CodexErrorInfo | Unset) -> str | None:
    """The name of a fault, whatever details it has; None if it names none."""
    match info:
        case str():
            return str(info)
        case ModelCapFault():
            return "model_cap"
        case Mapping():
            name = next(iter(info), None)
            return None if name is None else str(name)
        case _:
            return None


# ── usage ─────────────────────────────────────────────────────────────────────────────────────────
# Tokens used and rate limits left, as `token_count` reports them.


class TokenUsage(WireModel):
    """Tokens of one response, or of a session's responses together."""

    input_tokens: Uint = 0
    cached_input_tokens: Uint = 0
    output_tokens: Uint = 0
    reasoning_output_tokens: Uint = 0
    total_tokens: Uint = 0


class TokenUsageInfo(WireModel):
    """The session's sum, the last response, and the window that they are measured against."""

    total_token_usage: TokenUsage
    last_token_usage: TokenUsage
    model_context_window: Uint | None = None


class RateLimitWindow(WireModel):
    """A window of a provider's rate limit."""

    stated_in = Source.RECORDED
    used_percent: Number
    window_minutes: Maybe[Uint] = None
    resets_in_seconds: Maybe[Uint] = None
    resets_at: Maybe[Int] = None


class RateLimitSnapshot(WireModel):
    """The provider's limits as its headers told them; both `null` without headers."""

    stated_in = Source.RECORDED
    primary: RateLimitWindow | None = None
    secondary: RateLimitWindow | None = None


# ── tree ──────────────────────────────────────────────────────────────────────────────────────────
# Events about the agents of a tree: lifecycle, inboxes, helpers, collaboration.


class SubagentLifecycle(EventModel):
    """An agent was created, changed or removed; `event` says which, `subagent` how it is now.

    `cancel` is Dendro's own: with status `canceled`, whether its processes are known to be
    dead or only presumed so.
    """

    stated_in = Source.NOVEMBER_2025
    type: Literal["subagent_lifecycle"] = "subagent_lifecycle"
    event: agents.LifecycleChange
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    status: Maybe[agents.SubagentStatus] = None
    cancel: Maybe[agents.CancelEvidence] = None
    reasoning_header: Maybe[str] = None
    subagent: Maybe[agents.SubagentSummary] = None


class AgentInbox(EventModel):
    """How much mail an agent has not taken yet."""

    stated_in = Source.NOVEMBER_2025
    type: Literal["agent_inbox"] = "agent_inbox"
    agent_id: Uint
    session_id: str
    pending_messages: Uint
    pending_interrupts: Uint


class SubAgentToolCallBegin(EventModel):
    """A read-only helper was started by `spawn_subagent`."""

    stated_in = Source.DECEMBER_2025
    type: Literal["sub_agent_tool_call_begin"] = "sub_agent_tool_call_begin"
    call_id: CallId
    invocation: agents.SubAgentInvocation


class SubAgentToolCallActivity(EventModel):
    """The helper's present activity; an empty text clears it."""

    stated_in = Source.DECEMBER_2025
    type: Literal["sub_agent_tool_call_activity"] = "sub_agent_tool_call_activity"
    call_id: CallId
    activity: str


class SubAgentToolCallTokens(EventModel):
    """The tokens that the helper has used so far."""

    stated_in = Source.DECEMBER_2025
    type: Literal["sub_agent_tool_call_tokens"] = "sub_agent_tool_call_tokens"
    call_id: CallId
    tokens: Uint


class SubAgentToolCallEnd(EventModel):
    """The helper is done."""

    stated_in = Source.DECEMBER_2025
    type: Literal["sub_agent_tool_call_end"] = "sub_agent_tool_call_end"
    call_id: CallId
    invocation: agents.SubAgentInvocation
    duration: scalars.Duration
    tokens: Maybe[Uint] = None
    result: agents.SubAgentResult
    outcome: Maybe[str] = None


class CollabModel(EventModel):
    """The base of the collaboration events, which name threads instead of agents."""

    stated_in = Source.JANUARY_2026
    call_id: CallId
    sender_thread_id: str


class CollabAgentSpawnBegin(CollabModel):
    """A thread is being made."""

    type: Literal["collab_agent_spawn_begin"] = "collab_agent_spawn_begin"
    prompt: str


class CollabAgentSpawnEnd(CollabModel):
    """A thread was made, or could not be."""

    type: Literal["collab_agent_spawn_end"] = "collab_agent_spawn_end"
    new_thread_id: str | None = None
    prompt: str
    status: agents.AgentStatus


class CollabAgentInteractionBegin(CollabModel):
    """A message goes to a thread."""

    type: Literal["collab_agent_interaction_begin"] = "collab_agent_interaction_begin"
    receiver_thread_id: str
    prompt: str


class CollabAgentInteractionEnd(CollabModel):
    """A message went to a thread."""

    type: Literal["collab_agent_interaction_end"] = "collab_agent_interaction_end"
    receiver_thread_id: str
    prompt: str
    status: agents.AgentStatus


class CollabWaitingBegin(CollabModel):
    """A thread waits for others."""

    type: Literal["collab_waiting_begin"] = "collab_waiting_begin"
    receiver_thread_ids: tuple[str, ...]


class CollabWaitingEnd(CollabModel):
    """The wait is over; the threads that have ended, by id."""

    type: Literal["collab_waiting_end"] = "collab_waiting_end"
    statuses: dict[str, agents.AgentStatus]


class CollabCloseBegin(CollabModel):
    """A thread is being closed."""

    type: Literal["collab_close_begin"] = "collab_close_begin"
    receiver_thread_id: str


class CollabCloseEnd(CollabModel):
    """A thread was closed; its status before that."""

    type: Literal["collab_close_end"] = "collab_close_end"
    receiver_thread_id: str
    status: agents.AgentStatus


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────
# Events about tools at work: commands, patches, MCP calls, the web, images.


class ExecCommandBegin(EventModel):
    """A command was started."""

    type: Literal["exec_command_begin"] = "exec_command_begin"
    call_id: CallId
    process_id: Maybe[str] = None
    turn_id: Maybe[str] = None
    command: tuple[scalars.LargeText, ...]
    cwd: scalars.LargeText
    parsed_cmd: tuple[ParsedCommandField, ...]
    source: Maybe[scalars.ExecCommandSource] = None
    interaction_input: Maybe[str] = None


class ExecCommandOutputDelta(EventModel):
    """A piece of a running command's output."""

    type: Literal["exec_command_output_delta"] = "exec_command_output_delta"
    call_id: CallId
    stream: scalars.OutputStream
    chunk: scalars.Chunk


class TerminalInteraction(EventModel):
    """Something was typed into a running command."""

    stated_in = Source.JANUARY_2026
    type: Literal["terminal_interaction"] = "terminal_interaction"
    call_id: CallId
    process_id: str
    stdin: str


class ExecCommandEnd(EventModel):
    """A command is over; exit code -1 if nobody knows how it ended."""

    type: Literal["exec_command_end"] = "exec_command_end"
    call_id: CallId
    process_id: Maybe[str] = None
    turn_id: Maybe[str] = None
    command: Maybe[tuple[str, ...]] = None
    cwd: Maybe[str] = None
    parsed_cmd: Maybe[tuple[ParsedCommandField, ...]] = None
    source: Maybe[scalars.ExecCommandSource] = None
    interaction_input: Maybe[str] = None
    stdout: str
    stderr: str
    aggregated_output: str = ""
    exit_code: Int
    duration: scalars.Duration
    formatted_output: str = ""


class PatchApplyBegin(EventModel):
    """A patch is being written.

    `changes_left_out` is Dendro's own: so many files more than `changes` shows.
    """

    type: Literal["patch_apply_begin"] = "patch_apply_begin"
    call_id: CallId
    turn_id: Maybe[str] = None
    auto_approved: Flag
    changes: dict[str, FileChangeField]
    changes_left_out: Maybe[Uint] = None


class PatchApplyEnd(EventModel):
    """A patch was written, or failed."""

    type: Literal["patch_apply_end"] = "patch_apply_end"
    call_id: CallId
    turn_id: Maybe[str] = None
    stdout: scalars.LargeText
    stderr: str
    success: Flag
    changes: Maybe[dict[str, FileChangeField]] = None


class McpToolCallBegin(EventModel):
    """A tool of an MCP server is called."""

    type: Literal["mcp_tool_call_begin"] = "mcp_tool_call_begin"
    call_id: CallId
    invocation: McpInvocation


class McpToolCallEnd(EventModel):
    """A tool of an MCP server answered, or the call failed."""

    type: Literal["mcp_tool_call_end"] = "mcp_tool_call_end"
    call_id: CallId
    invocation: McpInvocation
    duration: scalars.Duration
    result: ToolOutcome


class McpStartupUpdate(EventModel):
    """An MCP server's start went on."""

    stated_in = Source.JANUARY_2026
    type: Literal["mcp_startup_update"] = "mcp_startup_update"
    server: str
    status: McpStartupStatusField


class McpStartupComplete(EventModel):
    """Every MCP server is up, failed or given up."""

    stated_in = Source.JANUARY_2026
    type: Literal["mcp_startup_complete"] = "mcp_startup_complete"
    ready: tuple[str, ...] = ()
    failed: tuple[McpStartupFailure, ...] = ()
    cancelled: tuple[str, ...] = ()


class McpListToolsResponse(EventModel):
    """The tools of MCP servers by their full names."""

    type: Literal["mcp_list_tools_response"] = "mcp_list_tools_response"
    tools: dict[str, Tool]
    resources: Maybe[dict[str, tuple[JsonValue, ...]]] = None
    resource_templates: Maybe[dict[str, tuple[JsonValue, ...]]] = None
    auth_statuses: Maybe[dict[str, str]] = None


class WebSearchBegin(EventModel):
    """A search on the web began."""

    type: Literal["web_search_begin"] = "web_search_begin"
    call_id: CallId


class WebSearchEnd(EventModel):
    """A search on the web is over."""

    type: Literal["web_search_end"] = "web_search_end"
    call_id: CallId
    query: str
    action: Maybe[WebSearchActionField] = None


class ViewImageToolCall(EventModel):
    """The agent looked at an image file."""

    stated_in = Source.JANUARY_2026
    type: Literal["view_image_tool_call"] = "view_image_tool_call"
    call_id: CallId
    path: str


class DynamicToolCallRequest(EventModel):
    """The client is asked to run one of its own tools; camelCase on the wire."""

    stated_in = Source.JANUARY_2026
    type: Literal["dynamic_tool_call_request"] = "dynamic_tool_call_request"
    call_id: Annotated[CallId, Field(alias="callId")]
    turn_id: Annotated[str, Field(alias="turnId")]
    tool: str
    arguments: JsonValue
    namespace: Maybe[str] = None
    client: Maybe[str] = None
    """Dendro's own: the name of the program that brings the tool."""


class DynamicToolCallResponse(EventModel):
    """A client's own tool has answered, or nobody has in time."""

    stated_in = Source.DENDRO
    type: Literal["dynamic_tool_call_response"] = "dynamic_tool_call_response"
    call_id: CallId
    turn_id: str
    tool: str
    success: Flag
    output: scalars.LargeText
    content_items: Maybe[tuple[ContentItemField, ...]] = None
    """Texts and images as the model is given them; `output` has the texts alone."""


# ── asks ──────────────────────────────────────────────────────────────────────────────────────────
# Events that ask a person: approvals, questions, plans.
#
# An agent below the root is named in the request (`agent_id`, `session_id`, `agent_path`), since its
# requests appear on the root's EQ as well.


class Reach(WireModel):
    """Where an approved call would run, and what it could do there, in Dendro's own words."""

    stated_in = Source.DENDRO
    sandboxed: Flag
    """Whether the sandbox confines it, or it writes nothing that the sandbox would not let it write."""
    text: str
    """Where it runs and what it could do, in one line."""
    machine: str = ""
    """The machine that has asked; empty: not known."""
    why: str = ""
    """Dendro's reason for asking; empty where the policy alone is the reason."""
    says: str = ""
    """The model's justification, in one line."""
    by_link: Maybe[bool] = None
    """Whether a link leads from a path of the request to another one, which `text` names."""

    @property
    def told(self) -> str:
        """All of it in one line, for clients that show a reason alone: the model's words come last."""
        why = f"; asked because: {self.why}" if self.why else ""
        return self.text + why + (f"; the agent says: “{self.says}”" if self.says else "")


class ExecApprovalRequest(EventModel):
    """May this command run?

    `reach` is Dendro's own; `reason` says the same in one line.
    """

    type: Literal["exec_approval_request"] = "exec_approval_request"
    command: tuple[scalars.LargeText, ...]
    cwd: scalars.LargeText
    env: Maybe[dict[str, str]] = None
    """Variables that the model sets for the command, if it sets any."""
    call_id: CallId
    turn_id: Maybe[str] = None
    reason: Maybe[str] = None
    reach: Maybe[Reach] = None
    proposed_execpolicy_amendment: Maybe[tuple[str, ...]] = None
    parsed_cmd: Maybe[tuple[ParsedCommandField, ...]] = None
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class ApplyPatchApprovalRequest(EventModel):
    """May this patch be written?

    Dendro's own are `reach`, and `changes_left_out`: so many files more than `changes` shows.
    """

    type: Literal["apply_patch_approval_request"] = "apply_patch_approval_request"
    changes: dict[str, FileChangeField]
    changes_left_out: Maybe[Uint] = None
    call_id: CallId
    turn_id: Maybe[str] = None
    reason: Maybe[str] = None
    reach: Maybe[Reach] = None
    grant_root: Maybe[str] = None
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class ElicitationRequest(EventModel):
    """An MCP server asks a person something. `reach`, of the server, is Dendro's own."""

    stated_in = Source.JANUARY_2026
    type: Literal["elicitation_request"] = "elicitation_request"
    server_name: str
    id: RequestId
    message: str
    reach: Maybe[Reach] = None
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class RequestUserInput(EventModel):
    """The agent asks; answered by `user_input_answer`."""

    stated_in = Source.JANUARY_2026
    type: Literal["request_user_input"] = "request_user_input"
    call_id: CallId
    turn_id: str = ""
    questions: tuple[RequestUserInputQuestion, ...]
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class AskUserQuestionRequest(EventModel):
    """The agent asks; answered by `resolve_ask_user_question`. `callId` on the wire."""

    stated_in = Source.DECEMBER_2025
    type: Literal["ask_user_question_request"] = "ask_user_question_request"
    call_id: Annotated[CallId, Field(alias="callId")]
    questions: tuple[AskUserQuestion, ...]
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class PlanApprovalRequest(EventModel):
    """Shall this plan be followed?"""

    stated_in = Source.DECEMBER_2025
    type: Literal["plan_approval_request"] = "plan_approval_request"
    call_id: CallId
    proposal: PlanProposal
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class RequestResolved(EventModel):
    """The end of an agent's request to people: decided by a person, or withdrawn with its turn.

    Published where the request was published, so that every client that still shows it can take it
    away. `decision` is the answer's word, or `withdrawn`; `who` is empty for that, and `timer` where
    no answer came in time. In a session without agents an answer of the client that gave the task is
    not published: that client knows it.
    """

    stated_in = Source.DENDRO
    type: Literal["request_resolved"] = "request_resolved"
    call_id: CallId
    turn_id: str
    decision: str
    who: str = ""
    resolved_at_ms: Int
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class PlanUpdate(EventModel):
    """The agent's plan as it stands."""

    type: Literal["plan_update"] = "plan_update"
    explanation: str | None = None
    plan: tuple[PlanItemArg, ...]


class EnteredPlanMode(EventModel):
    """A planning session began."""

    stated_in = Source.DECEMBER_2025
    type: Literal["entered_plan_mode"] = "entered_plan_mode"
    goal: str


class ExitedPlanMode(EventModel):
    """A planning session is over; `null` without an approved plan."""

    stated_in = Source.DECEMBER_2025
    type: Literal["exited_plan_mode"] = "exited_plan_mode"
    plan_output: PlanOutputEvent | None = None


# ── session ───────────────────────────────────────────────────────────────────────────────────────
# Events about a session: its configuration, its file, lookups, review mode.


class SessionConfigured(EventModel):
    """The session is ready; the first event, with id `""` unless an op asked for it."""

    type: Literal["session_configured"] = "session_configured"
    session_id: str
    forked_from_id: Maybe[str] = None
    model: str
    thread_name: Maybe[str] = None
    model_provider_id: Maybe[str] = None
    approval_policy: Maybe[AskForApproval] = None
    sandbox_policy: Maybe[SandboxPolicyField] = None
    cwd: Maybe[str] = None
    reasoning_effort: Annotated[Maybe[scalars.ReasoningEffort | str], Field(union_mode="left_to_right")] = (
        None
    )
    """A word that is none of the listed ones is a newer provider's."""
    history_log_id: Uint = 0
    history_entry_count: Uint = 0
    initial_messages: Maybe[tuple[EventField, ...]] = None
    rollout_path: Maybe[str] = None


class ThreadNameUpdated(EventModel):
    """The session has a new name."""

    stated_in = Source.JANUARY_2026
    type: Literal["thread_name_updated"] = "thread_name_updated"
    thread_id: str
    thread_name: Maybe[str] = None


class ConversationPath(EventModel):
    """Where the session's rollout file is."""

    type: Literal["conversation_path"] = "conversation_path"
    conversation_id: str
    path: str


class GetHistoryEntryResponse(EventModel):
    """An entry of the shared history of prompts, if there is one at that place."""

    type: Literal["get_history_entry_response"] = "get_history_entry_response"
    offset: Uint
    log_id: Uint
    entry: Maybe[HistoryEntry] = None


class ListCustomPromptsResponse(EventModel):
    """The saved prompts."""

    type: Literal["list_custom_prompts_response"] = "list_custom_prompts_response"
    custom_prompts: tuple[CustomPrompt, ...]


class ListModelsResponse(EventModel):
    """The models that are known, the default first; no document gives `list_models` an answer."""

    stated_in = Source.DENDRO
    type: Literal["list_models_response"] = "list_models_response"
    models: tuple[ListedModel, ...]


class ListSkillsResponse(EventModel):
    """The skills, folder by folder."""

    stated_in = Source.DECEMBER_2025
    type: Literal["list_skills_response"] = "list_skills_response"
    skills: tuple[SkillsListEntry, ...]


class SkillsUpdateAvailable(EventModel):
    """The skills on disk have changed."""

    stated_in = Source.JANUARY_2026
    type: Literal["skills_update_available"] = "skills_update_available"


class EnteredReviewMode(EventModel):
    """A review began; the fields are those of its request."""

    type: Literal["entered_review_mode"] = "entered_review_mode"
    prompt: Maybe[str] = None
    target: Maybe[ReviewTargetField] = None
    user_facing_hint: Maybe[str] = None


class ExitedReviewMode(EventModel):
    """A review is over; `null` if it was stopped."""

    type: Literal["exited_review_mode"] = "exited_review_mode"
    review_output: ReviewOutputEvent | None = None


# ── task ──────────────────────────────────────────────────────────────────────────────────────────
# Events about a task as a whole: its start and end, errors, tokens, compaction.


class Error(EventModel):
    """Something failed; `task_complete` with a null message follows if a task did."""

    type: Literal["error"] = "error"
    message: scalars.LargeText
    codex_error_info: Settable[CodexErrorInfo] = None
    """Absent where no kind of error was looked for."""
    reason: Maybe[scalars.Refusal] = None
    """Dendro's own: why a submission was refused, where a program has to know."""


class InputAccepted(EventModel):
    """Where input went whose submission said where it shall go, or which turn it is for.

    `turn_id` is the turn that it is part of: the running one (`steered`), or one of its own that begins
    later (`queued`). Input that begins its turn at once is answered by `task_started`.
    """

    stated_in = Source.DENDRO
    type: Literal["input_accepted"] = "input_accepted"
    turn_id: str
    delivery: scalars.Delivered


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
    budget: Maybe[agents.BudgetReport] = None


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
    collaboration_mode_kind: Maybe[scalars.ModeKind] = None


class TaskComplete(EventModel):
    """A task is over, after an error too; also read as `turn_complete`."""

    type: Literal["task_complete"] = "task_complete"
    last_agent_message: str | None = None
    response_id: Maybe[ResponseId] = None


class TurnAborted(EventModel):
    """A task was stopped before its model was done."""

    type: Literal["turn_aborted"] = "turn_aborted"
    reason: scalars.TurnAbortReason
    turn_id: Maybe[str] = None


TURN_ENDS: Final = frozenset[type[TaskComplete | TurnAborted]]({TaskComplete, TurnAborted})
"""The events that end a task."""


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


def task_started(window: int | None, mode: scalars.ModeKind) -> JsonObject:
    """The payload of a `TaskStarted` of these parts, unchecked, as `token_count` is."""
    return {"type": _TASK_STARTED, "model_context_window": window, "collaboration_mode_kind": str(mode)}


def task_complete(
    last_agent_message: str | JsonObject | None, response_id: ResponseId | None = None
) -> JsonObject:
    """The payload of a `TaskComplete` of these parts, unchecked; of a very long message its reference."""
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
    phase: scalars.CompactionPhase


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


# ── text ──────────────────────────────────────────────────────────────────────────────────────────
# Events that carry text: messages, reasoning, and their deltas.


MessagePhase = Literal["commentary", "partial_answer", "final_answer"]


class AgentMessage(EventModel):
    """A finished message of the agent."""

    type: Literal["agent_message"] = "agent_message"
    message: str
    phase: Maybe[MessagePhase] = None
    """The model's word for what it says; None if it said none, or one that clients do not know."""


class AgentMessageDelta(EventModel):
    """A piece of the message being written."""

    type: Literal["agent_message_delta"] = "agent_message_delta"
    delta: str


class UserMessage(EventModel):
    """The person's message, as the model got it."""

    type: Literal["user_message"] = "user_message"
    message: scalars.LargeText
    kind: Maybe[scalars.UserMessageKind] = None
    images: Maybe[tuple[scalars.LargeText, ...]] = None
    local_images: Maybe[tuple[str, ...]] = None
    text_elements: Maybe[tuple[TextElement, ...]] = None
    client_id: Maybe[str] = None
    """Dendro's own: the `client_user_message_id` of the op."""
    who: Maybe[str] = None
    """Dendro's own: the person who wrote it, as the door knows them."""
    from_session: Maybe[str] = None
    """Dendro's own: the session of the agent that wrote it."""


class AgentReasoning(EventModel):
    """A finished part of the reasoning summary."""

    type: Literal["agent_reasoning"] = "agent_reasoning"
    text: str


class AgentReasoningDelta(EventModel):
    """A piece of the reasoning summary being written."""

    type: Literal["agent_reasoning_delta"] = "agent_reasoning_delta"
    delta: str


class AgentReasoningRawContent(EventModel):
    """Raw reasoning, finished."""

    type: Literal["agent_reasoning_raw_content"] = "agent_reasoning_raw_content"
    text: str


class AgentReasoningRawContentDelta(EventModel):
    """A piece of raw reasoning."""

    type: Literal["agent_reasoning_raw_content_delta"] = "agent_reasoning_raw_content_delta"
    delta: str


class AgentReasoningSectionBreak(EventModel):
    """A new part of the reasoning summary begins."""

    type: Literal["agent_reasoning_section_break"] = "agent_reasoning_section_break"
    item_id: Maybe[str] = None
    summary_index: Maybe[Uint] = None


class ItemEventModel(EventModel):
    """The base of the events that name thread, turn and item."""

    stated_in = Source.JANUARY_2026
    thread_id: str
    turn_id: str


class AgentMessageContentDelta(ItemEventModel):
    """A piece of an agent message item."""

    type: Literal["agent_message_content_delta"] = "agent_message_content_delta"
    item_id: str
    delta: str


class PlanDelta(ItemEventModel):
    """A piece of a proposed plan; the finished item may differ from the pieces."""

    type: Literal["plan_delta"] = "plan_delta"
    item_id: str
    delta: str


class ReasoningContentDelta(ItemEventModel):
    """A piece of a reasoning item's summary."""

    type: Literal["reasoning_content_delta"] = "reasoning_content_delta"
    item_id: str
    delta: str
    summary_index: Uint = 0


class ReasoningRawContentDelta(ItemEventModel):
    """A piece of a reasoning item's raw text."""

    type: Literal["reasoning_raw_content_delta"] = "reasoning_raw_content_delta"
    item_id: str
    delta: str
    content_index: Uint = 0


StreamedText: TypeAlias = (
    AgentMessageDelta
    | AgentReasoningDelta
    | AgentReasoningRawContentDelta
    | AgentMessageContentDelta
    | PlanDelta
    | ReasoningContentDelta
    | ReasoningRawContentDelta
)
_STREAMED = {model: tag_of(model) for model in get_args(StreamedText)}


def text_delta(model: type[StreamedText], delta: str, **place: str | int) -> JsonObject:
    """The payload of `model(delta=delta, **place)`, unchecked: a model streams thousands of them."""
    return {"type": _STREAMED[model], **place, "delta": delta}


def agent_message(message: str, phase: MessagePhase | None = None) -> JsonObject:
    """The payload of an `AgentMessage` of these parts, unchecked: a turn ends with one, as a rule."""
    told: JsonObject = {"type": _AGENT_MESSAGE, "message": message}
    return told if phase is None else {**told, "phase": phase}


def user_message(message: str, client_id: str | None, who: str | None = None) -> JsonObject:
    """The payload of the `UserMessage` of a text alone, unchecked: a turn begins with one, as a rule."""
    told: JsonObject = {"type": _USER_MESSAGE, "message": message, "kind": _PLAIN}
    if client_id is not None:
        told["client_id"] = client_id
    if who is not None:
        told["who"] = who
    return told


_AGENT_MESSAGE, _USER_MESSAGE = tag_of(AgentMessage), tag_of(UserMessage)
_PLAIN = scalars.UserMessageKind.PLAIN.value


class ItemStarted(ItemEventModel):
    """An item of the turn began."""

    type: Literal["item_started"] = "item_started"
    item: TurnItemField


class ItemCompleted(ItemEventModel):
    """An item of the turn is finished."""

    type: Literal["item_completed"] = "item_completed"
    item: TurnItemField


class RawResponseItem(EventModel):
    """A response item as the model sent it."""

    stated_in = Source.JANUARY_2026
    type: Literal["raw_response_item"] = "raw_response_item"
    item: ResponseItemField


# ── events ────────────────────────────────────────────────────────────────────────────────────────


class UnknownEvent(Unknown):
    """An event of a kind that this version does not know, held as it came."""


EventMsg: TypeAlias = (
    Error
    | InputAccepted
    | ItemsInjected
    | QueueChanged
    | WarningEvent
    | StreamError
    | DeprecationNotice
    | BackgroundEvent
    | TaskStarted
    | TaskComplete
    | TurnAborted
    | TokenCount
    | ContextCompacted
    | ContextCompaction
    | ThreadRolledBack
    | UndoStarted
    | UndoCompleted
    | TurnDiff
    | ShutdownComplete
    | AgentMessage
    | AgentMessageDelta
    | UserMessage
    | AgentReasoning
    | AgentReasoningDelta
    | AgentReasoningRawContent
    | AgentReasoningRawContentDelta
    | AgentReasoningSectionBreak
    | AgentMessageContentDelta
    | PlanDelta
    | ReasoningContentDelta
    | ReasoningRawContentDelta
    | ItemStarted
    | ItemCompleted
    | RawResponseItem
    | SessionConfigured
    | ThreadNameUpdated
    | ConversationPath
    | GetHistoryEntryResponse
    | ListCustomPromptsResponse
    | ListModelsResponse
    | ListSkillsResponse
    | SkillsUpdateAvailable
    | EnteredReviewMode
    | ExitedReviewMode
    | ExecApprovalRequest
    | ApplyPatchApprovalRequest
    | ElicitationRequest
    | RequestUserInput
    | AskUserQuestionRequest
    | PlanApprovalRequest
    | RequestResolved
    | PlanUpdate
    | EnteredPlanMode
    | ExitedPlanMode
    | ExecCommandBegin
    | ExecCommandOutputDelta
    | TerminalInteraction
    | ExecCommandEnd
    | PatchApplyBegin
    | PatchApplyEnd
    | McpToolCallBegin
    | McpToolCallEnd
    | McpStartupUpdate
    | McpStartupComplete
    | McpListToolsResponse
    | WebSearchBegin
    | WebSearchEnd
    | ViewImageToolCall
    | DynamicToolCallRequest
    | DynamicToolCallResponse
    | SubagentLifecycle
    | AgentInbox
    | SubAgentToolCallBegin
    | SubAgentToolCallActivity
    | SubAgentToolCallTokens
    | SubAgentToolCallEnd
    | CollabAgentSpawnBegin
    | CollabAgentSpawnEnd
    | CollabAgentInteractionBegin
    | CollabAgentInteractionEnd
    | CollabWaitingBegin
    | CollabWaitingEnd
    | CollabCloseBegin
    | CollabCloseEnd
    | UnknownEvent
)

EVENT_SYNONYMS = {"turn_started": "task_started", "turn_complete": "task_complete"}
EventField = Annotated[EventMsg, OneOf(synonyms=EVENT_SYNONYMS)]
EVENTS: dict[str, type[EventModel]] = tags(get_args(EventMsg))
"""Every known event by its wire tag."""

SessionConfigured.model_rebuild(_types_namespace={"EventField": EventField})

__all__ = [
    "EVENTS",
    "EVENT_SYNONYMS",
    "TURN_ENDS",
    "AgentInbox",
    "AgentMessage",
    "AgentMessageContentDelta",
    "AgentMessageDelta",
    "AgentReasoning",
    "AgentReasoningDelta",
    "AgentReasoningRawContent",
    "AgentReasoningRawContentDelta",
    "AgentReasoningSectionBreak",
    "ApplyPatchApprovalRequest",
    "AskUserQuestionRequest",
    "BackgroundEvent",
    "CollabAgentInteractionBegin",
    "CollabAgentInteractionEnd",
    "CollabAgentSpawnBegin",
    "CollabAgentSpawnEnd",
    "CollabCloseBegin",
    "CollabCloseEnd",
    "CollabWaitingBegin",
    "CollabWaitingEnd",
    "ContextCompacted",
    "ContextCompaction",
    "ConversationPath",
    "DeprecationNotice",
    "DynamicToolCallRequest",
    "DynamicToolCallResponse",
    "ElicitationRequest",
    "EnteredPlanMode",
    "EnteredReviewMode",
    "Error",
    "EventField",
    "EventModel",
    "EventMsg",
    "ExecApprovalRequest",
    "ExecCommandBegin",
    "ExecCommandEnd",
    "ExecCommandOutputDelta",
    "ExitedPlanMode",
    "ExitedReviewMode",
    "GetHistoryEntryResponse",
    "InputAccepted",
    "ItemCompleted",
    "ItemStarted",
    "ItemsInjected",
    "ListCustomPromptsResponse",
    "ListModelsResponse",
    "ListSkillsResponse",
    "McpListToolsResponse",
    "McpStartupComplete",
    "McpStartupUpdate",
    "McpToolCallBegin",
    "McpToolCallEnd",
    "MessagePhase",
    "PatchApplyBegin",
    "PatchApplyEnd",
    "PlanApprovalRequest",
    "PlanDelta",
    "PlanUpdate",
    "QueueChanged",
    "RawResponseItem",
    "Reach",
    "ReasoningContentDelta",
    "ReasoningRawContentDelta",
    "RequestResolved",
    "RequestUserInput",
    "SessionConfigured",
    "ShutdownComplete",
    "SkillsUpdateAvailable",
    "StreamError",
    "SubAgentToolCallActivity",
    "SubAgentToolCallBegin",
    "SubAgentToolCallEnd",
    "SubAgentToolCallTokens",
    "SubagentLifecycle",
    "TaskComplete",
    "TaskStarted",
    "TerminalInteraction",
    "ThreadNameUpdated",
    "ThreadRolledBack",
    "TokenCount",
    "TurnAborted",
    "TurnDiff",
    "UndoCompleted",
    "UndoStarted",
    "UnknownEvent",
    "UserMessage",
    "ViewImageToolCall",
    "WarningEvent",
    "WebSearchBegin",
    "WebSearchEnd",
    "agent_message",
    "task_complete",
    "task_started",
    "text_delta",
    "token_count",
    "user_message",
]
