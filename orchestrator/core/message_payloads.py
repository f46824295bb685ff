"""Payloads of messages between sessions of a tree, as this version writes them: one shape for each kind.

A message that arrives is JSON of another process, perhaps of another version: its reader asks each member.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from orchestrator.core.ids import AgentId
from orchestrator.core.tree import AgentCard, AgentStatus, Evidence
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonObject

Envelope = TypedDict("Envelope", {"from": AgentCard, "at_ms": int})
"""The sender and the time, with which most payloads begin."""


class _Said(TypedDict):
    prompt: str | None


class Said(_Said, total=False):
    """The text of a `message`; None where it only interrupts, or renames."""

    turn: int
    """The receiver's last turn that the sender knows to have ended."""
    label: str
    """The receiver's new label."""
    slot: bool
    """The sender has paid a slot of the tree, in case the message starts the receiver."""
    watchdog: bool
    person: str


class MessagePayload(Envelope, Said):
    """A `message`."""


class StatusPayload(Envelope):
    """A `status`: a child works again."""

    status: AgentStatus


class Completion(TypedDict):
    """The end of a task as its parent is told it; both are None for an interrupt."""

    completion_status: Literal["completed", "failed", "canceled"] | None
    completion: JsonObject | None


class Offered(TypedDict, total=False):
    """The folder of an agent, in a portable tree."""

    workspace: JsonObject


class CompletionPayload(Envelope, Completion, Offered):
    """A `completion`: a child came to rest, in a portable tree with its folder."""

    status: AgentStatus
    turn: int
    born_in: str
    header: str | None
    evidence: Evidence
    tokens: int


class EndedPayload(Envelope):
    """An `ended`: nothing of a child, or below it, is left."""

    evidence: Evidence
    status: AgentStatus | None
    turn: int
    born_in: str


class CancelPayload(Envelope):
    """A `cancel`."""

    reason: str


class InterruptPayload(TypedDict):
    """An `interrupt`."""

    at_ms: int


class GonePayload(TypedDict):
    """A `gone`: another agent has pruned this child."""

    agent_id: AgentId


class _Answer(TypedDict):
    id: SubmissionId
    call_id: CallId
    turn: SubmissionId
    decision: str
    who: str
    sandboxed: bool | None


class AnswerPayload(_Answer, total=False):
    """An `answer` of a person to a request, sent on by the root; questions have a `response`.

    One with a secret has the name of it instead, and who arrives with it puts the response in its place; None
    if that is gone.
    """

    response: JsonObject | None
    secret: str
    shown: JsonObject


ToParent: TypeAlias = StatusPayload | CompletionPayload | EndedPayload
Payload: TypeAlias = (
    MessagePayload | ToParent | CancelPayload | InterruptPayload | GonePayload | AnswerPayload
)
