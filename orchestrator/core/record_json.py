"""How a record of the log stands in JSON: `kind`, then its fields, each under its own name and as it is.

`form` says of a field what differs from that. A field without a default is always written. One with a default
is left out while it has that value, and an absent one has it; `always` is for those that are written all the
same, and may be missing where an early version wrote, or somebody else. Both ways are written out once for
each record, as straight code: a fold reads every record of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Never, TypeAlias, TypeVar, cast

from orchestrator.core.frozen import record, twin_of, written
from orchestrator.protocol.scalars import LargeText, StoredText
from orchestrator.protocol.wire import JsonMapping, JsonObject
from orchestrator.protocol.wire import written as dumped

Way: TypeAlias = Callable[[Never], object]
"""A function of one value, of whatever type the field or its JSON has: only the written code calls it."""

FORM = "form"
"""The key under which a field's metadata keep its form."""


@record
class Form:
    """`name` in JSON (empty: the field's own), and the two ways of a value that is no JSON.

    `rest` marks the field that holds whatever the record has no field for; it is written last.
    """

    name: str = ""
    read: Way | None = None
    write: Way | None = None
    always: bool = False
    rest: bool = False


def form(
    name: str = "",
    read: Way | None = None,
    write: Way | None = None,
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
REST: Mapping[str, Form] = {FORM: Form(rest=True)}
"""The form of the field that keeps, whole, the members that the record has no field for."""


# ── texts that may stand beside the log ───────────────────────────────────────────────────────────


def read_text(value: str | JsonObject) -> LargeText:
    return value if isinstance(value, str) else StoredText.model_validate(value)


def write_text(value: LargeText) -> str | JsonObject:
    return value if isinstance(value, str) else dumped(value)


def whole(text: LargeText) -> str:
    """The text itself; raises `TypeError` where only its reference is at hand."""
    if not isinstance(text, str):
        raise TypeError(f"a text of {text.bytes} bytes stands beside the log, and was not put back")
    return text


def _read_texts(values: Iterable[str | JsonObject]) -> tuple[LargeText, ...]:
    return tuple(map(read_text, values))


def _write_texts(values: Iterable[LargeText]) -> list[str | JsonObject]:
    return list(map(write_text, values))


TEXT: Mapping[str, Form] = form(read=read_text, write=write_text)
"""The form of a text so long, at times, that its entry has a reference in its place."""
TEXTS: Mapping[str, Form] = form(read=_read_texts, write=_write_texts)


# ── both ways of a record ─────────────────────────────────────────────────────────────────────────


R = TypeVar("R")
_PLAIN = Form()


def reader_of(cls: type[R]) -> Callable[[JsonMapping], R]:
    """The function that reads such a record; it raises `KeyError` where a field is not there."""
    named = [spec for spec in fields(cls) if not _form(spec).rest]  # type: ignore[arg-type]
    names = frozenset(_form(spec).name or spec.name for spec in named)
    scope: dict[str, object] = {"cls": cls, "twin": twin_of(cls), "names": names}
    stores = [f"made.{spec.name} = {_reading(spec, scope)}" for spec in fields(cls)]  # type: ignore[arg-type]
    lines = ["made = twin()", *stores, "made.__class__ = cls", "return made"]
    return cast(Callable[[JsonMapping], R], written("read", ["payload"], lines, scope))


def _reading(spec: Field[object], scope: dict[str, object]) -> str:
    form = _form(spec)
    name = form.name or spec.name
    if form.rest:
        return "{name: value for name, value in payload.items() if name not in names}"
    if spec.default is MISSING:
        value = f"payload[{name!r}]"
    else:
        scope[f"default_{spec.name}"] = spec.default
        value = f"payload.get({name!r}, default_{spec.name})"
    if form.read is None:
        return value
    scope[f"read_{spec.name}"] = form.read
    return f"read_{spec.name}({value})"


def writer_of(cls: type[R], kind: str | None = None) -> Callable[[R], JsonObject]:
    """The function that writes such a record: its kind, if it has one, and its fields, in their order."""
    scope: dict[str, object] = {}
    parts = [] if kind is None else [f"'kind': {kind!r}"]
    lines: list[str] = []
    for spec in fields(cls):  # type: ignore[arg-type]
        form = _form(spec)
        name, value = form.name or spec.name, f"made_of.{spec.name}"
        if form.write is not None:
            scope[f"write_{spec.name}"] = form.write
            value = f"write_{spec.name}({value})"
        always = spec.default is MISSING or form.always
        if form.rest:
            lines.append(f"made |= {value}")
        elif always and not lines:
            parts.append(f"{name!r}: {value}")
        elif always:
            lines.append(f"made[{name!r}] = {value}")
        else:
            scope[f"default_{spec.name}"] = spec.default
            lines.append(f"if made_of.{spec.name} != default_{spec.name}: made[{name!r}] = {value}")
    lines = [f"made = {{{', '.join(parts)}}}", *lines, "return made"]
    return cast(Callable[[R], JsonObject], written("write", ["made_of"], lines, scope))


def _form(spec: Field[object]) -> Form:
    form: Form = spec.metadata.get(FORM, _PLAIN)
    return form
