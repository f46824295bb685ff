"""Fields of events and of a model's JSON, read without trust: what has another form counts as absent."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import orjson

from orchestrator.protocol.wire import JsonMapping, JsonValue


def text(value: object) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def optional(value: object) -> str | None:
    """The text, or None."""
    return value if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """The integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(value: object) -> JsonMapping:
    """The object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> Sequence[JsonValue]:
    """The array, or an empty one."""
    return value if isinstance(value, list | tuple) else ()


def mappings(value: object) -> tuple[JsonMapping, ...]:
    """The objects of an array."""
    return tuple(one for one in listed(value) if isinstance(one, Mapping))


def texts(value: object) -> tuple[str, ...]:
    """The texts of an array."""
    return tuple(one for one in listed(value) if isinstance(one, str))


def parsed(value: object) -> JsonValue:
    """JSON that stands in a text; None for what is none."""
    try:
        found: JsonValue = orjson.loads(text(value))
    except orjson.JSONDecodeError:
        return None
    return found


def milliseconds(duration: object) -> int | None:
    """A duration of whole seconds and nanoseconds, in milliseconds."""
    given = mapping(duration)
    secs, nanos = whole(given.get("secs")), whole(given.get("nanos"))
    return None if secs is None else secs * 1000 + (nanos or 0) // 1_000_000


def chunk(value: object) -> bytes:
    """The bytes of a piece of output, which is base64 on the wire."""
    try:
        return base64.b64decode(text(value), validate=True)
    except (binascii.Error, ValueError):
        return b""
