"""Errors of JSON-RPC: the codes, and the refusals that clients know by their text."""

from __future__ import annotations

from enum import IntEnum

from pydantic import ValidationError


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


def no_rollout(thread: str) -> RpcError:
    """The thread is unknown here, or belongs to another namespace."""
    return RpcError(f"no rollout found for thread id {thread}")


def not_found(thread: str) -> RpcError:
    """The same, for a method that wants a thread at work."""
    return RpcError(f"thread not found: {thread}")


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
