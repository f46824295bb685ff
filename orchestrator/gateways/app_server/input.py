"""Words and images of a person, as clients of the app-server protocol write it."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from orchestrator.gateways.app_server.errors import bad_params
from orchestrator.gateways.app_server.method import Params
from orchestrator.protocol.inputs import (
    ByteRange,
    ImageInput,
    InputItem,
    LocalImageInput,
    MentionInput,
    SkillInput,
    TextElement,
    TextInput,
)

EMPTY: Final = "input must not be empty: send a text, an image, a skill or a mention"


class RangeParams(Params):
    """A span of a text in bytes of UTF-8, the end excluded."""

    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=0)]


class ElementParams(Params):
    """A part of a text that a client draws in its own way."""

    byte_range: RangeParams
    placeholder: str | None = None


class Text(Params):
    """Plain text."""

    type: Literal["text"]
    text: str
    text_elements: Annotated[tuple[ElementParams, ...], Field(alias="text_elements")] = ()


class Image(Params):
    """An image by its URL, usually one of data."""

    type: Literal["image"]
    url: str


class LocalImage(Params):
    """An image file where the session runs."""

    type: Literal["localImage"]
    path: str


class Named(Params):
    """A skill or a connector that the person named."""

    type: Literal["skill", "mention"]
    name: str
    path: str


class Sound(Params):
    """Speech, which no model here is given."""

    type: Literal["audio", "localAudio"]


Said: TypeAlias = Annotated[Text | Image | LocalImage | Named | Sound, Field(discriminator="type")]


def input_items(said: tuple[Said, ...]) -> tuple[InputItem, ...]:
    """The input of an operation; raises `RpcError` for what is not taken."""
    if not said:
        # A turn would end before it begins, and the client wait for its end.
        raise bad_params(EMPTY)
    return tuple(map(_item, said))


def _item(said: Said) -> InputItem:
    match said:
        case Text():
            elements = tuple(map(_element, said.text_elements))
            return TextInput(text=said.text, text_elements=elements or None)
        case Image():
            return ImageInput(image_url=said.url)
        case LocalImage():
            return LocalImageInput(path=said.path)
        case Named(type="skill"):
            return SkillInput(name=said.name, path=said.path)
        case Named():
            return MentionInput(name=said.name, path=said.path)
        case Sound():
            raise bad_params(f"input: {said.type} is not taken: send text or images")


def _element(element: ElementParams) -> TextElement:
    place = ByteRange(start=element.byte_range.start, end=element.byte_range.end)
    return TextElement(byte_range=place, placeholder=element.placeholder)
