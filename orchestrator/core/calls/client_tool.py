"""Calls of tools that a session's client brings along: they wait for the client's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

import orjson

from orchestrator.core.calls.ask import MOST_ANSWER_BYTES, DoesNotAnswer, Settled
from orchestrator.core.frozen import record, replace
from orchestrator.core.images import check_image_url
from orchestrator.protocol.events import DynamicToolCallRequest, DynamicToolCallResponse
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.items import (
    ClientContent,
    ClientImage,
    ClientText,
    ContentItem,
    DynamicToolResponse,
    InputImage,
    InputText,
    ToolOutput,
)
from orchestrator.protocol.wire import JsonObject

MOST_ARGUMENT_BYTES: Final = 64 << 10
MOST_IMAGE_BYTES: Final = 7 << 20
"""Bytes of the URLs of one answer's images: a submission has 8 MiB in all."""
MOST_IMAGES: Final = 16
"""Images of one answer: as many as of one result of an MCP server."""
NO_CLIENT: Final = (
    "not done: the program that brings this tool has not answered in time; it may not be connected. It may "
    "have begun: look before you call it again"
)
ANSWERED: Final = "answered"
FAILED: Final = "failed"
NOTHING_SAID: Final = "the tool failed, and says nothing else"


@record
class ClientToolWork:
    """A call that waits for the answer of the client which brought its tool."""

    kind: ClassVar[Literal["client_tool"]] = "client_tool"
    noun: ClassVar[str] = "a call of a tool that a client brings"
    answered_by: ClassVar[str] = "dynamic_tool_response"
    tool: str
    client: str
    limit_ms: int
    namespace: str | None = None
    given: str = ""
    """The arguments as JSON, until the client is asked: its request has them then."""
    timer: int | None = None
    """The generation of the timer that ends the wait."""

    def asked(self, timer: int) -> ClientToolWork:
        return replace(self, timer=timer, given="")

    def request(self, call_id: CallId, turn: SubmissionId) -> DynamicToolCallRequest:
        return DynamicToolCallRequest(
            call_id=call_id,
            turn_id=turn,
            tool=self.tool,
            arguments=orjson.loads(self.given),
            namespace=self.namespace,
            client=self.client,
        )

    @property
    def unanswered(self) -> Settled:
        """The end of a call that the client has not answered in time."""
        return Settled(FAILED, NO_CLIENT)

    def settled(self, response: JsonObject) -> Settled:
        """The end that a response leads to; raises `DoesNotAnswer` for an output that cannot be used."""
        given = DynamicToolResponse.model_validate(response)
        parts = given.content_items or ()
        output = _output(parts) if given.output is None else given.output
        size = len(_words(output).encode("utf-8", "surrogatepass"))
        if size > MOST_ANSWER_BYTES:
            raise DoesNotAnswer(f"the output has {size:,} bytes; at most {MOST_ANSWER_BYTES:,} are taken")
        if given.success:
            return Settled(ANSWERED, output)
        return Settled(FAILED, output or NOTHING_SAID)

    def ended(self, call_id: CallId, turn: SubmissionId, end: Settled) -> DynamicToolCallResponse:
        """The event that tells of the end."""
        return DynamicToolCallResponse(
            call_id=call_id,
            turn_id=turn,
            tool=self.tool,
            success=end.decision == ANSWERED,
            output=_words(end.output),
            content_items=end.output if isinstance(end.output, tuple) else None,
        )


def _output(parts: Sequence[ClientContent]) -> ToolOutput:
    """The texts as one, or, with an image among them, all parts in their order; raises `DoesNotAnswer`."""
    images = [part.image_url for part in parts if isinstance(part, ClientImage)]
    if len(images) > MOST_IMAGES:
        raise DoesNotAnswer(f"contentItems: at most {MOST_IMAGES} images are taken, these are {len(images)}")
    if (size := sum(map(len, images))) > MOST_IMAGE_BYTES:
        raise DoesNotAnswer(
            f"contentItems: the images have {size:,} bytes as URLs; at most {MOST_IMAGE_BYTES:,} are taken"
        )
    if images:
        return tuple(_shown(place, part) for place, part in enumerate(parts))
    return "\n".join(part.text for part in parts if isinstance(part, ClientText))


def _shown(place: int, part: ClientContent) -> ContentItem:
    if isinstance(part, ClientText):
        return InputText(text=part.text)
    try:
        check_image_url(part.image_url)
    except ValueError as error:
        raise DoesNotAnswer(f"contentItems[{place}].imageUrl: {error}") from None
    return InputImage(image_url=part.image_url)


def _words(output: ToolOutput) -> str:
    """The texts of an output."""
    if isinstance(output, tuple):
        return "\n".join(str(part.text) for part in output if isinstance(part, InputText))
    return str(output)
