"""How a protocol type meets JSON: the base models, what may be absent, tagged unions.

Every other module of the package builds on this one. It must not know any particular
op, event or item. Values come in as `orjson.loads` made them (dict, list, str, int,
float, bool, None), which is why validation is strict about numbers and booleans but
takes a list for a tuple and a string for an enum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, RootModel, Strict
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

JsonValue: TypeAlias = Any
"""Any value that `orjson.loads` returns, of another author: a model, a provider, a client, another version.

It passes through whole. Its author may have written anything in it: a reader asks each member what it is. A
shape of our own has a type of its own.
"""

JsonObject: TypeAlias = dict[str, JsonValue]
"""An object of such values, which belongs to its holder: the holder may change it."""
JsonMapping: TypeAlias = Mapping[str, JsonValue]
"""An object of such values that is only read."""

Int = Annotated[int, Strict()]
Uint = Annotated[int, Strict(), Field(ge=0)]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]


class Source(StrEnum):
    """The public document that states a type; `docs/protocol/sources.md` says more."""

    SEPTEMBER_2025 = "the September 2025 specification"
    RECORDED = "the recorded Codex, version 0.42.0"
    OCTOBER_2025 = "protocol v1, October 2025"
    NOVEMBER_2025 = "protocol v1 with subagents, November 2025"
    DECEMBER_2025 = "protocol v1 with questions and plans, December 2025"
    JANUARY_2026 = "protocol v1, January 2026"
    DENDRO = "Dendro"


class Unset(Enum):
    """The type of `UNSET`, for a field where leaving out and `null` mean two things."""

    UNSET = "unset"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # By instance only: the JSON string "unset" must not read as the sentinel.
        return core_schema.is_instance_schema(cls)

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset.UNSET


def _is_none(value: object) -> bool:
    return value is None


def _is_unset(value: object) -> bool:
    return value is UNSET


Maybe = Annotated[T | None, Field(exclude_if=_is_none)]
"""An option that is left out while it has no value; a `null` read means the same.

A field typed `T | None` without it is always written, `null` included.
"""

Settable = Annotated[T | Unset | None, Field(exclude_if=_is_unset)]
"""Three states: `UNSET` (left out: keep), `None` (`null`: clear), a value (set)."""

WhenTrue = Annotated[T, Field(exclude_if=operator.not_)]
"""Left out while it is empty or false, which is also what its absence means."""


class WireModel(BaseModel):
    """A value with named fields; fields that it does not know are kept and written again."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        protected_namespaces=(),
        defer_build=True,
    )
    stated_in: ClassVar[Source] = Source.SEPTEMBER_2025


class OpModel(WireModel):
    """A client's request; the base of every `Op`. Unknown fields are dropped, at any depth."""

    model_config = ConfigDict(extra="ignore")
    type: str


class EventModel(WireModel):
    """A report of an agent; the base of every `EventMsg`."""

    type: str


class ItemModel(WireModel):
    """An item of the model's conversation; the base of every `ResponseItem`."""

    type: str


def written(model: BaseModel) -> JsonObject:
    """The JSON object that a model is sent and stored as: the one place where a payload is made of it."""
    payload: JsonObject = model.__pydantic_serializer__.to_python(model, mode="json")
    return payload


class Unknown(RootModel[JsonObject]):
    """A variant that this version does not know, held as it came."""

    model_config = ConfigDict(frozen=True)

    @property
    def type(self) -> str:
        """The tag it came with; empty if it had none."""
        tag = self.root.get("type")
        return tag if isinstance(tag, str) else ""


UNKNOWN_TAG = "?"


def tag_of(model: type[BaseModel], key: str = "type") -> str:
    """The wire tag of a variant: the one value of its `Literal` discriminator."""
    annotation = model.model_fields[key].annotation
    (tag,) = get_args(annotation)
    return str(tag)


@dataclass(frozen=True, eq=False)  # by identity: unions of annotated types are hashed
class OneOf:
    """Marks a union as tagged: `Annotated[A | B | UnknownX, OneOf()]`.

    A union that contains a subclass of `Unknown` reads tags it does not know into that
    class; one without it refuses them. `synonyms` are further spellings of a tag that are
    read and never written; `rewrite` turns another wire form into the one written here.
    """

    key: str = "type"
    synonyms: Mapping[str, str] = field(default_factory=dict)
    rewrite: Callable[[JsonValue], JsonValue] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = get_args(source)
        choices = {self._name(member): handler.generate_schema(member) for member in members}
        known = sorted(tag for tag in choices if tag != UNKNOWN_TAG)
        union = core_schema.tagged_union_schema(
            choices,
            self._discriminator(frozenset(choices)),
            custom_error_type="tag",
            custom_error_message=f"{self.key} must be one of {', '.join(known)}",
        )
        if self.rewrite is None and not self.synonyms:
            return union
        return core_schema.no_info_before_validator_function(self._normalise, union)

    def _name(self, member: type[BaseModel]) -> str:
        return UNKNOWN_TAG if issubclass(member, Unknown) else tag_of(member, self.key)

    def _discriminator(self, known: frozenset[str]) -> Callable[[Any], str | None]:
        fallback = UNKNOWN_TAG if UNKNOWN_TAG in known else None
        key = self.key

        def choose(value: Any) -> str | None:
            if isinstance(value, dict):
                tag = value.get(key)
                if not isinstance(tag, str):
                    return None
                return tag if tag in known else fallback or tag
            if isinstance(value, Unknown):
                return UNKNOWN_TAG
            return getattr(value, key, None)

        return choose

    def _normalise(self, value: JsonValue) -> JsonValue:
        if self.rewrite is not None:
            value = self.rewrite(value)
        if isinstance(value, dict):
            tag = value.get(self.key)
            if isinstance(tag, str) and tag in self.synonyms:
                return {**value, self.key: self.synonyms[tag]}
        return value


def json_text(value: object) -> str:
    """A value as JSON; mappings that are no plain ones are objects, too."""
    return orjson.dumps(value, default=dict).decode()


def tags(union: Iterable[type[M]], key: str = "type") -> dict[str, type[M]]:
    """The variants of a union by wire tag, without its unknown one."""
    return {tag_of(member, key): member for member in union if not issubclass(member, Unknown)}
