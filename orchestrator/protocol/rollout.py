"""A session's durable log as lines: the items (`RolloutItem`) and the line around them.

A line is flat, `{"timestamp", "type", "payload"}`, as Codex records it. Dendro adds
fields of its own beside these, which foreign readers ignore, and one own type, `dendro`,
for facts that the protocol has no event for. What such a fact means is `core`'s to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.protocol.events import EventMsg
from orchestrator.protocol.items import ResponseItem, ResponseItemField
from orchestrator.protocol.policy import AskForApproval, SandboxPolicyField
from orchestrator.protocol.scalars import CollaborationMode, Personality, ReasoningEffort, ReasoningSummary
from orchestrator.protocol.wire import JsonValue, Maybe, Source, WireModel


class GitInfo(WireModel):
    """The commit a session started from."""

    commit_hash: Maybe[str] = None
    branch: Maybe[str] = None
    repository_url: Maybe[str] = None


class BaseInstructions(WireModel):
    """The fixed prompt that a session was made with."""

    stated_in = Source.JANUARY_2026
    text: str


class SessionMeta(WireModel):
    """The session's origin: its program, its folder and its provider; a file's first line counts."""

    id: str
    forked_from_id: Maybe[str] = None
    timestamp: str
    cwd: str
    originator: str
    cli_version: str
    instructions: str | None = None
    source: Maybe[JsonValue] = None
    model_provider: Maybe[str] = None
    base_instructions: Maybe[BaseInstructions] = None
    dynamic_tools: Maybe[tuple[JsonValue, ...]] = None
    git: Maybe[GitInfo] = None


class TurnContext(WireModel):
    """The settings in force for a model request."""

    cwd: str
    approval_policy: AskForApproval
    sandbox_policy: SandboxPolicyField
    model: str
    personality: Maybe[Personality] = None
    collaboration_mode: Maybe[CollaborationMode] = None
    effort: Maybe[ReasoningEffort] = None
    summary: ReasoningSummary
    user_instructions: Maybe[str] = None
    developer_instructions: Maybe[str] = None
    final_output_json_schema: Maybe[JsonValue] = None
    truncation_policy: Maybe[JsonValue] = None


class Compacted(WireModel):
    """The history was summarised; `replacement_history` is what stands in its place."""

    message: str
    replacement_history: Maybe[tuple[ResponseItemField, ...]] = None


@dataclass(frozen=True, slots=True)
class DendroFact:
    """A fact of Dendro's own: `{"kind": …}` with the fields of that kind beside it."""

    kind: str
    fields: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnknownRolloutItem:
    """A line of a type, or with a payload, that this version cannot read; held as it came."""

    type: str
    payload: JsonValue


RolloutItem: TypeAlias = (
    SessionMeta | ResponseItem | Compacted | TurnContext | EventMsg | DendroFact | UnknownRolloutItem
)


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A line of the log. `type` on the wire follows from the item's class.

    `id` is the `Event.id` the item belongs to, `seq` its place, `epoch` the claim that
    wrote it, `agent_id` its agent in the tree; `salt` and `chain` tie it to the line before.
    """

    timestamp: str
    item: RolloutItem
    id: str | None = None
    seq: int | None = None
    epoch: int | None = None
    agent_id: int | None = None
    salt: str | None = None
    chain: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
