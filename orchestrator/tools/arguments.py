"""The arguments that a model gives to a tool, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError


class BadArguments(ValueError):
    """The model's arguments are not what the tool takes; the message is the call's output."""


class Arguments(BaseModel):
    """The base of every tool's arguments: unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ShellArguments(Arguments):
    command: tuple[str, ...] = Field(min_length=1)
    workdir: str | None = None
    timeout_ms: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("timeout_ms", "timeout"))
    with_escalated_permissions: bool = False
    justification: str | None = None


class LocalShellAction(Arguments):
    """`LocalShellAction::Exec` (the September 2025 specification, Local shell)."""

    command: tuple[str, ...] = Field(min_length=1)
    working_directory: str | None = None
    timeout_ms: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("timeout_ms", "timeout"))
    env: dict[str, str] | None = None
    user: str | None = None
    with_escalated_permissions: bool = False
    justification: str | None = None


class PatchArguments(Arguments):
    input: str


class PlanStep(Arguments):
    step: str
    status: Literal["pending", "in_progress", "completed"]


class PlanArguments(Arguments):
    explanation: str | None = None
    plan: tuple[PlanStep, ...]


class ImageArguments(Arguments):
    path: str


A = TypeVar("A", bound=Arguments)


def parsed(model: type[A], arguments: str | Mapping[str, Any]) -> A:
    """The checked arguments; raises `BadArguments` with what is wrong, in one line."""
    try:
        value = orjson.loads(arguments) if isinstance(arguments, str) else dict(arguments)
        return model.model_validate(value)
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"failed to parse function arguments: {error}") from error
    except ValidationError as error:
        raise BadArguments(f"failed to parse function arguments: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
