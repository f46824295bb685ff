"""Agents as tools and events describe them: the one place that knows these shapes.

Field names are those of the November 2025 protocol (`SubagentSummary`, the results of the
`subagent_*` tools). Depths of inboxes are not here: only a commit knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

from orchestrator.core.calls import Call, HelperWork, Phase, VariantsWork
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.settings import SessionFacts
from orchestrator.core.state import State
from orchestrator.core.tree import AgentCard, AgentRecord, AgentStatus, Child, Evidence, Mail, TreeView
from orchestrator.protocol.agents import (
    AgentOrigin,
    SubagentStatus,
    SubagentSummary,
)
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

SUMMARY_CHARS = 80
LABEL_CHARS = 64
SENT_CHARS = 200
"""Characters of a message that the sender's log keeps, as one line for its readers."""
MESSAGE_BYTES = 32 << 10
"""The longest message to an agent, in bytes."""
RESULT_BYTES = 60_000
"""The longest result that a parent is told, in bytes: a longer text would be stored beside its entry, where
the await that returns the result cannot read it."""


class AgentResult(TypedDict):
    """The AGENT of a tool's result."""

    session_id: SessionId
    agent_id: AgentId
    parent_agent_id: AgentId
    origin: str
    status: str
    label: str | None
    summary: str | None
    parent_session_id: SessionId
    started_at_ms: int
    initial_message_count: int


class MessageResult(TypedDict):
    """The MSG of an await's result: one message."""

    sender_agent_id: AgentId
    recipient_agent_id: int
    interrupt: bool
    prompt: JsonValue
    timestamp_ms: int


TOLD_BY_ITEMS = frozenset(
    {
        "subagent_spawn",
        "subagent_fork",
        "subagent_send_message",
        "subagent_list",
        "subagent_await",
        "subagent_logs",
        "subagent_watchdog",
        "subagent_cancel",
        "subagent_prune",
    }
)
"""Tools whose calls clients are told of by the items themselves: a log has no event of them."""


class _WithFolder(TypedDict, total=False):
    workspace: JsonValue
    """The change of its folder, in a portable tree: `subagent_merge` brings it into the caller's."""


class AwaitedAgent(_WithFolder):
    """The AWAIT of a result: the messages of one sender, with one completion at most."""

    session_id: object
    completion_status: JsonValue
    lifecycle_status: object
    started_at_ms: object
    messages: Sequence[MessageResult]
    completion: JsonValue
    metadata: Mapping[str, object]
    """The AGENT without its start, and with the heading of its reasoning."""


def record_of(facts: SessionFacts, tree: TreeView) -> AgentRecord:
    """The agent as the registry keeps it: a SubagentSummary without depths, and what its fold needs."""
    return {
        "agent_id": facts.agent_id,
        "parent_agent_id": facts.ancestors[-1] if facts.ancestors else None,
        "session_id": facts.session_id,
        "parent_session_id": facts.parent_session,
        "origin": facts.origin or "",
        "status": tree.status or "",
        "label": tree.label,
        "summary": tree.summary,
        "reasoning_header": tree.header,
        "started_at_ms": tree.started_ms,
        "agent_path": facts.agent_path,
        "turn": tree.turns,
    }


def summary_of(record: JsonMapping, pending: Sequence[int] = (0, 0)) -> JsonObject:
    """The SubagentSummary of a registry's record."""
    shown = {name: value for name, value in record.items() if name != "turn"}
    return {**shown, "pending_messages": pending[0], "pending_interrupts": pending[1]}


def event_summary(record: JsonMapping) -> SubagentSummary:
    """The SubagentSummary of a record as events carry it; the commit fills in the depths of the inbox."""
    return SubagentSummary.model_validate(summary_of(record))


def card_of(state: State) -> AgentCard:
    """The session's card, by which a message names its sender."""
    facts, tree = state.facts, state.tree
    return {
        "agent_id": facts.agent_id,
        "parent_agent_id": facts.ancestors[-1] if facts.ancestors else None,
        "session_id": facts.session_id,
        "parent_session_id": facts.parent_session,
        "origin": facts.origin or "",
        "label": tree.label,
        "summary": tree.summary,
        "reasoning_header": tree.header,
        "started_at_ms": tree.started_ms,
        "agent_path": facts.agent_path,
    }


def envelope(state: State, at_ms: int) -> Envelope:
    """The beginning of a message's payload: its sender and its time."""
    return {"from": card_of(state), "at_ms": at_ms}


def agent_of(facts: SessionFacts, child: Child) -> AgentResult:
    """The AGENT of a tool's result: a child of the session with these facts."""
    return {
        "session_id": child.session,
        "agent_id": child.agent_id,
        "parent_agent_id": facts.agent_id,
        "origin": child.origin,
        "status": child.status,
        "label": child.label,
        "summary": child.summary,
        "parent_session_id": facts.session_id,
        "started_at_ms": child.started_ms,
        "initial_message_count": child.initial_messages,
    }


def child_summary(facts: SessionFacts, child: Child) -> SubagentSummary:
    """The SubagentSummary of a child as its parent knows it."""
    return SubagentSummary(
        agent_id=child.agent_id,
        parent_agent_id=facts.agent_id,
        session_id=child.session,
        parent_session_id=facts.session_id,
        origin=AgentOrigin(child.origin),
        status=SubagentStatus(child.status),
        label=child.label,
        summary=child.summary,
        reasoning_header=child.header,
        started_at_ms=child.started_ms,
        agent_path=f"{facts.agent_path}/{child.agent_id}",
    )


def message_of(mail: Mail, recipient: int) -> MessageResult:
    return {
        "sender_agent_id": mail.agent_id,
        "recipient_agent_id": recipient,
        "interrupt": mail.interrupt,
        "prompt": mail.content.get("prompt"),
        "timestamp_ms": mail.at_ms,
    }


def awaited(state: State, mails: Sequence[Mail]) -> AwaitedAgent:
    first = mails[0]
    child = state.tree.children.get(first.agent_id)
    done = next((mail for mail in mails if mail.kind == "completion"), None)
    metadata: dict[str, object]
    metadata = {**(agent_of(state.facts, child) if child is not None else _stranger(first))}
    metadata["reasoning_header"] = child.header if child is not None else None
    if metadata["status"] == "queued":
        # No message says that a child has begun; but who writes has.
        metadata["status"] = "running"
    status = done.content["status"] if done is not None else metadata["status"]
    result: AwaitedAgent = {
        "session_id": metadata["session_id"],
        "completion_status": done.content["completion_status"] if done is not None else None,
        "lifecycle_status": status,
        "started_at_ms": metadata.pop("started_at_ms"),
        "messages": [message_of(mail, state.facts.agent_id) for mail in mails if mail.kind == "message"],
        "completion": done.content["completion"] if done is not None else None,
        "metadata": metadata,
    }
    if done is not None and (folder := done.content.get("workspace")):
        result["workspace"] = {
            "snapshot": folder["snapshot"],
            "base": folder.get("base"),
            **(folder.get("change") or {"files": 0, "insertions": 0, "deletions": 0}),
        }
    return result


def _stranger(mail: Mail) -> Mapping[str, object]:
    """The AGENT of a sender that is no child: as its message's card says, without a status."""
    card = mail.sender
    names = ("session_id", "agent_id", "parent_agent_id", "origin", "label", "summary", "parent_session_id")
    known = {name: card.get(name) for name in names}
    return {**known, "status": None, "started_at_ms": card.get("started_at_ms")}


def told_result(text: str | None) -> str | None:
    """The result of an agent, cut to what its parent is told; the agent's log has the rest.

    What was cut is not cut again.
    """
    data = (text or "").encode("utf-8", "surrogatepass")
    if len(data) <= RESULT_BYTES:
        return text
    note = f"\n[the first of {len(data):,} bytes; subagent_logs tells where it ended]"
    return data[: RESULT_BYTES - len(note)].decode("utf-8", "ignore") + note


# ── helpers ───────────────────────────────────────────────────────────────────────────────────────

CANCELLED = "cancelled"


def helper_calls(calls: Iterable[Call]) -> list[tuple[Call, HelperWork]]:
    """Filters the calls that wait for a helper, each with its wait."""
    waiting = ((call, call.work) for call in calls if call.phase is Phase.WAITING)
    return [(call, work) for call, work in waiting if isinstance(work, HelperWork)]


def awaited_helpers(calls: Iterable[Call]) -> list[tuple[CallId, HelperWork]]:
    """The helpers that calls wait for, each under the id by which events tell of it."""
    in_order = sorted(calls, key=lambda call: call.kind == VariantsWork.kind)
    return [helper for call in in_order for helper in call.helpers]


def one_line(text: str | None, most: int) -> str | None:
    """Whitespace collapsed and cut to `most` characters; blank is None."""
    folded = " ".join((text or "").split())
    if not folded:
        return None
    return folded if len(folded) <= most else folded[: most - 1] + "…"


# ── message payloads ──────────────────────────────────────────────────────────────────────────────
# Payloads of messages between sessions of a tree, as this version writes them: one shape for each kind.
#
# A message that arrives is JSON of another process, perhaps of another version: its reader asks each
# member.


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
    by: JsonObject
    """The person as the root's door knew them."""


class MessagePayload(Envelope, Said):
    """A `message`."""


class StatusPayload(Envelope):
    """A `status`: a child works again."""

    status: AgentStatus


class RestPayload(StatusPayload):
    """A `status` of a child that rests though its parent has asked it to work."""

    turn: int
    born_in: str


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


class _Cancel(Envelope):
    reason: str


class CancelPayload(_Cancel, total=False):
    """A `cancel`."""

    by: JsonObject
    """The person who asked for it, as the root's door knew them."""


class _Interrupt(TypedDict):
    at_ms: int


class InterruptPayload(_Interrupt, total=False):
    """An `interrupt`."""

    by: JsonObject
    """The person who asked for it, as the root's door knew them."""


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
    server: str
    """The MCP server whose question it is for."""
    shown: JsonObject
    signature: JsonObject
    by: JsonObject
    """The sender, as the root's door knew them."""


ToParent: TypeAlias = StatusPayload | RestPayload | CompletionPayload | EndedPayload
Payload: TypeAlias = (
    MessagePayload | ToParent | CancelPayload | InterruptPayload | GonePayload | AnswerPayload
)
