"""Turns written values into a checked table, or into an error that says what is allowed.

Knows how people write values in files, variables and options; types and limits are the tables' own. Must not
know any particular setting, nor where layers come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator.core.frozen import record
from orchestrator.home import absolute
from orchestrator.settings.layers import Found, KeyPath, Layers, SettingsError
from orchestrator.tables import Setting, Table, limits_of, settings_of

T = TypeVar("T", bound=Table)


@record
class _Place:
    """The place where the value of a field was looked for."""

    path: KeyPath
    field: FieldInfo
    spec: Setting

    @property
    def hint(self) -> Any:
        return bare(self.field.annotation)


class TableReader:
    """Reads tables out of the layers."""

    def __init__(self, layers: Layers, user_home: Path) -> None:
        self.layers = layers
        self.warnings: list[str] = []
        self._user_home = user_home

    def is_set(self, path: KeyPath) -> bool:
        """Whether a source sets the key."""
        return bool(self.layers.below(path))

    def where(self, path: KeyPath) -> str:
        """The origin of a table or value, for error messages."""
        return next((found.origin.where for found in self.layers.below(path).values()), "settings")

    def table(self, record: type[T], prefix: KeyPath = (), **given: Any) -> T:
        """Fills a table from its fields' keys; fields that are not settings come in `given`.

        Raises `SettingsError` for what its model refuses.
        """
        places: dict[str, _Place] = {}
        fields = record.model_fields
        for name, spec in settings_of(record):
            path = (*prefix, *(spec.key or name).split("."))
            places[name] = place = _Place(path, fields[name], spec)
            if (found := self._found(place)) is not None:
                given[name] = found
        try:
            return record(**given)
        except ValidationError as error:
            raise self._refused(error.errors(include_input=False)[0], prefix, places) from None

    def text_of_file(self, path: KeyPath) -> str | None:
        """The content of the file that a setting names, None if it names none."""
        found = self._one(path)
        if found is None:
            return None
        file = self._path(found.value, found)
        if not isinstance(file, Path):
            raise _error(path, found, _shown(found), _STRING)
        try:
            return str(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                self.where(path), path[0], str(file), f"a readable text file ({error})"
            ) from error

    def _found(self, place: _Place) -> Any:
        """The value of a field, as its model takes it; None if nobody gave it."""
        if get_origin(place.hint) is Mapping:
            return self._strings(place.path)
        found = self._one(place.path)
        return None if found is None else self._prepared(found, place)

    def _one(self, path: KeyPath) -> Found | None:
        found = self.layers.take(path)
        if found is None and (table := self.layers.below(path)):
            raise _error(path, next(iter(table.values())), "a table", "a single value")
        return found

    def _strings(self, path: KeyPath) -> dict[str, str] | None:
        below = self.layers.below(path)
        if not below:
            return None
        strings: dict[str, str] = {}
        for name, found in below.items():
            self.layers.take(path + name)
            if found.value == {}:
                continue
            if len(name) != 1 or not isinstance(found.value, (str, int, float)):
                raise _error(path + name, found, _shown(found), "a table of strings")
            # Numbers are taken as they were typed: `-c shell_environment_policy.set.N=1` means the text "1".
            strings[name[0]] = found.value if isinstance(found.value, str) else found.text or str(found.value)
        return strings

    def _prepared(self, found: Found, place: _Place) -> object:
        """The value with what people may leave to the reader: quotes, lists by commas, folders' bases."""
        if get_origin(place.hint) is tuple:
            return self._list(found, place)
        value = self._item(found.value, found, place.hint)
        if place.spec.milliseconds and isinstance(value, (int, float)) and not isinstance(value, bool):
            return value / 1000
        return value

    def _list(self, found: Found, place: _Place) -> object:
        item = get_args(place.hint)[0]
        if place.spec.switch and isinstance(found.value, bool):
            return get_args(item) if found.value else ()
        value = found.value
        if found.text is not None and isinstance(value, str):
            value = [item.strip() for item in found.text.split(",") if item.strip()]
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(self._item(each, found, item) for each in value)

    def _item(self, value: object, found: Found, hint: Any) -> object:
        if hint is Path:
            return self._path(value, found)
        return _text(value, found) if hint is str else value

    def _path(self, value: object, found: Found) -> object:
        text = _text(value, found)
        return absolute(text, found.origin.base, self._user_home) if isinstance(text, str) else text

    def _refused(self, error: ErrorDetails, prefix: KeyPath, places: Mapping[str, _Place]) -> SettingsError:
        context = error.get("ctx", {})
        if error["type"] == "conflict":
            return SettingsError("settings", context["keys"], context["found"], context["allowed"])
        place = places[str(error["loc"][0])]
        allowed = _allowed(error, place)
        found = self.layers.take(place.path)
        if found is None:
            return SettingsError(self.where(prefix), ".".join(place.path), repr(place.field.default), allowed)
        return _error(place.path, found, _shown(found), allowed)


def bare(hint: Any) -> Any:
    """The type without `| None`, and without the name of a `NewType`."""
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return hint.__supertype__ if isinstance(hint, NewType) else hint


def _text(value: object, found: Found) -> object:
    """The text that a person means; `-c model=5` is one, too. What cannot be one stays as it is."""
    if isinstance(value, Path):
        return str(value)
    typed = found.text is not None and not isinstance(found.value, list)
    return found.text if typed and not isinstance(value, str) else value


_STRING = "a string in quotes"
_ALLOWED: Mapping[str, Callable[[Mapping[str, Any], Setting], str]] = {
    "bool_type": lambda ctx, spec: "true or false",
    "float_type": lambda ctx, spec: "a number",
    "int_type": lambda ctx, spec: "a whole number",
    "tuple_type": lambda ctx, spec: "a list",
    "string_type": lambda ctx, spec: _STRING,
    "is_instance_of": lambda ctx, spec: _STRING,
    "greater_than_equal": lambda ctx, spec: f"at least {_written(ctx['ge'], spec)}",
    "less_than_equal": lambda ctx, spec: f"at most {_written(ctx['le'], spec)}",
    "string_pattern_mismatch": lambda ctx, spec: f"must match {ctx['pattern'].removeprefix('^')[:-1]}",
    "unfit": lambda ctx, spec: str(ctx["allowed"]),
}
"""The message for each kind of refusal that pydantic makes of a table's fields."""


def _allowed(error: ErrorDetails, place: _Place) -> str:
    """The values that would be accepted in the place of a refused value."""
    kind = error["type"]
    if place.spec.switch:
        return f"true, false, or a list of {', '.join(get_args(get_args(place.hint)[0]))}"
    if kind == "literal_error":
        return "allowed are " + ", ".join(f'"{each}"' for each in get_args(place.hint))
    least, _ = limits_of(place.field)
    if kind == "finite_number":
        return "a finite number" if least is None else f"at least {_written(least, place.spec)}, and finite"
    told = _ALLOWED.get(kind)
    return told(error.get("ctx", {}), place.spec) if told else error["msg"]


def _written(limit: float, spec: Setting) -> str:
    return f"{limit * 1000 if spec.milliseconds else limit:g}"


def _shown(found: Found) -> str:
    if found.text is not None:
        return repr(found.text)
    return f'"{found.value}"' if isinstance(found.value, str) else str(found.value)


def _error(path: KeyPath, found: Found, shown: str, allowed: str) -> SettingsError:
    hidden = path[0] == "webhook" or any(
        part in {"set", "env"} or "secret" in part or "headers" in part for part in path
    )
    return SettingsError(found.origin.where, ".".join(path), "(hidden)" if hidden else shown, allowed)
