"""Agents of a tree as events describe them: summaries, lifecycle, statuses."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import Int, Maybe, Number, Source, Uint, WireModel


class AgentOrigin(StrEnum):
    """How an agent came to be."""

    SPAWN = "spawn"
    FORK = "fork"
    SEND_MESSAGE = "send_message"


class SubagentStatus(StrEnum):
    """Where an agent stands in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    IDLE = "idle"
    FAILED = "failed"
    CANCELED = "canceled"


class LifecycleChange(StrEnum):
    """The change of an agent; `updated` reports a new label and is Dendro's own."""

    CREATED = "created"
    STATUS = "status"
    REASONING_HEADER = "reasoning_header"
    DELETED = "deleted"
    UPDATED = "updated"


class CancelEvidence(StrEnum):
    """How surely a cancelled agent's processes are dead."""

    PROVED = "proved"
    PRESUMED = "presumed"


class SubagentSummary(WireModel):
    """All that the tree knows about one agent."""

    stated_in = Source.NOVEMBER_2025
    agent_id: Uint
    parent_agent_id: Uint | None = None
    session_id: str
    parent_session_id: str | None = None
    origin: AgentOrigin
    status: SubagentStatus
    label: str | None = None
    summary: str | None = None
    reasoning_header: str | None = None
    started_at_ms: Int
    agent_path: Maybe[str] = None
    pending_messages: Uint = 0
    pending_interrupts: Uint = 0


class SubAgentInvocation(WireModel):
    """A call of `spawn_subagent`: what people read, the label, what the agent reads."""

    stated_in = Source.DECEMBER_2025
    description: LargeText
    label: str
    prompt: LargeText
    model: Maybe[str] = None


class SubAgentOk(WireModel):
    """The agent's answer."""

    stated_in = Source.DECEMBER_2025
    Ok: str


class SubAgentErr(WireModel):
    """Why there is no answer."""

    stated_in = Source.DECEMBER_2025
    Err: str


SubAgentResult: TypeAlias = SubAgentOk | SubAgentErr


class AgentState(StrEnum):
    """A thread's status in the collaboration events, where it needs no text."""

    PENDING_INIT = "pending_init"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    NOT_FOUND = "not_found"
    INTERRUPTED = "interrupted"


class AgentCompleted(WireModel):
    """The thread finished, with its last message if it had one."""

    stated_in = Source.JANUARY_2026
    completed: str | None


class AgentErrored(WireModel):
    """The thread failed."""

    stated_in = Source.JANUARY_2026
    errored: str


AgentStatus: TypeAlias = AgentState | AgentCompleted | AgentErrored


class BudgetReport(WireModel):
    """Which budget of the tree is used up to what point."""

    stated_in = Source.DENDRO
    kind: str
    limit: Int | Number
    used: Int | Number
    agent_id: Maybe[Uint] = None
