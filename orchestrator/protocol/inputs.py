"""Input of a person: the items of `user_input` and `user_turn`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from orchestrator.protocol.wire import Maybe, OneOf, Source, Uint, WireModel


class ByteRange(WireModel):
    """A span of a text in bytes of UTF-8, the end excluded."""

    stated_in = Source.JANUARY_2026
    start: Uint
    end: Uint


class TextElement(WireModel):
    """A part of the text that a UI draws in its own way."""

    stated_in = Source.JANUARY_2026
    byte_range: ByteRange
    placeholder: str | None = None


class TextInput(WireModel):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str
    text_elements: Maybe[tuple[TextElement, ...]] = None


class ImageInput(WireModel):
    """An image, usually as a data URL."""

    type: Literal["image"] = "image"
    image_url: str


class LocalImageInput(WireModel):
    """An image file on the agent's machine; it reaches the model as `image`."""

    type: Literal["local_image"] = "local_image"
    path: str


class SkillInput(WireModel):
    """A skill chosen by the person: its name and the path of its SKILL.md."""

    stated_in = Source.JANUARY_2026
    type: Literal["skill"] = "skill"
    name: str
    path: str


class MentionInput(WireModel):
    """An app or connector named by the person, `app://<connector>`."""

    stated_in = Source.JANUARY_2026
    type: Literal["mention"] = "mention"
    name: str
    path: str


class InjectedInput(WireModel):
    """Text for the model."""

    stated_in = Source.DENDRO
    type: Literal["input_text"] = "input_text"
    text: str


class InjectedOutput(WireModel):
    """Text in the model's name."""

    stated_in = Source.DENDRO
    type: Literal["output_text"] = "output_text"
    text: str


class InjectedMessage(WireModel):
    """A message of text that joins a conversation without a turn.

    In the model's name its parts are `output_text`, else `input_text`.
    """

    stated_in = Source.DENDRO
    type: Literal["message"]
    role: Literal["user", "developer", "assistant"]
    content: tuple[Annotated[InjectedInput | InjectedOutput, OneOf()], ...]


InputItem: TypeAlias = TextInput | ImageInput | LocalImageInput | SkillInput | MentionInput
InputItemField = Annotated[InputItem, OneOf()]
