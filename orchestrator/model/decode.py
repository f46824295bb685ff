"""From one SSE event of a Responses stream to one `ModelEvent`, or to the error that it tells.

Pure. Event types that nobody uses are passed over before their JSON is decoded: a real
stream carries about three times as many events as we need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import orjson

from orchestrator.model.errors import RateLimited, RetryableModelError
from orchestrator.model.events import (
    Completed,
    Created,
    ItemAdded,
    ItemDone,
    ModelEvent,
    ReasoningRawDelta,
    ReasoningSectionBreak,
    ReasoningSummaryDelta,
    TextDelta,
)
from orchestrator.model.items import kept_item
from orchestrator.model.refusals import ProviderFault, fatal_by_code, wait_named_in
from orchestrator.model.sse import SseEvent

MAX_HELD_WAIT_S = 5.0
"""Longest wait asked for by a provider that is sat out with the worker held."""

_BREAK = ReasoningSectionBreak()
_CUT = "stream disconnected before completion"


def decode(provider: str, sse: SseEvent) -> ModelEvent | None:
    """The event's meaning; None if it has none for us. Raises what `response.failed` stands for."""
    named = sse.name != "message"
    if named and sse.name not in _READERS and sse.name not in _FAULTS:
        return None
    try:
        data = orjson.loads(sse.data)
        kind = sse.name if named else data["type"]
        if fault := _FAULTS.get(kind):
            fault(provider, data)
        reader = _READERS.get(kind)
        return reader(data) if reader else None
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        if named:
            # Passing over, say, an output_item.done would lose a call that the model made.
            raise RetryableModelError(
                f"{_CUT}: model provider {provider} sent a broken {sse.name}"
            ) from error
        return None


def _completed(data: Any) -> Completed:
    response = data["response"]
    end_turn = response.get("end_turn", data.get("end_turn"))
    return Completed(
        response_id=response.get("id") or "",
        usage=_usage(response.get("usage")),
        end_turn=end_turn if isinstance(end_turn, bool) else None,
    )


def _usage(usage: Any) -> dict[str, int] | None:
    if usage is None:
        return None
    input_tokens, output_tokens = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    return {
        "input_tokens": input_tokens,
        "cached_input_tokens": (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0,
        "output_tokens": output_tokens,
        "reasoning_output_tokens": (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0,
        "total_tokens": usage.get("total_tokens") or input_tokens + output_tokens,
    }


def _raise_failed(provider: str, data: Any) -> NoReturn:
    raise_fault(provider, ProviderFault.of((data.get("response") or {}).get("error")))


def _raise_error(provider: str, data: Any) -> NoReturn:
    # Some servers nest the fault, others write it beside the type, which is then no code.
    nested = data.get("error")
    raise_fault(provider, ProviderFault.of(nested or {key: data.get(key) for key in ("code", "message")}))


def _raise_incomplete(provider: str, data: Any) -> NoReturn:
    details = (data.get("response") or {}).get("incomplete_details") or {}
    reason = details.get("reason") or "no reason given"
    raise RetryableModelError(f"{_CUT}: model provider {provider} left the response incomplete ({reason})")


def raise_fault(provider: str, fault: ProviderFault) -> NoReturn:
    """Raises what a fault told inside a stream amounts to."""
    if fatal := fatal_by_code(provider, fault):
        raise fatal
    wait_s = wait_named_in(fault.message) if fault.code == "rate_limit_exceeded" else None
    message = f"model provider {provider} failed: {fault}"
    if wait_s is not None and wait_s > MAX_HELD_WAIT_S:
        raise RateLimited(message, wait_s)
    raise RetryableModelError(message, wait_s, {"response_stream_disconnected": {"http_status_code": None}})


_READERS: dict[str, Callable[[Any], ModelEvent]] = {
    "response.created": lambda data: Created(data["response"].get("id") or ""),
    "response.output_item.added": lambda data: ItemAdded(data["item"]),
    "response.output_item.done": lambda data: ItemDone(kept_item(data["item"])),
    "response.output_text.delta": lambda data: TextDelta(data["delta"]),
    "response.reasoning_summary_text.delta": lambda data: ReasoningSummaryDelta(data["delta"]),
    "response.reasoning_summary_part.added": lambda data: _BREAK,
    "response.reasoning_text.delta": lambda data: ReasoningRawDelta(data["delta"]),
    "response.completed": _completed,
    "response.done": _completed,
}

_FAULTS: dict[str, Callable[[str, Any], NoReturn]] = {
    "response.failed": _raise_failed,
    "response.incomplete": _raise_incomplete,
    "error": _raise_error,
}
