"""Errors of a stream that had begun: what a server sent wrongly, and the failures that it reports itself.

Pure; both wire formats raise these.
"""

from __future__ import annotations

from typing import Final, NoReturn

from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.model.errors import CUT, RateLimited, RetryableModelError
from orchestrator.model.refusals import ProviderFault, fatal_by_code, wait_named_in

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
