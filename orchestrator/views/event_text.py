"""Events in words, the same wherever a person reads them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import assert_never

import orjson

from orchestrator.core.entries import EventKind, event_kind, read_event
from orchestrator.core.sender import MACHINE
from orchestrator.protocol import events as e
from orchestrator.protocol.agents import LifecycleChange, SubagentStatus
from orchestrator.protocol.items import InputImage
from orchestrator.protocol.review import (
    BaseBranch,
    Commit,
    CustomReview,
    ReviewFinding,
    ReviewOutputEvent,
    UncommittedChanges,
)
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.turn_items import PlanItem
from orchestrator.protocol.wire import JsonMapping

SILENT = frozenset[EventKind](
    {
        e.SessionConfigured,
        e.TaskStarted,
        e.TaskComplete,
        e.TokenCount,
        e.TurnDiff,
        e.ContextCompaction,
        e.RawResponseItem,
        e.AgentReasoningSectionBreak,
        e.McpStartupComplete,
        e.SubAgentToolCallActivity,
        e.SubAgentToolCallTokens,
    }
)
"""Events that a person is shown nothing of."""


GIVEN = "given_by"
"""The views' own event at the entry of a task, or of words that joined it: who gave them, as the door knew
them."""


def given_line(message: JsonMapping) -> str:
    """The sender of something, in one line."""
    token = message["token"]
    proof = "this machine's user" if token == MACHINE else f"token {token}, {message['scope']}"
    named = f", by a client that calls itself {message['stated_name']}" if message.get("stated_name") else ""
    return f"from {message['who']} ({proof}) through {message['via']}{named}"


def whole_or_note(text: LargeText) -> str:
    """The text; a note where only its reference is at hand."""
    return text if isinstance(text, str) else "[a long text]"


def lifecycle_text(told: e.SubagentLifecycle) -> str:
    """The text of a lifecycle event for a person; empty for changes in between."""
    known = told.subagent
    number = told.agent_id if told.agent_id is not None or known is None else known.agent_id
    named = f"agent {number}" + (f" ({known.label})" if known is not None and known.label else "")
    match told.event, told.status:
        case LifecycleChange.CREATED, _:
            what = f": {known.summary}" if known is not None and known.summary else ""
            return f"+ {named} was made{what}"
        case LifecycleChange.DELETED, _:
            return f"- {named} was taken off the list"
        case LifecycleChange.STATUS, SubagentStatus.CANCELED:
            return f"✗ {named} was cancelled: {told.cancel or 'proved'}"
        case LifecycleChange.STATUS, SubagentStatus.FAILED:
            return f"✗ {named} failed"
        case LifecycleChange.STATUS, SubagentStatus.READY:
            return f"✓ {named} has come to rest"
        case _:
            return ""


def visible(message: JsonMapping) -> bool:
    """Whether a person who follows a session is shown anything of an event."""
    kind = event_kind(message)
    if message.get("type") == GIVEN:
        return False
    if kind not in _LOOKED_INTO:
        return kind not in SILENT
    match read_event(message):
        case e.SubagentLifecycle() as told:
            return bool(lifecycle_text(told))
        case e.ItemCompleted(item=PlanItem()):
            return True
        case _:
            return False


_LOOKED_INTO = frozenset[EventKind]({e.SubagentLifecycle, e.ItemStarted, e.ItemCompleted})


def resolved_text(told: e.RequestResolved, agent: str) -> str:
    """The text of a resolved request for a person."""
    asker = f" of {agent}" if told.agent_id else ""
    about = f"request {told.call_id}{asker}"
    if not told.who:
        return f"{about} is not asked any more: its turn has ended"
    from orchestrator.core.calls.approval_policy import amended

    if prefix := amended(told.decision):
        return f"{about} and all that begins with `{shlex.join(prefix)}` was approved by {told.who}"
    word = _DECIDED.get(told.decision, told.decision.replace("_", " "))
    return f"{about} was {word} by {told.who}"


_DECIDED: Mapping[str, str] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}
"""Decisions on questions of MCP servers."""


def mcp_call_text(told: e.McpToolCallBegin) -> str:
    """A call of an MCP server's tool, with its arguments."""
    asked = told.invocation
    arguments = orjson.dumps(asked.arguments).decode() if asked.arguments else ""
    return f"{asked.server}: {asked.tool} {arguments}".rstrip()


def mcp_result_text(told: e.McpToolCallEnd) -> tuple[bool, str]:
    """Whether a call of an MCP server's tool went well, and what came of it."""
    if isinstance(told.result, str):
        return False, told.result
    blocks = [block for block in told.result.content if isinstance(block, dict)]
    texts = [
        block["text"] if isinstance(block.get("text"), str) else f"[{block.get('type')}]" for block in blocks
    ]
    return not told.result.is_error, "\n".join(texts)


def client_call_text(told: e.DynamicToolCallRequest) -> str:
    """A call of a tool that a client brings, with its arguments."""
    space = f"{told.namespace}: " if told.namespace else ""
    arguments = orjson.dumps(told.arguments).decode() if told.arguments else ""
    return f"{space}{told.tool} {arguments}".rstrip()


def client_result_text(told: e.DynamicToolCallResponse) -> str:
    """The outcome of such a call: its texts, and a note for its images."""
    images = sum(isinstance(part, InputImage) for part in told.content_items or ())
    noted = () if not images else ("[1 image]" if images == 1 else f"[{images} images]",)
    return "\n".join(filter(None, (whole_or_note(told.output), *noted)))


def review_asked_text(told: e.EnteredReviewMode) -> str:
    """The subject of a code review: the person's hint, or what the reviewer is asked for."""
    match told.target:
        case UncommittedChanges():
            what = "the uncommitted changes"
        case BaseBranch(branch=branch):
            what = f"the changes against {branch}"
        case Commit(sha=sha, title=title):
            what = f"commit {sha}" + (f" ({title})" if title else "")
        case CustomReview(instructions=instructions):
            what = instructions
        case None:
            what = told.prompt or ""
        case other:
            assert_never(other)
    hint = told.user_facing_hint
    return f"{what} ({hint})" if hint and what else str(hint or what)


def review_verdict_text(output: ReviewOutputEvent) -> str:
    """The outcome of a code review in one line."""
    number = len(output.findings)
    found = "no findings" if not number else "1 finding" if number == 1 else f"{number} findings"
    verdict = output.overall_correctness
    return f"{verdict}, {found} (confidence {output.overall_confidence_score:.2f})" if verdict else found


def finding_text(finding: ReviewFinding) -> str:
    """A finding's priority, title and place in one line."""
    place, lines = finding.code_location, finding.code_location.line_range
    where = f"{place.absolute_file_path}:{lines.start}-{lines.end}"
    return f"[P{finding.priority}] {finding.title} — {where}"
