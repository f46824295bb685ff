"""A chosen answer as the bytes of a stream of chat completion chunks.

Pure. A text or a reasoning begins with an empty piece and goes on in the parts of `render`; a call begins
with its name, and its arguments come in one piece. So a cut after some events leaves as much of the first
item as it leaves of a Responses stream. Items that chat completions have no word for are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, assert_never

import orjson

from orchestrator.stub.render import Frame, Identity, halves, thirds
from orchestrator.stub.script import Answer, Call, CustomCall, OutputItem, RawItem, Reasoning, Text, Usage

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
        return [*events, *chunks.cost(step.usage), _frame(fault), _END]
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
        return _frame(self._head | {"choices": [choice]}, slow)

    def cost(self, usage: Usage | None) -> list[Frame]:
        """The last chunk, which has no choice; nothing if nothing is told of the cost."""
        return [] if usage is None else [_frame(self._head | {"choices": [], "usage": _usage(usage)})]

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


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _frame(data: dict[str, Any], slow: bool = False) -> Frame:
    return Frame(b"data: %b\n\n" % orjson.dumps(data), slow)
