"""Every event that an agent may report (`EventMsg`).

The classes live by theme in the modules of this package; import them from here. An
event whose tag is not listed is an `UnknownEvent` and is passed on as it came.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, get_args

from orchestrator.protocol.events.asks import (
    ApplyPatchApprovalRequest,
    AskUserQuestionRequest,
    ElicitationRequest,
    EnteredPlanMode,
    ExecApprovalRequest,
    ExitedPlanMode,
    PlanApprovalRequest,
    PlanUpdate,
    Reach,
    RequestResolved,
    RequestUserInput,
)
from orchestrator.protocol.events.session import (
    ConversationPath,
    EnteredReviewMode,
    ExitedReviewMode,
    GetHistoryEntryResponse,
    ListCustomPromptsResponse,
    ListModelsResponse,
    ListSkillsResponse,
    SessionConfigured,
    SkillsUpdateAvailable,
    ThreadNameUpdated,
)
from orchestrator.protocol.events.task import (
    BackgroundEvent,
    ContextCompacted,
    ContextCompaction,
    DeprecationNotice,
    Error,
    InputAccepted,
    ItemsInjected,
    QueueChanged,
    ShutdownComplete,
    StreamError,
    TaskComplete,
    TaskStarted,
    ThreadRolledBack,
    TokenCount,
    TurnAborted,
    TurnDiff,
    UndoCompleted,
    UndoStarted,
    WarningEvent,
    task_complete,
    task_started,
    token_count,
)
from orchestrator.protocol.events.text import (
    AgentMessage,
    AgentMessageContentDelta,
    AgentMessageDelta,
    AgentReasoning,
    AgentReasoningDelta,
    AgentReasoningRawContent,
    AgentReasoningRawContentDelta,
    AgentReasoningSectionBreak,
    ItemCompleted,
    ItemStarted,
    MessagePhase,
    PlanDelta,
    RawResponseItem,
    ReasoningContentDelta,
    ReasoningRawContentDelta,
    UserMessage,
    agent_message,
    text_delta,
    user_message,
)
from orchestrator.protocol.events.tools import (
    DynamicToolCallRequest,
    DynamicToolCallResponse,
    ExecCommandBegin,
    ExecCommandEnd,
    ExecCommandOutputDelta,
    McpListToolsResponse,
    McpStartupComplete,
    McpStartupUpdate,
    McpToolCallBegin,
    McpToolCallEnd,
    PatchApplyBegin,
    PatchApplyEnd,
    TerminalInteraction,
    ViewImageToolCall,
    WebSearchBegin,
    WebSearchEnd,
)
from orchestrator.protocol.events.tree import (
    AgentInbox,
    CollabAgentInteractionBegin,
    CollabAgentInteractionEnd,
    CollabAgentSpawnBegin,
    CollabAgentSpawnEnd,
    CollabCloseBegin,
    CollabCloseEnd,
    CollabWaitingBegin,
    CollabWaitingEnd,
    SubagentLifecycle,
    SubAgentToolCallActivity,
    SubAgentToolCallBegin,
    SubAgentToolCallEnd,
    SubAgentToolCallTokens,
)
from orchestrator.protocol.wire import EventModel, OneOf, Unknown, tags


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
