"""The content of a model request, whichever wire format carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from orchestrator.core.frozen import record
from orchestrator.core.tokens import Served

Item = Mapping[str, Any]
"""A ResponseItem on the wire."""

SCHEMA_NAME: Final = "codex_output_schema"
"""The name under which a request holds the schema of a task's last message."""


@record
class Prompt:
    """The content of a model request."""

    model: str
    instructions: str
    input: Sequence[Item]
    tools: Sequence[Item]
    effort: str | None
    summary: str | None
    verbosity: str | None
    session_id: str
    supports_reasoning: bool
    parallel_tool_calls: bool = False
    previous_response_id: str | None = None
    store: bool = False
    """Whether the provider is to keep the response, so that a later request can name it."""
    output_schema: Mapping[str, Any] | None = None
    together: frozenset[str] = frozenset()
    """The calls of the input that one response made with the call before them, by their ids."""
    encoded: bytes | None = field(default=None, compare=False, repr=False)
    """The JSON array of the input's `sent_form`s where that is known already."""


def session_headers(session_id: str) -> dict[str, str]:
    """The headers of every request; its format, its provider and its key add their own."""
    return {
        "conversation_id": session_id,
        "session_id": session_id,
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
    }


def takes_verbosity(model: str) -> bool:
    """The gpt-5 family does; its codex variants answer 400 to anything but the default."""
    return model.startswith("gpt-5") and "-codex" not in model


# ── events ────────────────────────────────────────────────────────────────────────────────────────
# Events of a model stream, as a closed union: the client's only output.
#
# Nothing here knows HTTP or SSE. Every stream that ends without an exception ends with exactly one
# `Completed`.


@record
class RateLimits:
    """The provider's rate limit headers as a RateLimitSnapshot; comes first, or not at all."""

    snapshot: dict[str, Any]


@record
class Created:
    """The provider took the request."""

    response_id: str


@record
class ItemAdded:
    """An item begins; it may still be empty."""

    item: dict[str, Any]


@record
class TextDelta:
    """A piece of the assistant's message."""

    delta: str


@record
class ReasoningSummaryDelta:
    """A piece of the reasoning summary."""

    delta: str


@record
class ReasoningSectionBreak:
    """A new part of the reasoning summary begins."""


@record
class ReasoningRawDelta:
    """A piece of raw reasoning, from the few models that show it."""

    delta: str


@record
class ItemDone:
    """A whole ResponseItem in the form that rollouts keep; a call may be started now."""

    item: dict[str, Any]
    place: tuple[int | None, str] = field(default=(None, ""), compare=False)
    """Which of the response's items it is: its index and its id there, as far as the server names them."""


@record
class Completed:
    """The response ended well; the last event of a stream.

    `usage` has the TokenUsage wire shape. `end_turn` False asks for another request. `served` is what the
    provider says of the response.
    """

    response_id: str
    usage: Mapping[str, int] | None
    end_turn: bool | None
    served: Served | None = None


ModelEvent = (
    RateLimits
    | Created
    | ItemAdded
    | TextDelta
    | ReasoningSummaryDelta
    | ReasoningSectionBreak
    | ReasoningRawDelta
    | ItemDone
    | Completed
)
