"""A request of chat completions, read as the Responses request that says the same.

The scripts know one form of a conversation; a request in the other form is checked and translated here.
A field that is absent or null is in order, and so is one that the stub does not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.stub.request_shape import check_content, require, require_texts

JsonObject = dict[str, Any]


def translated(body: Mapping[str, Any]) -> JsonObject:
    """The same request to the Responses API; raises `InvalidRequest` for a field of another type."""
    tools, messages = body.get("tools"), body.get("messages")
    require(tools, "tools", list)
    require(messages, "messages", list)
    items = [item for at, message in enumerate(messages or ()) for item in _items(message, f"messages[{at}]")]
    instructions = ""
    if items and items[0].get("role") == "system":
        instructions = _text(items.pop(0)["content"])
    return {
        "model": body.get("model"),
        "instructions": instructions,
        "input": [_as_developer(item) for item in items],
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools or ())],
        "parallel_tool_calls": body.get("parallel_tool_calls", False),
    }


def _items(message: Any, place: str) -> Iterator[JsonObject]:
    require(message, place, dict, null=False)
    require_texts(message, place)
    content = message.get("content")
    check_content(content, f"{place}.content")
    role = message.get("role")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id"),
            "output": _text(content),
        }
        return
    if content:
        yield {"type": "message", "role": role, "content": _parts(content, role, place)}
    calls = message.get("tool_calls")
    require(calls, f"{place}.tool_calls", list)
    for at, call in enumerate(calls or ()):
        yield _call(call, f"{place}.tool_calls[{at}]")


def _call(call: Any, place: str) -> JsonObject:
    function = _function(call, place)
    return {
        "type": "function_call",
        "name": function.get("name"),
        "arguments": function.get("arguments"),
        "call_id": call.get("id"),
    }


def _tool(tool: Any, place: str) -> JsonObject:
    return {"type": "function", **_function(tool, place)}


def _function(holder: Any, place: str) -> Mapping[str, Any]:
    require(holder, place, dict, null=False)
    require_texts(holder, place)
    function = holder.get("function")
    require(function, f"{place}.function", dict, null=False)
    require_texts(function, f"{place}.function")
    found: Mapping[str, Any] = function
    return found


def _parts(content: Any, role: Any, place: str) -> list[JsonObject]:
    text = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        return [{"type": text, "text": content}]
    return [
        {"type": text, "text": part["text"]} if "text" in part else _image(part, f"{place}.content[{at}]")
        for at, part in enumerate(content)
    ]


def _image(part: Mapping[str, Any], place: str) -> JsonObject:
    image = part.get("image_url")
    require(image, f"{place}.image_url", dict)
    return {"type": "input_image", "image_url": (image or {}).get("url")}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if "text" in part)


def _as_developer(item: JsonObject) -> JsonObject:
    """Later messages of the system are a developer's in the other form."""
    return item | {"role": "developer"} if item.get("role") == "system" else item
