"""The arguments that a model gives to a tool, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.protocol.bounds import JSON_DEPTH, deeper_than
from orchestrator.protocol.wire import JsonObject, JsonValue


class BadArguments(ValueError):
    """The model's arguments are not what the tool takes; the message is the call's output."""


class Arguments(BaseModel):
    """The base of every tool's arguments: unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


A = TypeVar("A", bound=Arguments)


def parsed(model: type[A], arguments: str | Mapping[str, JsonValue]) -> A:
    """The checked arguments; raises `BadArguments` with what is wrong, in one line."""
    try:
        value = orjson.loads(arguments) if isinstance(arguments, str) else dict(arguments)
        return model.model_validate(value)
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"failed to parse function arguments: {error}") from error
    except ValidationError as error:
        raise BadArguments(f"failed to parse function arguments: {_first(error)}") from error


def json_object(text: str, most: int) -> JsonObject:
    """The object that a model wrote for a tool of somebody else; raises `BadArguments` for what is none.

    `most` is how many bytes it may have; it may be nested in `JSON_DEPTH` levels.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise BadArguments(f"{size:,} bytes of arguments are given, at most {most:,} are taken")
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"failed to parse function arguments: {error}") from error
    if not isinstance(value, dict):
        raise BadArguments("failed to parse function arguments: they are no JSON object")
    if deeper_than(value, JSON_DEPTH):
        raise BadArguments(f"the arguments are nested deeper than {JSON_DEPTH} levels")
    return value


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
