"""Lines of a rollout read by the models of the protocol, and what the models write of them and of events.

The product writes lines from its own records and reads them as JSON; tests hold both against the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import BaseModel, ValidationError

from orchestrator.protocol.codec import (
    Compacted,
    DendroFact,
    RolloutItem,
    SessionMeta,
    TurnContext,
    UnknownRolloutItem,
    _fault,
    _object,
    _rest,
    _Unreadable,
    event_msg,
    rollout_item,
)
from orchestrator.protocol.events import EventModel, EventMsg, UnknownEvent
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.items import UnknownItem
from orchestrator.protocol.submission import Event, ProtocolError
from orchestrator.protocol.wire import ItemModel, JsonObject, JsonValue

_OWN_TYPES: Final = {"id": str, "seq": int, "epoch": int, "agent_id": int, "salt": str, "chain": str}


class MalformedEvent(ProtocolError):
    """The value is not an event, or a known event with wrong fields."""


class MalformedRolloutLine(ProtocolError):
    """The line is not one of a rollout, or a known item with wrong fields."""


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A line of the log. `type` on the wire follows from the item's class.

    `id` is the `Event.id` the item belongs to, `seq` its place, `epoch` the claim that
    wrote it, `agent_id` its agent in the tree; `salt` and `chain` tie it to the line before.
    """

    timestamp: str
    item: RolloutItem
    id: str | None = None
    seq: int | None = None
    epoch: int | None = None
    agent_id: int | None = None
    salt: str | None = None
    chain: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


def encode_event(event: Event) -> bytes:
    """A line of the EQ, without its newline."""
    rest = _members(event.extra)
    return b'{"id":%b,"msg":%b%b}' % (orjson.dumps(event.id), encode_msg(event.msg), rest)


def encode_msg(msg: EventMsg) -> bytes:
    """The event alone, as it stands in `msg` and in a rollout's payload."""
    return _dump(msg)


def parse_event(data: bytes | JsonObject) -> Event:
    """Reads one line of the EQ, or its value; raises `MalformedEvent`."""
    try:
        frame = _object(data) if isinstance(data, bytes) else data
    except _Unreadable as error:
        raise MalformedEvent(str(error)) from None
    event_id = frame.get("id")
    if not isinstance(event_id, str):
        raise MalformedEvent("id: a string is required")
    msg = frame.get("msg")
    try:
        parsed = event_msg(msg)
    except ValidationError as error:
        raise MalformedEvent(_fault(error, msg, "msg")) from None
    return Event(SubmissionId(event_id), parsed, _rest(frame, ("id", "msg")))


def parse_rollout_line(line: bytes, *, foreign: bool = False) -> RolloutLine:
    """Reads one line of a rollout; raises `MalformedRolloutLine`.

    With `foreign`, a payload of a known type that does not fit it is kept whole as
    `UnknownRolloutItem` (a newer version wrote it); in a log of our own that is an error.
    """
    try:
        record = _object(line)
    except _Unreadable as error:
        raise MalformedRolloutLine(str(error)) from None
    kind, timestamp = record.get("type"), record.get("timestamp")
    if not isinstance(kind, str) or not isinstance(timestamp, str) or "payload" not in record:
        raise MalformedRolloutLine("timestamp, type and payload are required")
    payload = record["payload"]
    item: RolloutItem
    try:
        item = rollout_item(kind, payload)
    except ValidationError as error:
        if not foreign:
            raise MalformedRolloutLine(_fault(error, payload, "payload")) from None
        item = UnknownRolloutItem(kind, payload)
    own = _own_fields(record, foreign)
    return RolloutLine(timestamp, item, **own, extra=_rest(record, ("timestamp", "type", "payload", *own)))


def _own_fields(record: JsonObject, foreign: bool) -> dict[str, Any]:
    """Dendro's fields of a line; another program may mean something else by the same name."""
    own = {name: record[name] for name, kind in _OWN_TYPES.items() if type(record.get(name)) is kind}
    wrong = [name for name in _OWN_TYPES if record.get(name) is not None and name not in own]
    if wrong and not foreign:
        raise MalformedRolloutLine(f"{wrong[0]}: {_OWN_TYPES[wrong[0]].__name__} expected")
    return own


def rollout_type(item: RolloutItem) -> str:
    """The `type` of the line that holds this item."""
    match item:
        case EventModel() | UnknownEvent():
            return "event_msg"
        case ItemModel() | UnknownItem():
            return "response_item"
        case DendroFact():
            return "dendro"
        case TurnContext():
            return "turn_context"
        case Compacted():
            return "compacted"
        case SessionMeta():
            return "session_meta"
        case UnknownRolloutItem():
            return item.type


def encode_payload(item: RolloutItem) -> bytes:
    """The `payload` of the line that holds this item: the bytes that the hash chain covers."""
    match item:
        case DendroFact():
            return b'{"kind":%b%b}' % (orjson.dumps(item.kind), _members(item.fields))
        case UnknownRolloutItem():
            return orjson.dumps(item.payload)
        case _:
            return _dump(item)


def encode_rollout_line(line: RolloutLine) -> bytes:
    """A line of a rollout, without its newline; own fields only where they have a value."""
    own = {name: value for name in _OWN_TYPES if (value := getattr(line, name)) is not None}
    return b'{"timestamp":%b,"type":%b,"payload":%b%b%b}' % (
        orjson.dumps(line.timestamp),
        orjson.dumps(rollout_type(line.item)),
        encode_payload(line.item),
        _members(own),
        _members(line.extra),
    )


def _dump(model: BaseModel) -> bytes:
    return model.__pydantic_serializer__.to_json(model)


def _members(fields: Mapping[str, JsonValue]) -> bytes:
    """Further members of an object that is being written, each with its leading comma."""
    return b"," + orjson.dumps(dict(fields))[1:-1] if fields else b""
