"""Why something failed, for programs: the `codex_error_info` beside a message."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field

from orchestrator.protocol.wire import JsonValue, Source, Uint, Unset, WireModel


class CodexErrorKind(StrEnum):
    """Faults that need no detail."""

    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    USAGE_LIMIT_EXCEEDED = "usage_limit_exceeded"
    INTERNAL_SERVER_ERROR = "internal_server_error"
    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad_request"
    SANDBOX_ERROR = "sandbox_error"
    THREAD_ROLLBACK_FAILED = "thread_rollback_failed"
    OTHER = "other"


class HttpFaultKind(StrEnum):
    """Faults on the way to the model."""

    HTTP_CONNECTION_FAILED = "http_connection_failed"
    RESPONSE_STREAM_CONNECTION_FAILED = "response_stream_connection_failed"
    RESPONSE_STREAM_DISCONNECTED = "response_stream_disconnected"
    RESPONSE_TOO_MANY_FAILED_ATTEMPTS = "response_too_many_failed_attempts"


class HttpFault(WireModel):
    """The status the server gave, if one came."""

    stated_in = Source.JANUARY_2026
    http_status_code: Uint | None = None


class ModelCap(WireModel):
    """A model's own cap was reached."""

    stated_in = Source.JANUARY_2026
    model: str
    reset_after_seconds: Uint | None = None


class ModelCapFault(WireModel):
    """The fault that a model's cap was reached."""

    stated_in = Source.JANUARY_2026
    model_cap: ModelCap


# Read left to right, raw JSON last: a newer version's fault must not make its error unreadable.
CodexErrorInfo: TypeAlias = Annotated[
    CodexErrorKind | dict[HttpFaultKind, HttpFault] | ModelCapFault | JsonValue,
    Field(union_mode="left_to_right"),
]


def fault_kind(info: CodexErrorInfo | Unset) -> str | None:
    """The name of a fault, whatever details it has; None if it names none."""
    match info:
        case str():
            return str(info)
        case ModelCapFault():
            return "model_cap"
        case Mapping():
            name = next(iter(info), None)
            return None if name is None else str(name)
        case _:
            return None
