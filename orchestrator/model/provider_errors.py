"""The mapping of a provider's failure to an error: by HTTP status, by error code, by header.

Pure: the decision table between a provider's answer and `errors`. It does not wait and
does not count; the client does both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, NoReturn, Self

import orjson

from orchestrator.core.frozen import record
from orchestrator.core.settings import HELD_WAIT_S

# ── errors ────────────────────────────────────────────────────────────────────────────────────────
# Errors of a model request, as its caller has to tell them apart.
#
#     ModelError
#     ├── FatalModelError       the same request can never succeed: end the task, tell the user the remedy
#     ├── RetryableModelError   worth another stream, from the caller's budget, after `delay_s` or a backoff
#     └── RateLimited           the provider named a wait too long to hold a worker: park until then
#
# Foreign errors (aiohttp, the SSE parser, JSON) are mapped to these at the edge and never leave the
# package. Messages are one line, name the provider, and never contain a key.


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


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


MAX_ERROR_BODY = 64 * 1024

_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x78\x9c")
"""gzip, zstd, zlib: sent although the request asks for none of them."""
MAX_WAIT_S = 24 * 3600.0
"""A provider that asks for more patience than this is asked again after a day."""

_RETRIED_STATUSES = frozenset({408, 409, 425, 429})

_FATAL_CODES: dict[str, tuple[FatalKind, CodexErrorInfo, str]] = {
    "context_length_exceeded": (
        FatalKind.CONTEXT_LENGTH_EXCEEDED,
        "context_window_exceeded",
        "the conversation no longer fits the model's context window; compact it or start a new session",
    ),
    "exceed_context_size_error": (
        FatalKind.CONTEXT_LENGTH_EXCEEDED,
        "context_window_exceeded",
        "the conversation no longer fits the context that the server was started with; compact it, start a "
        "new session, or raise the server's context size",
    ),
    "insufficient_quota": (
        FatalKind.INSUFFICIENT_QUOTA,
        "usage_limit_exceeded",
        "the account's quota is used up; check its plan and billing",
    ),
    "usage_limit_reached": (
        FatalKind.USAGE_LIMIT_REACHED,
        "usage_limit_exceeded",
        "the account's usage limit is reached; wait for its reset or change the plan",
    ),
    "usage_not_included": (
        FatalKind.USAGE_NOT_INCLUDED,
        "usage_limit_exceeded",
        "the account's plan does not include this use; change the plan or use an API key",
    ),
    "invalid_prompt": (
        FatalKind.INVALID_PROMPT,
        "bad_request",
        "the provider refused the prompt; change the request",
    ),
}

_FATAL_STATUSES: dict[int, tuple[FatalKind, CodexErrorInfo, str]] = {
    400: (FatalKind.BAD_REQUEST, "bad_request", "check model and settings"),
    401: (FatalKind.UNAUTHORIZED, "unauthorized", "check the API key"),
    403: (FatalKind.UNAUTHORIZED, "unauthorized", "check what the API key may use"),
    404: (FatalKind.NOT_FOUND, "bad_request", "check base_url and the model's name"),
}


@record
class ProviderFault:
    """A provider's account of its failure, in an HTTP body or in a `response.failed`."""

    code: str | None
    message: str | None

    @classmethod
    def of(cls, error: Any) -> ProviderFault:
        """Reads the `error` object; anything else is a fault without particulars."""
        if not isinstance(error, dict):
            return cls(None, error if isinstance(error, str) else None)
        # Servers of chat completions repeat the HTTP status as a code, and name the fault by its type.
        codes = (code for code in (error.get("code"), error.get("type")) if code and isinstance(code, str))
        message = error.get("message")
        return cls(next(codes, None), message if isinstance(message, str) else None)

    @classmethod
    def of_body(cls, body: bytes) -> ProviderFault:
        """Reads an HTTP error body, JSON or not."""
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError:
            return cls(None, _shown(body))
        if isinstance(parsed, list):
            parsed = next(iter(parsed), None)
        if not isinstance(parsed, dict):
            return cls(None, None)
        return cls.of(parsed.get("error", parsed.get("detail", parsed)))

    def __str__(self) -> str:
        return self.message or self.code or "no reason given"


def _shown(body: bytes) -> str | None:
    """The beginning of a body that is text; of any other only how long it is."""
    text = body[:300].decode("utf-8", "replace").strip()
    if all(char.isprintable() or char.isspace() for char in text) and text.count("\ufffd") <= 1:
        return text or None
    packed = "compressed" if body.startswith(_PACKED) else "not text"
    return f"a body of {len(body):,} bytes that is {packed}"


def fatal_by_code(provider: str, fault: ProviderFault) -> FatalModelError | None:
    """The error of a code that no repetition can cure, None for every other code."""
    entry = _FATAL_CODES.get(fault.code or "")
    if entry is None:
        return None
    kind, info, remedy = entry
    return FatalModelError(kind, f"model provider {provider}: {remedy} ({fault})", info)


def without_key(provider: str, variable: str, what: str) -> FatalModelError:
    """The error of a request for which the worker has no key; `what` became of it without one."""
    remedy = (
        f"{variable} is not set where the worker runs: set it there, start the worker anew, and try again"
    )
    return FatalModelError(
        FatalKind.UNAUTHORIZED, f"model provider {provider} {what}: {remedy}", "unauthorized"
    )


def fatal_by_status(
    provider: str, status: int, fault: ProviderFault, unset_key: str | None = None
) -> FatalModelError | None:
    """The error of a refusal to end the task with; None when the status is worth a repetition.

    `unset_key` is the variable of a key that was not sent, because it is empty.
    """
    if status == HTTPStatus.UNAUTHORIZED and unset_key:
        return without_key(provider, unset_key, f"answered {status}: {fault}")
    by_code = fatal_by_code(provider, fault)
    if by_code is not None:
        return by_code
    if status >= 500 or status in _RETRIED_STATUSES:
        return None
    kind, info, remedy = _FATAL_STATUSES.get(
        status, (FatalKind.BAD_REQUEST, "bad_request", "check base_url and settings")
    )
    return FatalModelError(kind, f"model provider {provider} answered {status}: {fault}; {remedy}", info)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that the answer asks for (RFC 9110, section 10.2.3), None if it asks for none.

    A date is measured against the answer's own `Date`: the provider's clock, not ours.
    """
    wait_s = _wait_s(headers)
    return None if wait_s is None else min(wait_s, MAX_WAIT_S)


def _wait_s(headers: Mapping[str, str]) -> float | None:
    if (ms := _number(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        until, now = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return None


_SPAN = r"(\d+(?:\.\d+)?)\s*(ms|millisec|[dhms])[a-z]*"
_TRY_AGAIN = re.compile(rf"try again in((?:\s*{_SPAN})+)", re.IGNORECASE)
_UNITS_S = {"ms": 0.001, "millisec": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def wait_named_in(message: str | None) -> float | None:
    """Seconds of a "try again in 1.3s", or "6m0s": rate limits inside a stream have no headers."""
    found = _TRY_AGAIN.search(message or "")
    if found is None:
        return None
    wait_s = sum(
        float(number) * _UNITS_S[unit.lower()] for number, unit in re.findall(_SPAN, found[1], re.IGNORECASE)
    )
    return min(MAX_WAIT_S, wait_s)


def rate_limit_snapshot(headers: Mapping[str, str]) -> dict[str, Any] | None:
    """The RateLimitSnapshot of the answer's headers, None when there are none."""
    windows = {name: _window(headers, name) for name in ("primary", "secondary")}
    return windows if any(windows.values()) else None


def _window(headers: Mapping[str, str], name: str) -> dict[str, Any] | None:
    used = _number(headers.get(f"x-codex-{name}-used-percent"))
    if used is None:
        return None
    window: dict[str, Any] = {"used_percent": used}
    minutes = _number(headers.get(f"x-codex-{name}-window-minutes"))
    resets = _number(headers.get(f"x-codex-{name}-reset-after-seconds"))
    if minutes is not None:
        window["window_minutes"] = int(minutes)
    if resets is not None:
        window["resets_in_seconds"] = int(resets)
    return window


def _number(text: str | None) -> float | None:
    """A finite number at or above zero; a header that is none of that counts as absent."""
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0.0 <= value < 1e12 else None


# ── faults ────────────────────────────────────────────────────────────────────────────────────────
# Errors of a stream that had begun: what a server sent wrongly, and the failures that it reports itself.
#
# Pure; both wire formats raise these.


EXCERPT_BYTES: Final = 80


def broken(provider: str, what: str) -> RetryableModelError:
    """The error of a stream that holds what no stream may: the next attempt may go well."""
    return RetryableModelError(f"{CUT}: model provider {provider} sent {what}")


def incomplete(provider: str, reason: str) -> RetryableModelError:
    """The error of a response that its server ended before the model did."""
    return RetryableModelError(f"{CUT}: model provider {provider} left the response incomplete ({reason})")


def excerpt(data: bytes) -> str:
    """The beginning of what was sent, for an error text."""
    return repr(data[:EXCERPT_BYTES].decode("utf-8", "replace"))


def raise_fault(provider: str, fault: ProviderFault) -> NoReturn:
    """Raises the error that a fault inside a stream amounts to."""
    if fatal := fatal_by_code(provider, fault):
        raise fatal
    wait_s = wait_named_in(fault.message) if fault.code == "rate_limit_exceeded" else None
    message = f"model provider {provider} failed: {fault}"
    if wait_s is not None and wait_s > HELD_WAIT_S:
        raise RateLimited(message, wait_s)
    raise RetryableModelError(message, wait_s, {"response_stream_disconnected": {"http_status_code": None}})
