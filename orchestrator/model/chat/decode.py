"""Reads a stream of chat completion chunks: each SSE event is a chunk with pieces of one choice.

    data: {"id": …, "choices": [{"index": 0, "delta": {…}, "finish_reason": null}]}
    data: {"id": …, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    data: {"id": …, "choices": [], "usage": {…}}
    data: [DONE]

Pure. A response is whole with its `finish_reason`; what comes behind it may only say what it has cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from orchestrator.model.chat.assembly import Assembly, CallPiece
from orchestrator.model.errors import ModelError
from orchestrator.model.events import Completed, Created, ModelEvent
from orchestrator.model.faults import broken, excerpt, incomplete, raise_fault
from orchestrator.model.refusals import ProviderFault
from orchestrator.model.shapes import BrokenItem, name_of
from orchestrator.model.sse import SseEvent
from orchestrator.model.usage import UsageNames

_SENTINEL: Final = b"[DONE]"
_WHOLE: Final = frozenset({"stop", "tool_calls", "end_turn", "eos", "eos_token", "stop_sequence"})
"""Reasons for which a response ends that is complete; of any other one nobody knows what is missing."""
_USAGE = UsageNames(
    "prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"
)


class ChatReader:
    """Reads one response. `converted` names the functions that stand for tools of another type."""

    def __init__(self, provider: str, converted: Mapping[str, str]) -> None:
        self.finished = False
        self._provider = provider
        self._items = Assembly(converted)
        self._created = False
        self._id = ""
        self._reason = ""
        self._usage: Mapping[str, int] | None = None

    def read(self, sse: SseEvent) -> Sequence[ModelEvent]:
        if sse.data.strip() == _SENTINEL:
            return self.end()
        try:
            return list(self._chunk(sse))
        except ModelError as error:
            # The tokens of a failed response are billed too.
            error.usage = self._usage
            raise
        except BrokenItem as error:
            raise broken(self._provider, str(error)) from error
        except orjson.JSONDecodeError as error:
            raise broken(self._provider, f"a line that is no JSON: {excerpt(sse.data)}") from error
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise broken(self._provider, "a broken chunk") from error

    def end(self) -> Sequence[ModelEvent]:
        if not self.finished:
            raise broken(self._provider, "the end of a response without its finish_reason")
        if self._reason not in _WHOLE:
            error = incomplete(self._provider, self._reason)
            error.usage = self._usage
            raise error
        return (Completed(self._id, self._usage, None),)

    def _chunk(self, sse: SseEvent) -> Iterator[ModelEvent]:
        data = orjson.loads(sse.data)
        if not isinstance(data, dict):
            raise BrokenItem("a line that is no object")
        self._id = self._id or name_of(data.get("id"))
        self._usage = _USAGE.read(data.get("usage") or None) or self._usage
        if fault := _fault(sse.name, data):
            raise_fault(self._provider, fault)
        for choice in data.get("choices") or ():
            # One is asked for: another would be a second answer to the same question.
            if choice.get("index") in (0, None):
                yield from self._choice(choice)

    def _choice(self, choice: Any) -> Iterator[ModelEvent]:
        if not self._created:
            self._created = True
            yield Created(self._id)
        delta, reason = choice.get("delta") or {}, choice.get("finish_reason")
        yield from self._delta(delta)
        if reason is not None and not isinstance(reason, str):
            raise BrokenItem("a finish_reason that is no text")
        if reason and not self.finished:
            self.finished, self._reason = True, reason.lower()
            if self._reason in _WHOLE:
                yield from self._items.close()

    def _delta(self, delta: Any) -> Iterator[ModelEvent]:
        thought = _text(delta, "reasoning_content", "reasoning")
        text = _text(delta, "content", "refusal")
        calls = delta.get("tool_calls") or ()
        if delta.get("function_call"):
            raise BrokenItem("a `function_call`, which belongs to no tool of the request")
        if self.finished and (thought or text or calls):
            raise BrokenItem("a piece of the response behind its finish_reason")
        if thought:
            yield from self._items.words("reasoning", thought)
        if text:
            yield from self._items.words("message", text)
        for call in calls:
            yield from self._items.call(CallPiece.of(call))


def _text(delta: Any, *names: str) -> str:
    """The first of these fields that says something."""
    value = next((value for name in names if (value := delta.get(name))), "")
    if not isinstance(value, str):
        raise BrokenItem(f"a piece whose `{names[0]}` is no text")
    return value


def _fault(name: str, data: Mapping[str, Any]) -> ProviderFault | None:
    """The failure that a chunk reports; some servers write it as the event itself."""
    if error := data.get("error"):
        return ProviderFault.of(error)
    return ProviderFault.of(data) if name == "error" or data.get("object") == "error" else None
