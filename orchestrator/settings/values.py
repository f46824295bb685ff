"""From what somebody wrote to the value of a typed field, or to an error that says what is allowed.

Knows types and limits; must not know any particular setting, nor where layers come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, NewType, Union, get_args, get_origin

from orchestrator.settings.layers import Found, KeyPath, Layers, SettingsError, absolute
from orchestrator.settings.setting import Setting


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Nobody said anything; the field's default counts. None is a value."""


class _Unfit(Exception):
    """A value that does not fit its type; carries what is allowed."""


class Reader:
    """Reads typed values out of the layers."""

    def __init__(self, layers: Layers, user_home: Path) -> None:
        self.layers = layers
        self.warnings: list[str] = []
        self._user_home = user_home

    def is_set(self, path: KeyPath) -> bool:
        """Whether anybody said anything about a key."""
        return bool(self.layers.below(path))

    def where(self, path: KeyPath) -> str:
        """Where a table or value comes from, for error messages."""
        return next((found.origin.where for found in self.layers.below(path).values()), "settings")

    def value(self, path: KeyPath, hint: Any, spec: Setting) -> Any:
        """The value of one setting, checked against type and limits; `UNSET` if nobody gave it."""
        if get_origin(bare(hint)) is Mapping:
            return self._strings(path)
        found = self.layers.take(path)
        if found is None:
            if table := self.layers.below(path):
                raise _error(path, next(iter(table.values())), "a table", "a single value")
            return UNSET
        if spec.choices and isinstance(found.value, bool):
            return spec.choices if found.value else ()
        try:
            return _check_limits(self._convert(found, bare(hint)), spec)
        except _Unfit as unfit:
            raise _error(path, found, _shown(found), str(unfit)) from None

    def text_of_file(self, path: KeyPath) -> str | None:
        """The content of the file that a setting names, None if it names none."""
        file = self.value(path, Path, Setting(path[0]))
        if file is UNSET:
            return None
        try:
            return str(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                self.where(path), path[0], str(file), f"a readable text file ({error})"
            ) from error

    def _strings(self, path: KeyPath) -> Any:
        below = self.layers.below(path)
        if not below:
            return UNSET
        strings: dict[str, str] = {}
        for name, found in below.items():
            self.layers.take(path + name)
            if found.value == {}:
                continue
            if len(name) != 1 or not isinstance(found.value, (str, int, float)):
                raise _error(path + name, found, _shown(found), "a table of strings")
            # Numbers are taken as they were typed: `-c shell_environment_policy.set.N=1` means the text "1".
            strings[name[0]] = found.value if isinstance(found.value, str) else found.text or str(found.value)
        return MappingProxyType(strings)

    def _convert(self, found: Found, hint: Any) -> Any:
        origin = get_origin(hint)
        if origin is Literal:
            return _one_of(found, get_args(hint))
        if origin is tuple:
            return tuple(self._item(item, found, get_args(hint)[0]) for item in _items(found))
        return self._item(found.value, found, hint)

    def _item(self, value: object, found: Found, hint: Any) -> Any:
        if hint is Path:
            return absolute(_string(value, found), found.origin.base, self._user_home)
        if hint is str:
            return _string(value, found)
        if hint is bool:
            return _bool(value)
        if hint is int or hint is float:
            return _number(value, hint)
        raise TypeError(f"no reading rule for {hint!r}")


def bare(hint: Any) -> Any:
    """The type without `| None`, and without the name of a `NewType`."""
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return hint.__supertype__ if isinstance(hint, NewType) else hint


def _one_of(found: Found, allowed: tuple[str, ...]) -> str:
    if found.value not in allowed:
        raise _Unfit("allowed are " + ", ".join(f'"{each}"' for each in allowed))
    return str(found.value)


def _items(found: Found) -> list[object]:
    if isinstance(found.value, (list, tuple)):
        return list(found.value)
    if found.text is not None and isinstance(found.value, str):
        return [item.strip() for item in found.text.split(",") if item.strip()]
    raise _Unfit("a list")


def _string(value: object, found: Found) -> str:
    if isinstance(value, (str, Path)):
        return str(value)
    if found.text is not None and not isinstance(found.value, list):
        return found.text
    raise _Unfit("a string in quotes")


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Unfit("true or false")
    return value


def _number(value: object, kind: type[int] | type[float]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise _Unfit("a whole number" if kind is int else "a number")
    return kind(value)


def _check_limits(value: Any, spec: Setting) -> Any:
    if spec.pattern and not re.fullmatch(spec.pattern, value):
        raise _Unfit(f"must match {spec.pattern}")
    if spec.choices and not set(value) <= set(spec.choices):
        raise _Unfit(f"true, false, or a list of {', '.join(spec.choices)}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    value = value / 1000 if spec.milliseconds else value
    # Written so that a NaN, which is neither below nor above anything, is refused as well.
    if spec.at_least is not None and not value >= spec.at_least:
        raise _Unfit(f"at least {_written(spec.at_least, spec)}")
    if spec.at_most is not None and not value <= spec.at_most:
        raise _Unfit(f"at most {_written(spec.at_most, spec)}")
    return value


def _written(limit: float, spec: Setting) -> str:
    return f"{limit * 1000 if spec.milliseconds else limit:g}"


def _shown(found: Found) -> str:
    if found.text is not None:
        return repr(found.text)
    return f'"{found.value}"' if isinstance(found.value, str) else str(found.value)


def _error(path: KeyPath, found: Found, shown: str, allowed: str) -> SettingsError:
    hidden = any(part == "set" or "secret" in part or "headers" in part for part in path)
    return SettingsError(found.origin.where, ".".join(path), "(hidden)" if hidden else shown, allowed)
