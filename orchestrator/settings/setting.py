"""The mark of a field that can be set: its key, its limits, and what a folder's file may do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NewType, TypeVar

Secret = NewType("Secret", str)
"""A value that is never shown: not in errors, not in `repr`, not by `doctor`."""

KIB = 1024
MIB = 1024 * KIB
SETTING = "setting"
EMPTY: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")

FolderRule = Literal["free", "trusted", "down", "up"] | tuple[object, ...]
"""What the `dendro.toml` of a folder may do with a setting while no person has trusted it.

free      set it: nothing comes of it that the person has not permitted
trusted   nothing: it loosens a bound, or names where data, keys or programs are
down, up  lower it, or raise it: only in the direction that permits less
a tuple   move it towards the first of these values, which permits least
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the reader must know of one field beside its type."""

    key: str
    folder: FolderRule | None = None
    """None: as its record has it, see `TRUSTED_ONLY`; a folder may not set it."""
    at_least: float | None = None
    at_most: float | None = None
    milliseconds: bool = False
    choices: tuple[str, ...] = ()
    """Of a list: what may stand in it. `true` is all of them, `false` none."""
    pattern: str = ""
    shown_default: str = ""


def setting(default: T, key: str = "", *, hidden: bool = False, **limits: Any) -> T:
    """A field that can be set under `key` (dotted; the field's name if empty); `hidden` from `repr`."""
    metadata = {SETTING: Setting(key, **limits)}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: default, metadata=metadata, repr=not hidden)
    return field(default=default, metadata=metadata, repr=not hidden)
