"""Chunks of a stream of chat completions, as servers write them, and the reading of a whole stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from orchestrator.model.chat_completions import ChatReader, converted_tools
from orchestrator.model.prompt import Completed, ItemDone, ModelEvent
from orchestrator.model.sse import SseParser

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
CUSTOM = {"type": "custom", "name": "apply_patch"}
USAGE = {
    "prompt_tokens": 1200,
    "prompt_tokens_details": {"cached_tokens": 200},
    "completion_tokens": 30,
    "completion_tokens_details": {"reasoning_tokens": 10},
    "total_tokens": 1230,
}
COST = {
    "input_tokens": 1200,
    "cached_input_tokens": 200,
    "output_tokens": 30,
    "reasoning_output_tokens": 10,
    "total_tokens": 1230,
}


def line(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def chunk(delta: Any = None, reason: Any = None, **fields: Any) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]} | fields


def part(
    index: int | None = 0, id: str | None = None, name: str | None = None, arguments: str | None = None
) -> Json:
    """A piece of a call, with the fields that are given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    outside = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return outside | {"function": function}


def calling(*parts: Json) -> Json:
    return chunk({"tool_calls": list(parts)})


def stream(*chunks: Json) -> bytes:
    return b"".join(map(line, chunks)) + DONE


def read(*sent: bytes, tools: Sequence[Json] = ()) -> list[ModelEvent]:
    """All events of a stream that comes in these pieces."""
    reader, parser = ChatReader("p", converted_tools(tools)), SseParser()
    return [event for piece in sent for sse in parser.feed(piece) for event in reader.read(sse)]


def items(events: Iterable[ModelEvent]) -> list[Json]:
    return [event.item for event in events if isinstance(event, ItemDone)]


def message(text: str) -> Json:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content}


def function(name: str, arguments: str, call_id: str | None) -> Json:
    call = {"type": "function_call", "name": name, "arguments": arguments}
    return call | {"call_id": call_id} if call_id else call


UNPAID = Completed("chatcmpl-1", None, None)
STOP, CALLS = chunk(reason="stop"), chunk(reason="tool_calls")
