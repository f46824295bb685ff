"""A chosen answer as the bytes of a Responses stream.

Pure. Deltas are cut as the recorded conversations show them: text into three parts of
ceil(n/3) characters, reasoning into two at n//2 after a section break, empty parts left
out, one SSE event each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, assert_never

import orjson

from orchestrator.stub.script import (
    Answer,
    Call,
    CustomCall,
    OutputItem,
    RawItem,
    Reasoning,
    Step,
    Text,
    Usage,
)

_DELTA_TYPES = frozenset({"response.output_text.delta", "response.reasoning_summary_text.delta"})


@dataclass(frozen=True, slots=True)
class Frame:
    """An SSE event; a delta may be slowed down."""

    payload: bytes
    is_delta: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """The response's identity: the model's name and the response's id."""

    model: str
    response_id: str


def frames(answer: Answer, identity: Identity, estimated: Callable[[int], Usage]) -> list[Frame]:
    """All SSE events of the answer; `estimated` makes a usage of the output's size in bytes."""
    step = answer.step
    response: dict[str, Any] = {"id": identity.response_id, "object": "response", "model": identity.model}
    events = [_frame("response.created", response=response | {"status": "in_progress", "output": []})]
    for index, item in enumerate(step.items):
        events += _item_frames(answer, index, item)
    if step.failed is not None:
        error = {"code": step.failed.code, "message": step.failed.message}
        end = response | {"status": "failed", "error": error} | _usage_fields(step)
        return [*events, _frame("response.failed", response=end)]
    if step.incomplete is not None:
        details = {"reason": step.incomplete.reason}
        end = response | {"status": "incomplete", "incomplete_details": details} | _usage_fields(step)
        return [*events, _frame("response.incomplete", response=end)]
    usage = step.usage or estimated(sum(len(event.payload) for event in events[1:]))
    end = response | {"status": "completed", "usage": _usage(usage)}
    if step.end_turn is not None:
        end["end_turn"] = step.end_turn
    return [*events, _frame("response.completed", response=end)]


def thirds(text: str) -> list[str]:
    """The three parts of a message, fewer when it is very short."""
    size = -(-len(text) // 3)
    return [part for part in (text[:size], text[size : 2 * size], text[2 * size :]) if part]


def halves(text: str) -> list[str]:
    """The two parts of a reasoning summary."""
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


def _item_frames(answer: Answer, index: int, item: OutputItem) -> Iterator[Frame]:
    if isinstance(item, RawItem):
        yield _frame("response.output_item.added", output_index=index, item=item.item)
        yield _frame("response.output_item.done", output_index=index, item=item.item)
        return
    begun, done = _item_shapes(answer, index, item)
    place: dict[str, Any] = {"item_id": done["id"], "output_index": index}
    yield _frame("response.output_item.added", output_index=index, item=begun)
    if isinstance(item, Reasoning):
        place["summary_index"] = 0
        yield _frame(
            "response.reasoning_summary_part.added", **place, part={"type": "summary_text", "text": ""}
        )
        for part in halves(item.reasoning):
            yield _frame("response.reasoning_summary_text.delta", **place, delta=part)
    elif isinstance(item, Text):
        place["content_index"] = 0
        for part in thirds(item.text):
            yield _frame("response.output_text.delta", **place, delta=part)
    yield _frame("response.output_item.done", output_index=index, item=done)


def _item_shapes(
    answer: Answer, index: int, item: Text | Reasoning | Call | CustomCall
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The item as it begins and as it is done."""
    key = f"{answer.id_prefix}_{index}"
    match item:
        case Text(text):
            shape = {"type": "message", "id": f"msg_{key}", "role": "assistant"}
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return (
                shape | {"status": "in_progress", "content": []},
                shape | {"status": "completed", "content": content},
            )
        case Reasoning(reasoning):
            shape = {"type": "reasoning", "id": f"rs_{key}"}
            summary = [{"type": "summary_text", "text": reasoning}]
            secret = f"ENC_{answer.number}_{index}"
            return shape | {"summary": []}, shape | {"summary": summary, "encrypted_content": secret}
        case Call(name, args, call_id):
            arguments = args if isinstance(args, str) else json.dumps(args)
            shape = {
                "type": "function_call",
                "id": f"fc_{key}",
                "name": name,
                "call_id": call_id or f"call_{key}",
            }
            return (
                shape | {"status": "in_progress", "arguments": ""},
                shape | {"status": "completed", "arguments": arguments},
            )
        case CustomCall(name, text, call_id):
            shape = {
                "type": "custom_tool_call",
                "id": f"ctc_{key}",
                "name": name,
                "call_id": call_id or f"call_{key}",
            }
            return (
                shape | {"status": "in_progress", "input": ""},
                shape | {"status": "completed", "input": text},
            )
        case _:
            assert_never(item)


def _usage_fields(step: Step) -> dict[str, Any]:
    """The usage of a response that does not complete: most servers report none, so only the step's own."""
    return {"usage": _usage(step.usage)} if step.usage else {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _frame(kind: str, **fields: Any) -> Frame:
    data = orjson.dumps({"type": kind, **fields})
    return Frame(b"event: %b\ndata: %b\n\n" % (kind.encode(), data), kind in _DELTA_TYPES)


# ── chat render ───────────────────────────────────────────────────────────────────────────────────
# A chosen answer as the bytes of a stream of chat completion chunks.
#
# Pure. A text or a reasoning begins with an empty piece and goes on in the parts of `render`; a call
# begins with its name, and its arguments come in one piece. So a cut after some events leaves as much of
# the first item as it leaves of a Responses stream. Items that chat completions have no word for are left
# out.


_REASONS = {"max_output_tokens": "length"}
"""Reasons of a response that is cut short, as chat completions call them."""
_END = Frame(b"data: [DONE]\n\n")


def chat_frames(answer: Answer, identity: Identity, estimated: Callable[[int], Usage]) -> list[Frame]:
    """All SSE events of the answer; `estimated` makes a usage of the output's size in bytes."""
    step, chunks = answer.step, _Chunks(answer, identity)
    events = [chunks.piece({"role": "assistant", "content": ""})]
    for index, item in enumerate(step.items):
        events += chunks.of_item(index, item)
    if step.failed is not None:
        fault = {"error": {"code": step.failed.code, "message": step.failed.message}}
        return [*events, *chunks.cost(step.usage), _chat_frame(fault), _END]
    if step.incomplete is not None:
        reason = _REASONS.get(step.incomplete.reason, step.incomplete.reason)
        return [*events, chunks.piece({}, reason), *chunks.cost(step.usage), _END]
    usage = step.usage or estimated(sum(len(event.payload) for event in events[1:]))
    reason = "tool_calls" if chunks.calls else "stop"
    return [*events, chunks.piece({}, reason), *chunks.cost(usage), _END]


class _Chunks:
    """The chunks of one answer; its calls are numbered from 0."""

    def __init__(self, answer: Answer, identity: Identity) -> None:
        self.calls = 0
        self._prefix = answer.id_prefix
        self._head = {
            "id": identity.response_id,
            "object": "chat.completion.chunk",
            "model": identity.model,
        }

    def piece(self, delta: dict[str, Any], reason: str | None = None, slow: bool = False) -> Frame:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _chat_frame(self._head | {"choices": [choice]}, slow)

    def cost(self, usage: Usage | None) -> list[Frame]:
        """The last chunk, which has no choice; nothing if nothing is told of the cost."""
        return (
            [] if usage is None else [_chat_frame(self._head | {"choices": [], "usage": _chat_usage(usage)})]
        )

    def of_item(self, index: int, item: OutputItem) -> Iterator[Frame]:
        match item:
            case Text(text):
                yield from self._words("content", thirds(text))
            case Reasoning(reasoning):
                yield from self._words("reasoning_content", halves(reasoning))
            case Call(name, args, call_id):
                arguments = args if isinstance(args, str) else json.dumps(args)
                yield from self._call(index, name, arguments, call_id)
            case CustomCall(name, text, call_id):
                yield from self._call(index, name, json.dumps({"input": text}), call_id)
            case RawItem(raw):
                yield from self._raw(index, raw)
            case _:
                assert_never(item)

    def _raw(self, index: int, raw: dict[str, Any]) -> Iterator[Frame]:
        call_id = raw.get("call_id") or raw.get("id")
        match raw:
            case {"type": "message", "content": [*parts]}:
                yield from self._words("content", ["".join(part.get("text", "") for part in parts)])
            case {"type": "function_call", "name": name, "arguments": arguments}:
                yield from self._call(index, name, arguments, call_id)
            case {"type": "custom_tool_call", "name": name, "input": text}:
                yield from self._call(index, name, json.dumps({"input": text}), call_id)
            case {"type": "local_shell_call", "action": dict(action)}:
                yield from self._call(index, "local_shell", json.dumps(action), call_id)
            case _:
                pass

    def _words(self, field: str, parts: list[str]) -> Iterator[Frame]:
        yield self.piece({field: ""})
        for part in parts:
            yield self.piece({field: part}, slow=True)

    def _call(self, index: int, name: str, arguments: str, call_id: str | None) -> Iterator[Frame]:
        place = {"index": self.calls}
        self.calls += 1
        begun = {"id": call_id or f"call_{self._prefix}_{index}", "type": "function"}
        yield self.piece({"tool_calls": [place | begun | {"function": {"name": name, "arguments": ""}}]})
        yield self.piece({"tool_calls": [place | {"function": {"arguments": arguments}}]})


def _chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _chat_frame(data: dict[str, Any], slow: bool = False) -> Frame:
    return Frame(b"data: %b\n\n" % orjson.dumps(data), slow)
