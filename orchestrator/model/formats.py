"""The wire formats of requests and responses: what the client leaves to each of them.

    ResponsesFormat   POST {base_url}/responses          `wire_api = "responses"`
    ChatFormat        POST {base_url}/chat/completions   `wire_api = "chat"`

A format knows neither connections nor waits; the client knows neither fields nor events of a format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, assert_never

from orchestrator.model.chat import ChatFormat
from orchestrator.model.events import ModelEvent
from orchestrator.model.request import Prompt
from orchestrator.model.responses import ResponsesFormat
from orchestrator.model.sse import SseEvent
from orchestrator.tables import ProviderSettings


class ResponseReader(Protocol):
    """The reading of one response, event by event."""

    @property
    def finished(self) -> bool:
        """Whether the server has said that the response is over; only figures may follow."""
        ...

    def read(self, sse: SseEvent) -> Sequence[ModelEvent]:
        """The meaning of an event, nothing behind `Completed`; raises the `ModelError` that it reports."""
        ...

    def end(self) -> Sequence[ModelEvent]:
        """The last events of a stream that ends here; empty if it ended too early."""
        ...


class WireFormat(Protocol):
    """The mapping of a prompt to a request, and of a stream to events."""

    @property
    def path(self) -> str:
        """The end of the URL, behind the provider's `base_url`."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The format's own headers."""
        ...

    def body(self, prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
        """The JSON object to post."""
        ...

    def reader(self, prompt: Prompt, provider: ProviderSettings) -> ResponseReader:
        """A reader for the response to this prompt."""
        ...


def format_of(provider: ProviderSettings) -> WireFormat:
    """The wire format that the provider's table names."""
    match provider.wire_api:
        case "responses":
            return ResponsesFormat()
        case "chat":
            return ChatFormat()
        case _:
            assert_never(provider.wire_api)
