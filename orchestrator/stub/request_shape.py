"""The types of the fields that the stub reads of a request: what a provider refuses, it refuses too.

A field that is absent or null is in order, and so is one that the stub does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
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
