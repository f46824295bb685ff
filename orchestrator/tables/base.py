"""The base of every table of settings, and the mark of a field that can be set.

A table is one frozen pydantic model. Its fields name, type, default, limit and document what can be set;
the part that uses a table takes the record itself. Knows neither any setting nor where values come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NewType

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

Secret = NewType("Secret", str)
"""A value that is never shown: not in errors, not in `repr`, not by `doctor`."""

KIB = 1024
MIB = 1024 * KIB
LOOPBACK_URL = r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?(/[^\s?#]*)?"
ISSUER = rf"^(https://[^\s?#]*|{LOOPBACK_URL})$"
"""The address of an OpenID issuer: encrypted, but for one on loopback."""
NAME_CHARS = 1_000
_MARK = "setting"

FolderRule = Literal["free", "trusted", "down", "up"] | tuple[object, ...]
"""The effect of a folder's `dendro.toml` on a setting while no person has trusted the file.

free      set it: nothing comes of it that the person has not permitted
trusted   nothing: it loosens a bound, or names where data, keys or programs are
down, up  lower it, or raise it: only in the direction that permits less
a tuple   move it towards the first of these values, which permits least
"""


class Table(BaseModel):
    """A table of the configuration file, frozen; its types and limits are checked when it is made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A field's key, and what its reader must know beside type and limits."""

    key: str
    folder: FolderRule | None = None
    """None: as its record has it, see `TRUSTED_ONLY`; a folder may not set it."""
    milliseconds: bool = False
    """Whether people write milliseconds; the field holds seconds."""
    switch: bool = False
    """Of a list of fixed words: `true` is all of them, `false` none."""
    shown_default: str = ""


def setting(
    default: Any,
    key: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    pattern: str | None = None,
    hidden: bool = False,
    checked: bool = False,
    **mark: Any,
) -> Any:
    """A field that can be set under `key` (dotted; the field's name if empty).

    `hidden` keeps it from `repr`; with `checked` the default has to pass the field's own check, too.
    """
    return Field(
        default,
        ge=at_least,
        le=at_most,
        pattern=pattern,
        repr=not hidden,
        validate_default=checked or None,
        json_schema_extra={_MARK: Setting(key, **mark)},  # type: ignore[dict-item]
    )


@cache
def settings_of(record: type[Table]) -> tuple[tuple[str, Setting], ...]:
    """The fields of a record that can be set, each with its mark."""
    extras: Mapping[str, Any] = {name: each.json_schema_extra for name, each in record.model_fields.items()}
    return tuple((name, extra[_MARK]) for name, extra in extras.items() if extra)


def limits_of(spec: FieldInfo) -> tuple[float | None, float | None]:
    """The least and the most that a field takes; None is no limit."""
    least = [each.ge for each in spec.metadata if isinstance(each, Ge)]
    most = [each.le for each in spec.metadata if isinstance(each, Le)]
    return next(iter(least), None), next(iter(most), None)  # type: ignore[return-value]


def conflict(keys: str, found: str, allowed: str) -> PydanticCustomError:
    """An error about settings that do not fit together; `found` is what a person may be shown of them."""
    return PydanticCustomError("conflict", "{allowed}", {"keys": keys, "found": found, "allowed": allowed})


def unfit(allowed: str) -> PydanticCustomError:
    """An error about a value that its field's own check refuses; `allowed` says what would do."""
    return PydanticCustomError("unfit", "{allowed}", {"allowed": allowed})


def named(value: str | None) -> str | None:
    """A name as it was given; raises if it is blank, as nothing is found under it, or very long."""
    if value is not None and not 0 < len(value.strip()) <= NAME_CHARS:
        raise unfit(f"a name of 1 to {NAME_CHARS:,} characters; without this setting its default counts")
    return value
