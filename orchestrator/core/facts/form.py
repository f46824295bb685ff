"""How a field of a fact stands in JSON, where it does not stand there under its own name and as it is.

A field without a default is always written. One with a default is left out while it has that value, and an
absent one has it; `always` is for those that are written all the same, and may be missing where an early
version wrote, or somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.frozen import record

FORM = "form"
"""The key under which a field's metadata keep its form."""


@record
class Form:
    """`name` in JSON (empty: the field's own), and the two ways of a value that is no JSON."""

    name: str = ""
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    always: bool = False


def form(
    name: str = "",
    read: Callable[[Any], Any] | None = None,
    write: Callable[[Any], Any] | None = None,
    *,
    always: bool = False,
) -> Mapping[str, Form]:
    """The metadata of a field that has a form of its own."""
    return {FORM: Form(name, read, write, always)}


ALWAYS: Mapping[str, Form] = form(always=True)


def _text(value: str | None) -> str:
    return value or ""


def _none(value: str | None) -> str | None:
    return value or None


EMPTY: Mapping[str, Form] = form(read=_none, write=_text, always=True)
"""The form of a field that is None in the record and an empty text in JSON."""
LIST: Mapping[str, Form] = form(read=tuple, write=list)
"""The form of a field that is a tuple in the record and an array in JSON."""
