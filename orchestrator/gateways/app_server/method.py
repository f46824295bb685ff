"""A method of the app-server: what it takes, who may call it, and how it is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from orchestrator.gateways.principals import Scope

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.door import Door


class Params(BaseModel):
    """The parameters of a method, in camel case on the wire; members that are not listed are ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=False, defer_build=True
    )


class NoParams(Params):
    """A method that takes nothing; `params` may be left out."""


Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a table: `answer` gets the door and the checked parameters, and returns the result.

    It raises `RpcError` to refuse. A result stands on the wire before what the method leads to is told,
    unless the method `waits`: then others are answered meanwhile.
    """

    params: type[Params]
    answer: Callable[[Door, Any], Awaitable[Result]]
    scope: Scope = Scope.READ
    experimental: bool = False
    experimental_fields: frozenset[str] = frozenset()
    """Members of `params` for clients that asked for `experimentalApi`, and for no others."""
    waits: bool = False
    before_initialize: bool = False
    """Whether it is served before the handshake."""
