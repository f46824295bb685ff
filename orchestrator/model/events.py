"""Events of a model stream, as a closed union: the client's only output.

Nothing here knows HTTP or SSE. Every stream that ends without an exception ends with
exactly one `Completed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The provider's rate limit headers as a RateLimitSnapshot; comes first, or not at all."""

    snapshot: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Created:
    """The provider took the request."""

    response_id: str


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """An item begins; it may still be empty."""

    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the assistant's message."""

    delta: str


@dataclass(frozen=True, slots=True)
class ReasoningSummaryDelta:
    """A piece of the reasoning summary."""

    delta: str


@dataclass(frozen=True, slots=True)
class ReasoningSectionBreak:
    """A new part of the reasoning summary begins."""


@dataclass(frozen=True, slots=True)
class ReasoningRawDelta:
    """A piece of raw reasoning, from the few models that show it."""

    delta: str


@dataclass(frozen=True, slots=True)
class ItemDone:
    """A whole ResponseItem in the form that rollouts keep; a call may be started now."""

    item: dict[str, Any]
    place: tuple[int | None, str] = field(default=(None, ""), compare=False)
    """Which of the response's items it is: its index and its id there, as far as the server names them."""


@dataclass(frozen=True, slots=True)
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
