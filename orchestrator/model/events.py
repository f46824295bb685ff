"""Events of a model stream, as a closed union: the client's only output.

Nothing here knows HTTP or SSE. Every stream that ends without an exception ends with
exactly one `Completed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from orchestrator.core.frozen import record


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

    `usage` has the TokenUsage wire shape. `end_turn` False asks for another request.
    """

    response_id: str
    usage: Mapping[str, int] | None
    end_turn: bool | None


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
