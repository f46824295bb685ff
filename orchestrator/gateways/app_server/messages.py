"""Messages of a client: requests, notifications and answers, and what is none of them.

A message that cannot be answered (no JSON, no object, no method and no id) is ignored, as clients expect.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import orjson
from pydantic import ValidationError

from orchestrator.core.frozen import record
from orchestrator.protocol.bounds import MESSAGE_VALUES, more_values_than
from orchestrator.protocol.wire import JsonObject, JsonValue

# ── errors ────────────────────────────────────────────────────────────────────────────────────────
# Errors of JSON-RPC: the codes, and the refusals that clients know by their text.


class Code(IntEnum):
    """The kinds of errors that a request is answered with."""

    REFUSED = -32600
    """The request may not be in this state, or is no request."""
    UNKNOWN_METHOD = -32601
    BAD_PARAMS = -32602
    INTERNAL = -32603
    OVERLOADED = -32001


class RpcError(Exception):
    """An answer that is an error; the connection goes on."""

    def __init__(self, message: str, code: Code = Code.REFUSED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class NotThere(RpcError):
    """The thing that a request names is unknown here, or another namespace's: the same words for both."""


class NotMeant(RpcError):
    """The request is not for this client, whatever its scope."""


def no_rollout(thread: str) -> RpcError:
    """The thread is unknown here, or belongs to another namespace."""
    return NotThere(f"no rollout found for thread id {thread}")


def not_found(thread: str) -> RpcError:
    """The same, for a method that wants a thread at work."""
    return NotThere(f"thread not found: {thread}")


def unreadable(error: Exception) -> str:
    """The words about a log whose older part the archive does not give."""
    return f"a log that this needs cannot be read to its end now: {error}"


def bad_params(why: str) -> RpcError:
    """A member of `params` that cannot be used; `why` names it."""
    return RpcError(f"Invalid params: {why}", Code.BAD_PARAMS)


def invalid(error: ValidationError, member: str = "") -> RpcError:
    """The first thing that is wrong with params, or a member of them; what is missing as clients know it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(filter(None, (member, *map(str, first["loc"]))))
    if first["type"] == "missing" and not member:
        return RpcError(f"Invalid request: missing field `{place}`", Code.BAD_PARAMS)
    return bad_params(f"{place}: {first['msg']}")


# ── messages ──────────────────────────────────────────────────────────────────────────────────────


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
