"""The types of the fields that the stub reads of a request: what a provider refuses, it refuses too.

A field that is absent or null is in order, and so is one that the stub does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXTS = ("type", "role", "call_id", "name", "arguments", "input")
"""Fields of an input item, and of a tool, that are strings."""


class InvalidRequest(ValueError):
    """A field of the request has another type than the Responses API gives it; the message names it."""


def check_shape(body: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for the first field that is not what the stub reads it as."""
    tools, items = body.get("tools"), body.get("input")
    _require(tools, "tools", list)
    for at, tool in enumerate(tools or ()):
        _require(tool, f"tools[{at}]", dict, null=False)
        _check_texts(tool, f"tools[{at}]")
    _require(items, "input", str, list)
    for at, item in enumerate(items if isinstance(items, list) else ()):
        _require(item, f"input[{at}]", dict, null=False)
        _check_texts(item, f"input[{at}]")
        for name in ("content", "output"):
            _check_content(item.get(name), f"input[{at}].{name}")


def _check_texts(value: Mapping[str, Any], place: str) -> None:
    for name in _TEXTS:
        _require(value.get(name), f"{place}.{name}", str)


def _check_content(content: Any, place: str) -> None:
    _require(content, place, str, list)
    for at, part in enumerate(content if isinstance(content, list) else ()):
        _require(part, f"{place}[{at}]", dict, null=False)
        if "text" in part:
            _require(part["text"], f"{place}[{at}].text", str, null=False)


_NAMES: Mapping[type, str] = {list: "an array", dict: "an object", str: "a string"}


def _require(value: Any, place: str, *types: type, null: bool = True) -> None:
    if isinstance(value, types) or (null and value is None):
        return
    found = {**_NAMES, type(None): "null", bool: "a boolean"}.get(type(value), "a number")
    raise InvalidRequest(f"`{place}` must be {' or '.join(_NAMES[each] for each in types)}, not {found}")
