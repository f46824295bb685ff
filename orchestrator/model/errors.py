"""Errors of a model request, as its caller has to tell them apart.

    ModelError
    ├── FatalModelError       the same request can never succeed: end the task, tell the user the remedy
    ├── RetryableModelError   worth another stream, from the caller's budget, after `delay_s` or a backoff
    └── RateLimited           the provider named a wait too long to hold a worker: park until then

Foreign errors (aiohttp, the SSE parser, JSON) are mapped to these at the edge and never leave the
package. Messages are one line, name the provider, and never contain a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Self

CodexErrorInfo = str | Mapping[str, Mapping[str, int | None]]
"""`CodexErrorInfo` of protocol v1 (January 2026): a word, or an object with `http_status_code`."""

MAX_MESSAGE_CHARS = 600
CUT: Final = "stream disconnected before completion"
"""The words that errors of a broken stream begin with (Codex's)."""


class FatalKind(StrEnum):
    """The reason why a request can never succeed as it is."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    USAGE_LIMIT_REACHED = "usage_limit_reached"
    USAGE_NOT_INCLUDED = "usage_not_included"
    INVALID_PROMPT = "invalid_prompt"
    RESPONSE_TOO_LARGE = "response_too_large"


class ModelError(Exception):
    """A model request failed; `message` is what a user may read."""

    served = True
    """Whether the provider may have worked on the request, and may bill it; False if known to be refused."""
    usage: Mapping[str, int] | None = None
    """TokenUsage of the response that failed, if its server reported it."""

    def __init__(self, message: str) -> None:
        self.message = one_line(message)
        super().__init__(self.message)

    def unserved(self) -> Self:
        """The same, of a request that never came as far as the model."""
        self.served = False
        return self

    def censor(self, redact: Callable[[str], str]) -> None:
        """Rewrites the message in place; `redact` takes secrets out of a text."""
        self.message = redact(self.message)
        self.args = (self.message,)


class FatalModelError(ModelError):
    """The provider refused for a reason that a repetition cannot change."""

    def __init__(self, kind: FatalKind, message: str, codex_error_info: CodexErrorInfo) -> None:
        super().__init__(message)
        self.kind = kind
        self.codex_error_info = codex_error_info


class RetryableModelError(ModelError):
    """The stream broke, or the HTTP retries of the whole request are used up.

    `delay_s` is the wait that the provider asked for; None leaves it to the caller's backoff.
    """

    def __init__(
        self, message: str, delay_s: float | None = None, codex_error_info: CodexErrorInfo = "other"
    ) -> None:
        super().__init__(message)
        self.delay_s = delay_s
        self.codex_error_info = codex_error_info


class RateLimited(ModelError):
    """The provider asked for a wait past `core.settings.HELD_WAIT_S`: to be waited out by a durable timer."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def one_line(text: str) -> str:
    """`text` with every run of whitespace folded, cut to what a status line can carry."""
    folded = " ".join(text.split())
    return folded if len(folded) <= MAX_MESSAGE_CHARS else folded[: MAX_MESSAGE_CHARS - 1] + "…"
