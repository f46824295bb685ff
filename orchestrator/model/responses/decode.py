"""Decodes an SSE event of a Responses stream to a `ModelEvent`, or to the error that it reports.

Pure. Event types that nobody uses are passed over before their JSON is decoded: a real
stream carries about three times as many events as we need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import orjson

from orchestrator.model.errors import ModelError
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
from orchestrator.model.faults import broken, excerpt, incomplete, raise_fault
from orchestrator.model.refusals import ProviderFault
from orchestrator.model.responses.items import kept_item
from orchestrator.model.shapes import BrokenItem, check_item, name_of
from orchestrator.model.sse import SseEvent
from orchestrator.model.usage import UsageNames

_SENTINEL = b"[DONE]"
"""The end of a stream by servers of older interfaces."""
_BREAK = ReasoningSectionBreak()
Fault = Callable[[str, Any], NoReturn]
"""Raises the error that an event of the provider of this name stands for."""
_USAGE = UsageNames("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")


def decode(provider: str, sse: SseEvent) -> ModelEvent | None:
    """The event's meaning; None if it has none for us. Raises what `response.failed` stands for."""
    named = sse.name != "message"
    if (named and sse.name not in _READERS and sse.name not in _FAULTS) or sse.data == _SENTINEL:
        return None
    kind = sse.name
    try:
        data = orjson.loads(sse.data)
        kind = sse.name if named else _type_of(data)
        if fault := _FAULTS.get(kind):
            _raise(fault, provider, data)
        reader = _READERS.get(kind)
        return reader(data) if reader else None
    except BrokenItem as error:
        raise broken(provider, str(error)) from error
    except orjson.JSONDecodeError as error:
        # Passing over, say, an output_item.done would lose a call that the model made.
        what = f"a broken {kind}" if named else f"a line that is no JSON: {excerpt(sse.data)}"
        raise broken(provider, what) from error
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise broken(provider, f"a broken {kind}") from error


def _type_of(data: Any) -> str:
    """The event's type; an object without a type is an event that no reader uses."""
    if not isinstance(data, dict):
        raise BrokenItem("a line that is no object")
    kind = data.get("type")
    return kind if isinstance(kind, str) else ""


def _item_done(data: Any) -> ItemDone:
    item = data["item"]
    check_item(item)
    place = data.get("output_index")
    return ItemDone(kept_item(item), (place if isinstance(place, int) else None, name_of(item.get("id"))))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a delta that is no text")
    return value


def _completed(data: Any) -> Completed:
    response = data["response"]
    end_turn = response.get("end_turn", data.get("end_turn"))
    return Completed(
        response_id=name_of(response.get("id")),
        usage=_USAGE.read(response.get("usage")),
        end_turn=end_turn if isinstance(end_turn, bool) else None,
    )


def _raise(fault: Fault, provider: str, data: Any) -> NoReturn:
    """Raises the fault with the usage in its event: the tokens of a failed response are billed too."""
    try:
        fault(provider, data)
    except ModelError as error:
        response = data.get("response")
        error.usage = _USAGE.read(response.get("usage")) if isinstance(response, dict) else None
        raise


def _raise_failed(provider: str, data: Any) -> NoReturn:
    raise_fault(provider, ProviderFault.of((data.get("response") or {}).get("error")))


def _raise_error(provider: str, data: Any) -> NoReturn:
    # Some servers nest the fault, others write it beside the type, which is then no code.
    nested = data.get("error")
    raise_fault(provider, ProviderFault.of(nested or {key: data.get(key) for key in ("code", "message")}))


def _raise_incomplete(provider: str, data: Any) -> NoReturn:
    details = (data.get("response") or {}).get("incomplete_details") or {}
    reason = details.get("reason") or "no reason given"
    raise incomplete(provider, reason)


_READERS: dict[str, Callable[[Any], ModelEvent]] = {
    "response.created": lambda data: Created(name_of(data["response"].get("id"))),
    "response.output_item.added": lambda data: ItemAdded(data["item"]),
    "response.output_item.done": _item_done,
    "response.output_text.delta": lambda data: TextDelta(_text(data["delta"])),
    "response.reasoning_summary_text.delta": lambda data: ReasoningSummaryDelta(_text(data["delta"])),
    "response.reasoning_summary_part.added": lambda data: _BREAK,
    "response.reasoning_text.delta": lambda data: ReasoningRawDelta(_text(data["delta"])),
    "response.completed": _completed,
    "response.done": _completed,
}

_FAULTS: dict[str, Fault] = {
    "response.failed": _raise_failed,
    "response.incomplete": _raise_incomplete,
    "error": _raise_error,
}
