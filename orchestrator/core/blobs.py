"""Large values stand beside the log, not in it: an entry keeps a reference by content.

A reference is `{"$blob": "<sha256 hex>", "bytes": <UTF-8 length>}` in the place of the
string. Outputs, images, patches and arguments are replaced when they are large; what
people and the model said stays in the entry, where rules read it, unless it is huge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping

from orchestrator.protocol.wire import JsonObject, JsonValue

INLINE_BYTES = 4096
"""A string of a large field up to this length stays in its entry."""

INLINE_TEXT_BYTES = 65_536
"""A string of any other field up to this length stays in its entry."""

REFERENCE = "$blob"
_IN_JSON = f'"{REFERENCE}"'.encode()
_DIGEST = re.compile(r"[0-9a-f]{64}")

_LARGE_FIELDS = frozenset(
    {
        "aggregated_output",
        "arguments",
        "content",
        "encrypted_content",
        "formatted_output",
        "image_url",
        "images",
        "input",
        "output",
        "patch",
        "stderr",
        "stdout",
        "unified_diff",
    }
)


_SCALARS = frozenset({str, int, float, bool, type(None)})


def may_refer(data: bytes) -> bool:
    """Whether JSON may hold a reference: to walk through all of it takes longer than to read it."""
    # Nearly all holds none, and a look for one character is cheap.
    return b"$" in data and _IN_JSON in data


def externalise(
    value: JsonValue,
    blobs: dict[str, bytes],
    field: str = "",
    most: int = INLINE_TEXT_BYTES,
    large: int = INLINE_BYTES,
) -> JsonValue:
    """`value` with its large strings replaced; their bytes are added to `blobs` under their hash.

    `large` bytes are what a string of a large field may have, `most` what any other may.
    """
    if isinstance(value, str):
        limit = min(most, large) if field in _LARGE_FIELDS else most
        return _replaced(value, limit, blobs) if len(value) * 4 > limit else value
    if type(value) is dict or isinstance(value, Mapping):
        if REFERENCE in value and is_reference(value):
            return value
        # Nearly all that a value holds is short for any field.
        short = min(most, large) // 4
        return {
            key: inner
            if (kind := type(inner)) in _SCALARS and (kind is not str or len(inner) <= short)
            else externalise(inner, blobs, key, most, large)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [externalise(inner, blobs, field, most, large) for inner in value]
    return value


def _replaced(text: str, limit: int, blobs: dict[str, bytes]) -> str | JsonObject:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return {REFERENCE: digest, "bytes": len(data)}


def is_reference(value: object) -> bool:
    """Whether a value is a reference; one of a client's or a model's that names no hash is their own data."""
    if not isinstance(value, Mapping) or len(value) != 2:
        return False
    named = value.get(REFERENCE)
    return isinstance(named, str) and _DIGEST.fullmatch(named) is not None and type(value.get("bytes")) is int


def references(value: JsonValue) -> Iterator[str]:
    """The hashes that a value refers to, in no order.

    Every model request asks this of the whole conversation: hence the stack in place of a recursion, and
    the look at exact types first.
    """
    waiting = [value]
    while waiting:
        found = waiting.pop()
        kind = type(found)
        if kind in _SCALARS:
            continue
        if kind is dict or isinstance(found, Mapping):
            if REFERENCE in found and is_reference(found):
                yield found[REFERENCE]
            else:
                waiting.extend(found.values())
        elif isinstance(found, (list, tuple)):
            waiting.extend(found)


def resolve(value: JsonValue, text_of: Callable[[str], str | None]) -> JsonValue:
    """`value` with its references replaced by their texts, or by a note if a text is no longer stored.

    A value without references is given back as it is.
    """
    return value if next(references(value), None) is None else _resolved(value, text_of)


def _resolved(value: JsonValue, text_of: Callable[[str], str | None]) -> JsonValue:
    if is_reference(value):
        text = text_of(value[REFERENCE])
        return text if text is not None else f"[{value['bytes']} bytes that are no longer stored]"
    if isinstance(value, Mapping):
        return {key: _resolved(inner, text_of) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_resolved(inner, text_of) for inner in value]
    return value
