"""Calls of tools that a session's client brings along: they wait for the client's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import orjson

from orchestrator.core.calls.ask import MOST_ANSWER_BYTES, DoesNotAnswer, Settled
from orchestrator.core.frozen import record, replace
from orchestrator.protocol.events import DynamicToolCallRequest, DynamicToolCallResponse
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.items import DynamicToolResponse
from orchestrator.protocol.wire import JsonObject, JsonValue

MOST_ARGUMENT_BYTES: Final = 64 << 10
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
        """The end that a response leads to; raises `DoesNotAnswer` for an output that cannot be read."""
        given = DynamicToolResponse.model_validate(response)
        output = given.output if isinstance(given.output, str) else _texts(given.content_items or ())
        size = len(output.encode("utf-8", "surrogatepass"))
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
            output=end.output,
        )


def _texts(parts: tuple[JsonValue, ...]) -> str:
    found = []
    for number, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != "inputText":
            raise DoesNotAnswer(f"contentItems[{number}]: only parts of the type inputText are taken")
        text = part.get("text")
        if not isinstance(text, str):
            raise DoesNotAnswer(f"contentItems[{number}]: text is missing")
        found.append(text)
    return "\n".join(found)
