"""The items of a turn as newer clients draw them (`TurnItem`), of `item_started` and `item_completed`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from orchestrator.protocol.inputs import InputItemField
from orchestrator.protocol.items import WebSearchActionField
from orchestrator.protocol.wire import Maybe, OneOf, Source, Unknown, WireModel


class TurnItemModel(WireModel):
    """The base of every turn item; its tags are in PascalCase."""

    stated_in = Source.JANUARY_2026
    type: str
    id: str


class AgentMessageText(WireModel):
    """A piece of an agent's message."""

    stated_in = Source.JANUARY_2026
    type: Literal["Text"] = "Text"
    text: str


class UnknownMessageContent(Unknown):
    """A piece of a message of a kind not known here, held as it came."""


class UserMessageItem(TurnItemModel):
    """The person's input."""

    type: Literal["UserMessage"] = "UserMessage"
    content: tuple[InputItemField, ...]


class AgentMessageItem(TurnItemModel):
    """The agent's message."""

    type: Literal["AgentMessage"] = "AgentMessage"
    content: tuple[Annotated[AgentMessageText | UnknownMessageContent, OneOf()], ...]


class PlanItem(TurnItemModel):
    """A plan that the agent proposed; authoritative over its deltas."""

    type: Literal["Plan"] = "Plan"
    text: str


class ReasoningItem(TurnItemModel):
    """The agent's reasoning."""

    type: Literal["Reasoning"] = "Reasoning"
    summary_text: tuple[str, ...] = ()
    raw_content: Maybe[tuple[str, ...]] = None


class WebSearchItem(TurnItemModel):
    """A search on the web."""

    type: Literal["WebSearch"] = "WebSearch"
    query: str
    action: Maybe[WebSearchActionField] = None


class ContextCompactionItem(TurnItemModel):
    """The history was compacted here."""

    type: Literal["ContextCompaction"] = "ContextCompaction"


class UnknownTurnItem(Unknown):
    """A turn item of a kind not known here, held as it came."""


TurnItem: TypeAlias = (
    UserMessageItem
    | AgentMessageItem
    | PlanItem
    | ReasoningItem
    | WebSearchItem
    | ContextCompactionItem
    | UnknownTurnItem
)
TurnItemField = Annotated[TurnItem, OneOf()]
