"""Rollout entries: the only things that change a state.

An entry is one RolloutItem (`type`, `payload`) with, for an `event_msg`, the Event's id.
Every `event_msg` entry is also an event on the EQ. Facts that the protocol has no line
for are entries of the one own type `dendro`; the records of `core.facts` are their catalogue.
`evolve` reads nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final, TypeAlias, TypeGuard

import orjson

from orchestrator.core import facts as f
from orchestrator.core.blobs import INLINE_BYTES, externalise, references, resolve
from orchestrator.core.facts import CallMoved, Fact, InputQueued, Steered, encode, states
from orchestrator.core.frozen import record, replace
from orchestrator.core.lines import LINES, CompactedLine, ContextLine, Line, MetaLine, encode_line
from orchestrator.protocol import events as ev
from orchestrator.protocol.codec import UnknownRolloutItem, event_of
from orchestrator.protocol.events import (
    EVENT_SYNONYMS,
    EVENTS,
    CodexErrorInfo,
    EventMsg,
    TokenCount,
    UnknownEvent,
)
from orchestrator.protocol.items import ITEM_SYNONYMS, ITEMS, UnknownItem
from orchestrator.protocol.wire import (
    EventModel,
    ItemModel,
    JsonMapping,
    JsonObject,
    JsonValue,
    tag_of,
    written,
)

Json = JsonObject

SESSION_META = MetaLine.type
RESPONSE_ITEM = "response_item"
COMPACTED = CompactedLine.type
TURN_CONTEXT = ContextLine.type


@record
class Entry:
    """A line of the rollout, before it has a `seq`."""

    type: str
    payload: JsonMapping
    id: str = ""
    at_ms: int = 0


@lru_cache(maxsize=64)  # all entries of a step are written at one moment
def timestamp(at_ms: int) -> str:
    """UTC with milliseconds, as Codex writes it: `2025-09-20T10:00:00.123Z`."""
    # Every step says its time, and `strftime` takes three times as long.
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()
    return f"{moment[:19]}.{at_ms % 1000:03d}Z"


def item(item: ItemModel | JsonMapping) -> Entry:
    """A ResponseItem that joins the conversation: one of our own, or one that a model sent as it came."""
    return Entry(RESPONSE_ITEM, written(item) if isinstance(item, ItemModel) else item)


def event(id: str, message: EventModel | JsonMapping) -> Entry:
    """An event under the id of the task (or submission) that it belongs to; a mapping is one as written."""
    return Entry(EVENT_MSG, written(message) if isinstance(message, EventModel) else message, id)


def error(id: str, message: str, codex_error_info: CodexErrorInfo = None) -> Entry:
    """An `error` event. Its kind of error is written also when it is null (September 2025)."""
    return event(id, ev.Error(message=message, codex_error_info=codex_error_info))


def line(said: Line) -> Entry:
    """A line that is no item, no event and no fact."""
    return Entry(said.type, encode_line(said))


def fact(stated: Fact) -> Entry:
    """A fact, as the entry that records it."""
    return Entry(DENDRO, encode(stated))


# ── line types ────────────────────────────────────────────────────────────────────────────────────
# Types and times of stored lines, for who reads a log by its JSON and imports neither facts nor events.


EVENT_MSG = "event_msg"
DENDRO = "dendro"


@lru_cache(maxsize=64)
def milliseconds(timestamp: str) -> int:
    """The moment that a line's `timestamp` says."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


# ── stored ────────────────────────────────────────────────────────────────────────────────────────
# An entry as it is stored and read again: one JSON line without its place in the log.
#
# The bytes are what the hash chain covers. `seq`, `epoch`, `salt` and `chain` stand beside them in the
# stream, and are woven in only when a line is exported. This file alone knows how the bytes are laid out:
# who looks for entries of some kind asks `stored_kind`, or `published_kind` for an event's own JSON.


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
    return orjson.dumps(value, default=_plain)


def _plain(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"an entry holds a {type(value).__name__}, which is not JSON")


def decode_entry(line: bytes) -> Entry:
    """The entry of a stored line; raises `ValueError` if it is not one."""
    value = orjson.loads(line)
    return Entry(value["type"], value["payload"], value.get("id", ""))


def shows_only(line: bytes) -> bool:
    """Whether a stored line is seen to be an event that no state is told anything by, without its JSON.

    Of events only `token_count` is folded (`core.evolve`).
    """
    return (
        line.startswith(_EVENT_HEAD, _TYPE_AT)
        and not line.startswith(_FOLDED, _EVENT_AT)
        and line.startswith(_TIME_HEAD)
    )


def line_ms(line: bytes) -> int:
    """The moment that a stored line says."""
    if _TIME.match(line) is not None:
        return milliseconds(line[14:38].decode())
    return milliseconds(orjson.loads(line)["timestamp"])


def request_digest(turn: str, request: JsonMapping) -> str:
    """SHA-256, in hex, of the stored line of a request to people behind its time.

    A signature under an answer is bound to its request by it. `request` is the event as its turn tells it,
    whole or as it is stored.
    """
    return sha256(encode_entry(event(turn, request), 0, {}).line[BEHIND_TIME:]).hexdigest()


BEHIND_TIME: Final = len('{"timestamp":"2026-01-01T00:00:00.000Z",')
"""The length of the beginning of a stored line that says its time."""


def encode_event(entry: Entry) -> bytes:
    """The EQ's Event of an `event_msg` entry."""
    assert entry.type == EVENT_MSG
    return encode_json({"id": entry.id, "msg": entry.payload})


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────
# What a line is an entry of, by its first bytes: to decode each line of a long log takes ten times as long.
# Where they are laid out otherwise (a model's item, a line of another program), the line is decoded.


EventKind: TypeAlias = type[EventModel | UnknownEvent]
Kind: TypeAlias = (
    EventKind | type[ItemModel | UnknownItem] | type[Fact | f.UnknownFact] | type[Line | UnknownRolloutItem]
)
"""The class of the record that an entry is read as."""

_TIME_HEAD: Final = b'{"timestamp":"'
_EVENT_HEAD: Final = b'Z","type":"event_msg","payload":{"type":"'
_TYPE_AT: Final = len(_TIME_HEAD) + len("2025-11-28T12:00:00.000")
_EVENT_AT: Final = _TYPE_AT + len(_EVENT_HEAD)
_FOLDED: Final = f'{tag_of(TokenCount)}"'.encode()
_TIME: Final = re.compile(rb'\{"timestamp":"[0-9T:.Z-]{24}"')
_TAG: Final = rb"[0-9A-Za-z_.-]+"
_HEAD: Final = re.compile(
    rb'\{"timestamp":"[^"\\]{24}","type":"('
    rb'event_msg","payload":\{"type":"%b|response_item","payload":\{"type":"%b|dendro","payload":\{"kind":"%b'
    rb'|(?!(?:event_msg|response_item|dendro)")%b)"' % (_TAG, _TAG, _TAG, _TAG)
)
_PUBLISHED: Final = re.compile(rb'\{"id":"[^"\\]*","msg":\{"type":"(%b)"' % _TAG)

_EVENTS: Final[Mapping[str, type[EventModel]]] = {
    **EVENTS,
    **{synonym: EVENTS[tag] for synonym, tag in EVENT_SYNONYMS.items()},
}
_ITEMS: Final[Mapping[str, type[ItemModel]]] = {
    **ITEMS,
    **{synonym: ITEMS[tag] for synonym, tag in ITEM_SYNONYMS.items()},
}
_BY_HEAD: Final[Mapping[bytes, Kind]] = {
    **{f'{EVENT_MSG}","payload":{{"type":"{tag}'.encode(): cls for tag, cls in _EVENTS.items()},
    **{f'{RESPONSE_ITEM}","payload":{{"type":"{tag}'.encode(): cls for tag, cls in _ITEMS.items()},
    **{f'{DENDRO}","payload":{{"kind":"{kind}'.encode(): cls for kind, cls in f.KINDS.items()},
    **{cls.type.encode(): cls for cls in LINES},
}
_BY_TAG: Final = {tag.encode(): cls for tag, cls in _EVENTS.items()}


_EVENT_KINDS: Final[frozenset[Kind]] = frozenset({*EVENTS.values(), UnknownEvent})


def is_event(kind: Kind) -> TypeGuard[EventKind]:
    """Whether entries of a kind are events."""
    return kind in _EVENT_KINDS


def stored_kind(line: bytes) -> Kind:
    """The record that a stored line is read as, without reading it; of an unknown kind the `Unknown` one."""
    head = _HEAD.match(line)
    kind = None if head is None else _BY_HEAD.get(head[1])
    return _decoded_kind(line) if kind is None else kind


def _decoded_kind(line: bytes) -> Kind:
    match _object(line):
        case {"type": type, "payload": payload}:
            return kind_of(type, payload)
        case _:
            return UnknownRolloutItem


def kind_of(type: JsonValue, payload: JsonValue) -> Kind:
    """The same of an entry whose JSON was read."""
    match type:
        case "event_msg":
            return event_kind(payload)
        case "response_item":
            return _ITEMS.get(_tag(payload, "type"), UnknownItem)
        case "dendro":
            return f.kind_of(payload) if isinstance(payload, Mapping) else f.UnknownFact
        case _:
            return next((cls for cls in LINES if cls.type == type), UnknownRolloutItem)


def _object(data: bytes) -> JsonValue:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def event_kind(message: JsonValue) -> EventKind:
    """The record that an event's message is read as; it may still be no sound one."""
    return _EVENTS.get(_tag(message, "type"), UnknownEvent)


def _tag(payload: JsonValue, key: str) -> str:
    tag = payload.get(key) if isinstance(payload, Mapping) else None
    return tag if isinstance(tag, str) else ""


def published_kind(payload: bytes) -> EventKind:
    """The same of an event as queues and the logs of trees have it: `{"id": …, "msg": …}`."""
    head = _PUBLISHED.match(payload)
    kind = None if head is None else _BY_TAG.get(head[1])
    if kind is not None:
        return kind
    match _object(payload):
        case {"msg": message}:
            return event_kind(message)
        case _:
            return UnknownEvent


def read_event(message: JsonMapping) -> EventMsg:
    """The event that a message is; one that is not sound is an `UnknownEvent`, as one of an unknown kind.

    Where a large text is only referred to, and its field holds texts alone, a note stands in its place.
    """
    told = event_of(message)
    if isinstance(told, UnknownEvent) and event_kind(message) is not UnknownEvent:
        return event_of(resolve(message, lambda _: None)) if next(references(message), None) else told
    return told


def published_event(payload: bytes) -> EventMsg:
    """The event that queues and the logs of trees have so, as `read_event` reads it."""
    return read_event(orjson.loads(payload)["msg"])
