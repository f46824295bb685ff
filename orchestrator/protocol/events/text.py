"""Events that carry text: messages, reasoning, and their deltas."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from orchestrator.protocol.inputs import TextElement
from orchestrator.protocol.items import ResponseItemField
from orchestrator.protocol.scalars import LargeText, UserMessageKind
from orchestrator.protocol.turn_items import TurnItemField
from orchestrator.protocol.wire import EventModel, JsonObject, Maybe, Source, Uint, tag_of

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
    message: LargeText
    kind: Maybe[UserMessageKind] = None
    images: Maybe[tuple[LargeText, ...]] = None
    local_images: Maybe[tuple[str, ...]] = None
    text_elements: Maybe[tuple[TextElement, ...]] = None
    client_id: Maybe[str] = None
    """Dendro's own: the `client_user_message_id` of the op."""


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


def user_message(message: str, client_id: str | None) -> JsonObject:
    """The payload of the `UserMessage` of a text alone, unchecked: a turn begins with one, as a rule."""
    told: JsonObject = {"type": _USER_MESSAGE, "message": message, "kind": _PLAIN}
    return told if client_id is None else {**told, "client_id": client_id}


_AGENT_MESSAGE, _USER_MESSAGE = tag_of(AgentMessage), tag_of(UserMessage)
_PLAIN = UserMessageKind.PLAIN.value


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
