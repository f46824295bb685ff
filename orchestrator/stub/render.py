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
