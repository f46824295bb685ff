"""An entry as it is stored and read again: one JSON line without its place in the log.

The bytes are what the hash chain covers. `seq`, `epoch`, `salt` and `chain` stand beside
them in the stream, and are woven in only when a line is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from orchestrator.core.blobs import INLINE_BYTES, externalise
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry, milliseconds, timestamp
from orchestrator.core.facts import CallMoved, Fact, InputQueued, Steered, states
from orchestrator.core.frozen import record, replace
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

LINE_BYTES = 128 << 10
"""Bytes of a line beyond which its parts go to `blobs`, though each is short enough to stay: a commit carries
a megabyte, and several decisions."""
SHORT_BYTES = 256
"""Bytes of a part that stays in a line of very many parts."""


@record
class Encoded:
    """An entry ready to be committed: `entry` is what a fold of the stored bytes will see."""

    entry: Entry
    line: bytes
    at_ms: int = 0
    """The moment that the line says."""


def encode_entry(entry: Entry, at_ms: int, blobs: dict[str, bytes]) -> Encoded:
    """The stored line of an entry written at `at_ms`; large values go to `blobs` (hash → bytes)."""
    line = _line(entry, at_ms)
    if len(line) > INLINE_BYTES:
        entry, line = stored_form(entry, lambda entry: _line(entry, at_ms), blobs)
    return Encoded(entry, line, at_ms)


def stored_form(
    entry: Entry, line_of: Callable[[Entry], bytes], blobs: dict[str, bytes]
) -> tuple[Entry, bytes]:
    """The entry and its line without what is too large for one; the same again for an entry that is read back
    from a file with its large values put in."""
    line = line_of(entry)
    if len(line) > INLINE_BYTES:
        entry = replace(entry, payload=externalise(entry.payload, blobs))
        line = line_of(entry)
    for most in (INLINE_BYTES, SHORT_BYTES):
        if len(line) > LINE_BYTES and _is_said(entry):
            entry = replace(entry, payload=_shortened(entry, blobs, most))
            line = line_of(entry)
    return entry, line


def _shortened(entry: Entry, blobs: dict[str, bytes], most: int) -> JsonValue:
    if _states(entry, CallMoved):
        # Of a call rules read the paths, the keys and the words; what files hold is a tool's to read.
        return externalise(entry.payload, blobs, large=most)
    if not _states(entry, InputQueued):
        return externalise(entry.payload, blobs, most=most)
    op = entry.payload["op"]
    # Rules read the rest of an op by its text: its folder, its model, its policies.
    return {**entry.payload, "op": {**op, "items": externalise(op.get("items") or (), blobs, most=most)}}


def _is_said(entry: Entry) -> bool:
    """Whether the entry holds what people, a model or a tool said, and no text that a rule reads."""
    if entry.type == DENDRO:
        return _states(entry, InputQueued) or _states(entry, Steered) or _states(entry, CallMoved)
    return entry.type in {RESPONSE_ITEM, EVENT_MSG}


def _states(entry: Entry, kind: type[Fact]) -> bool:
    return entry.type == DENDRO and states(entry.payload, kind)


def encode_value(value: JsonMapping, blobs: dict[str, bytes]) -> bytes:
    """JSON beside the log (a request, a tree's event); what a commit cannot carry goes to `blobs`."""
    data = encode_json(value)
    for large in (INLINE_BYTES, SHORT_BYTES):
        if len(data) > LINE_BYTES:
            value = externalise(value, blobs, large=large)
            data = encode_json(value)
    return data


def encode_json(value: object) -> bytes:
    """JSON as it is stored."""
    return orjson.dumps(value, default=_plain)


def _line(entry: Entry, at_ms: int) -> bytes:
    value: JsonObject = {"timestamp": timestamp(at_ms), "type": entry.type, "payload": entry.payload}
    if entry.id:
        value["id"] = entry.id
    return encode_json(value)


def _plain(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"an entry holds a {type(value).__name__}, which is not JSON")


def decode_entry(line: bytes) -> Entry:
    """The entry of a stored line; raises `ValueError` if it is not one."""
    value = orjson.loads(line)
    return Entry(value["type"], value["payload"], value.get("id", ""))


def line_ms(line: bytes) -> int:
    """The moment that a stored line says."""
    return milliseconds(orjson.loads(line)["timestamp"])


def encode_event(entry: Entry) -> bytes:
    """The EQ's Event of an `event_msg` entry."""
    assert entry.type == EVENT_MSG
    return encode_json({"id": entry.id, "msg": entry.payload})
