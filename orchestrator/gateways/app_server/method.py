"""A method of the app-server: what it takes, who may call it, and how it is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from orchestrator.core.frozen import record
from orchestrator.gateways.app_server.messages import NotMeant, RpcError, bad_params, invalid
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.protocol.bounds import MESSAGE_VALUES, more_values_than
from orchestrator.protocol.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.door import Door


class Params(BaseModel):
    """The parameters of a method, in camel case on the wire; members that are not listed are ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=False, defer_build=True
    )


class NoParams(Params):
    """A method that takes nothing; `params` may be left out."""


class Absent:
    """A call without `params`."""


ABSENT = Absent()


class Whose(Enum):
    """The owner of what a method is about, with the words for those who are not meant."""

    ANYONES = ""
    """Sessions of the client's own namespace, and what is the same for all."""
    MACHINES = "files and commands of the machine are its user's: work in a session instead"
    """Not for a namespace's token."""
    KEYS = "keys of providers are the deployment's here: whoever runs the workers signs in, on their machine"
    """The same, of the machine's sign-in."""
    SETTINGS = "the settings' file is the machine's user's: name settings for the thread instead"
    """For the machine's user without a token."""

    def admits(self, principal: Principal) -> bool:
        """Whether it is for this principal, whatever its scope."""
        if self is Whose.ANYONES:
            return True
        return not principal.is_tenant and not (self is Whose.SETTINGS and principal.token)


Result = Mapping[str, Any]


@record
class Method:
    """A method of a table: `answer` gets the door and the checked parameters, and returns the result.

    It raises `RpcError` to refuse. A result stands on the wire before what the method leads to is told,
    unless the method `waits`: then others are answered meanwhile.
    """

    params: type[Params]
    answer: Callable[[Door, Any], Awaitable[Result]]
    scope: Scope
    """The least scope that may call it."""
    whose: Whose = Whose.ANYONES
    experimental: bool = False
    experimental_fields: frozenset[str] = frozenset()
    """Members of `params` for clients that asked for `experimentalApi`, and for no others."""
    waits: bool = False
    before_initialize: bool = False
    """Whether it is served before the handshake."""
    of_connection: bool = False
    """Whether it means nothing without a connection that stays: requests over HTTP have none."""

    def check(self, name: str, principal: Principal) -> None:
        """Raises `RpcError`, `NotPermitted` for a principal that may not call it."""
        if not self.whose.admits(principal):
            raise NotMeant(self.whose.value)
        principal.require(self.scope, name)

    def checked(
        self, name: str, principal: Principal, given: JsonValue | Absent, *, experimental: bool
    ) -> Params:
        """The parameters of a call; raises `RpcError`, `NotPermitted` for one that is not served.

        `experimental`: whether its client asked for `experimentalApi`.
        """
        if self.experimental and not experimental:
            raise RpcError(f"{name} requires experimentalApi capability")
        if isinstance(given, Absent):
            if not issubclass(self.params, NoParams):
                raise RpcError("Invalid request: missing field `params`")
            given = {}
        params = {} if given is None else given
        if not isinstance(params, dict):
            raise bad_params("an object is expected")
        if more_values_than(params, MESSAGE_VALUES):
            raise bad_params(f"at most {MESSAGE_VALUES:,} values in all are taken")
        if not experimental:
            for member in sorted(self.experimental_fields & params.keys()):
                if params[member] is not None:
                    raise RpcError(f"{name}.{member} requires experimentalApi capability")
        self.check(name, principal)
        try:
            return self.params.model_validate(params)
        except ValidationError as error:
            raise invalid(error) from None


# ── paging ────────────────────────────────────────────────────────────────────────────────────────
# Pages of short lists that stand in memory, by their numbers.


MOST = 100
MOST_CURSOR = 2_000
Limit = Annotated[int, Field(ge=0, le=1 << 32)]
CursorText = Annotated[str, Field(max_length=MOST_CURSOR)]
Row = TypeVar("Row")


class PageParams(Params):
    """A page that is asked for."""

    limit: Limit | None = None
    cursor: CursorText | None = None

    def most(self, usual: int = MOST, at_most: int = MOST) -> int:
        """The rows of the page: as many as are asked for, within bounds."""
        return max(1, min(self.limit or usual, at_most))


def page(rows: Sequence[Row], asked: PageParams) -> JsonObject:
    """`data` and `nextCursor`; raises `RpcError` for a cursor that is none."""
    first = _place(asked.cursor)
    last = first + asked.most()
    return {"data": list(rows[first:last]), "nextCursor": str(last) if last < len(rows) else None}


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 9:
        raise bad_params("cursor: this is no place of a list; give one that the list answered")
    return int(cursor)
