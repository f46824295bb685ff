"""The types of the fields that the stub reads of a request: what a provider refuses, it refuses too.

A field that is absent or null is in order, and so is one that the stub does not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TEXTS = ("type", "role", "id", "call_id", "tool_call_id", "name", "arguments", "input")
"""Fields of an input item, a message, a call and a tool that are strings."""


class InvalidRequest(ValueError):
    """A field of the request has another type than the Responses API gives it; the message names it."""


def checked(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body; raises `InvalidRequest` for the first field that is not what the stub reads it as."""
    tools, items = body.get("tools"), body.get("input")
    require(tools, "tools", list)
    for at, tool in enumerate(tools or ()):
        require(tool, f"tools[{at}]", dict, null=False)
        require_texts(tool, f"tools[{at}]")
    require(items, "input", str, list)
    for at, item in enumerate(items if isinstance(items, list) else ()):
        require(item, f"input[{at}]", dict, null=False)
        require_texts(item, f"input[{at}]")
        for name in ("content", "output"):
            check_content(item.get(name), f"input[{at}].{name}")
    return body


def require_texts(value: Mapping[str, Any], place: str) -> None:
    """Raises for a field that is a string in every request, and is none here."""
    for name in _TEXTS:
        require(value.get(name), f"{place}.{name}", str)


def check_content(content: Any, place: str) -> None:
    """Raises for a content that is neither a text nor parts."""
    require(content, place, str, list)
    for at, part in enumerate(content if isinstance(content, list) else ()):
        require(part, f"{place}[{at}]", dict, null=False)
        if "text" in part:
            require(part["text"], f"{place}[{at}].text", str, null=False)


_NAMES: Mapping[type, str] = {list: "an array", dict: "an object", str: "a string"}


def require(value: Any, place: str, *types: type, null: bool = True) -> None:
    """Raises `InvalidRequest`, which names the place, for a value of none of these types."""
    if isinstance(value, types) or (null and value is None):
        return
    found = {**_NAMES, type(None): "null", bool: "a boolean"}.get(type(value), "a number")
    raise InvalidRequest(f"`{place}` must be {' or '.join(_NAMES[each] for each in types)}, not {found}")


# ── chat request ──────────────────────────────────────────────────────────────────────────────────
# A request of chat completions, read as the Responses request that says the same.
#
# The scripts know one form of a conversation; a request in the other form is checked and translated here.
# A field that is absent or null is in order, and so is one that the stub does not read.


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
