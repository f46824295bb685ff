"""Messages of a client: requests, notifications and answers, and what is none of them.

A message that cannot be answered (no JSON, no object, no method and no id) is ignored, as clients expect.
"""

from __future__ import annotations

from typing import TypeAlias

import orjson

from orchestrator.core.frozen import record
from orchestrator.protocol.bounds import MESSAGE_VALUES, more_values_than
from orchestrator.protocol.wire import JsonObject, JsonValue

RequestId: TypeAlias = str | int
ID_CHARS = 1024


@record
class Request:
    """A call that is answered; `params` is None where there were none."""

    id: RequestId
    method: str
    params: JsonValue
    has_params: bool


@record
class Notification:
    """A call that is not answered."""

    method: str


@record
class Answer:
    """The client's answer to a request of the server: a result, or None for an error."""

    id: RequestId
    result: JsonObject | None
    error: str = ""
    """The text of an error, as far as it has one."""


@record
class Unreadable:
    """A message that nothing is done with."""


Message: TypeAlias = Request | Notification | Answer | Unreadable
UNREADABLE = Unreadable()


@record
class Received:
    """A message, and whether it came with the member `jsonrpc`."""

    message: Message
    versioned: bool = False


def received(data: bytes) -> Received:
    """Reads one message; never fails."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return Received(UNREADABLE)
    if not isinstance(value, dict):
        return Received(UNREADABLE)
    return Received(_message(value), "jsonrpc" in value)


def _message(value: JsonObject) -> Message:
    id, method = _id(value.get("id")), value.get("method")
    if isinstance(method, str) and "id" not in value:
        return Notification(method)
    if id is None:
        return UNREADABLE
    if isinstance(method, str):
        return Request(id, method, value.get("params"), "params" in value)
    result = value.get("result")
    if method is not None:
        return UNREADABLE
    if isinstance(result, dict) and not more_values_than(result, MESSAGE_VALUES):
        return Answer(id, result)
    return Answer(id, None, _error_text(value))


def _error_text(value: JsonObject) -> str:
    error = value.get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return said if isinstance(said, str) else ""


def _id(value: JsonValue) -> RequestId | None:
    """A request's id; true and false are numbers to Python, and no ids here."""
    if isinstance(value, str):
        return value if len(value) <= ID_CHARS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def response(id: RequestId, result: JsonObject) -> bytes:
    """An answer that is a result."""
    return orjson.dumps({"id": id, "result": result})


def error(id: RequestId, code: int, message: str) -> bytes:
    """An answer that is an error."""
    return orjson.dumps({"error": {"code": code, "message": message}, "id": id})


def notification(method: str, params: JsonObject, at_ms: int) -> bytes:
    """A notification with the time of what it tells."""
    return orjson.dumps({"method": method, "params": params, "emittedAtMs": at_ms})


def request(id: int, method: str, params: JsonObject) -> bytes:
    """A request of the server's own."""
    return orjson.dumps({"method": method, "id": id, "params": params})


VERSION = b'{"jsonrpc":"2.0",'


def versioned(message: bytes) -> bytes:
    """The message with the member `jsonrpc`, for a client that sends it."""
    return VERSION + message[1:]
