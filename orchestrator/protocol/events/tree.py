"""Events about the agents of a tree: lifecycle, inboxes, helpers, collaboration."""

from __future__ import annotations

from typing import Literal

from orchestrator.protocol.agents import (
    AgentStatus,
    CancelEvidence,
    LifecycleChange,
    SubAgentInvocation,
    SubAgentResult,
    SubagentStatus,
    SubagentSummary,
)
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.wire import EventModel, Maybe, Source, Uint


class SubagentLifecycle(EventModel):
    """An agent was created, changed or removed; `event` says which, `subagent` how it is now.

    `cancel` is Dendro's own: with status `canceled`, whether its processes are known to be
    dead or only presumed so.
    """

    stated_in = Source.NOVEMBER_2025
    type: Literal["subagent_lifecycle"] = "subagent_lifecycle"
    event: LifecycleChange
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    status: Maybe[SubagentStatus] = None
    cancel: Maybe[CancelEvidence] = None
    reasoning_header: Maybe[str] = None
    subagent: Maybe[SubagentSummary] = None


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
    invocation: SubAgentInvocation


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
    invocation: SubAgentInvocation
    duration: Duration
    tokens: Maybe[Uint] = None
    result: SubAgentResult
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
    status: AgentStatus


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
    status: AgentStatus


class CollabWaitingBegin(CollabModel):
    """A thread waits for others."""

    type: Literal["collab_waiting_begin"] = "collab_waiting_begin"
    receiver_thread_ids: tuple[str, ...]


class CollabWaitingEnd(CollabModel):
    """The wait is over; the threads that have ended, by id."""

    type: Literal["collab_waiting_end"] = "collab_waiting_end"
    statuses: dict[str, AgentStatus]


class CollabCloseBegin(CollabModel):
    """A thread is being closed."""

    type: Literal["collab_close_begin"] = "collab_close_begin"
    receiver_thread_id: str


class CollabCloseEnd(CollabModel):
    """A thread was closed; its status before that."""

    type: Literal["collab_close_end"] = "collab_close_end"
    receiver_thread_id: str
    status: AgentStatus
