"""A script's arguments, declared at its head; from that come Lua that reads and Python that packs them.

A script's `-- takes:` lines name its arguments in their order:

    name          a text                         name#    a number
    name?         whether it is so               name~    a number that is written again as text
    name$         an amount: tokens, cost, requests
    name(a b#)    a list: a count, and then its rows; of one column, its values
    name<record>  the fields that a part describes (`-- record birth: …`); name(<record>) is a list of such
    name[a b(c)]  0, or 1 and what it holds

In Lua each is a local of its name (what stands in brackets has the value of an empty one where it is not
given), rows have fields by name, and an argument too few or too many is a MISCALL before the first write. In
Python `Takes.pack` takes values by the same names: rows are tuples in the order of the columns, or records
that have attributes of their names.

Knows nothing of Redis, and not what any argument means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

Argument = str | bytes | int
Packer = Callable[[Any, list[Argument]], None]

_TAKES, _RECORD = "-- takes:", "-- record "
_TOKEN = re.compile(r"\s*([a-z][a-z0-9_]*|[#?~$(){}\[\]<>])")
_READ = {
    "": "take()",
    "#": "take_number()",
    "?": "take() == '1'",
    "~": "text(take_number())",
    "$": "{take_number(), take_number(), take_number()}",
}
_EMPTY = {"": "''", "#": "0", "?": "false", "~": "'0'", "$": "{0, 0, 0}"}


@dataclass(frozen=True, slots=True)
class Value:
    """An argument; an amount stands for three."""

    name: str
    tag: str

    def lua(self, into: str, depth: int) -> Iterator[str]:
        yield f"{into} = {_READ[self.tag]}"

    def empty(self) -> str:
        return _EMPTY[self.tag]

    def packer(self) -> Packer:
        match self.tag:
            case "?":
                return lambda value, out: out.append(int(value))
            case "$":
                return lambda value, out: out.extend(value)
            case _:
                return lambda value, out: out.append(value)


@dataclass(frozen=True, slots=True)
class Record:
    """A sequence of fields."""

    name: str
    fields: tuple[Item, ...]

    def lua(self, into: str, depth: int) -> Iterator[str]:
        yield f"{into} = {{}}"
        for one in self.fields:
            yield from one.lua(f"{into}.{one.name}", depth)

    def empty(self) -> str:
        return "{}"

    def packer(self) -> Packer:
        return packer_of(self.fields)


@dataclass(frozen=True, slots=True)
class Rows:
    """A count, and then so many rows."""

    name: str
    columns: tuple[Item, ...]

    def lua(self, into: str, depth: int) -> Iterator[str]:
        at, row = f"i{depth}", f"row{depth}"
        yield f"{into} = {{}}"
        yield f"for {at} = 1, take_number() do"
        if len(self.columns) == 1:
            yield from self.columns[0].lua(f"{into}[{at}]", depth + 1)
        elif all(isinstance(one, Value) for one in self.columns):
            fields = (line for one in self.columns for line in one.lua(one.name, depth))
            yield f"{into}[{at}] = {{{', '.join(fields)}}}"
        else:
            yield f"local {row} = {{}}"
            for one in self.columns:
                yield from one.lua(f"{row}.{one.name}", depth + 1)
            yield f"{into}[{at}] = {row}"
        yield "end"

    def empty(self) -> str:
        return "{}"

    def packer(self) -> Packer:
        if len(self.columns) == 1:
            return _each(self.columns[0].packer())
        if all(isinstance(one, Value) and one.tag in ("", "#", "~") for one in self.columns):
            return _plain_rows(self.columns)
        return _each(_row_packer(self.columns))


@dataclass(frozen=True, slots=True)
class Section:
    """0, or 1 and what it holds."""

    name: str
    items: tuple[Item, ...]

    def packer(self) -> Packer:
        pack = packer_of(self.items)

        def packed(value: Any, out: list[Argument]) -> None:
            if value is None:
                out.append(0)
            else:
                out.append(1)
                pack(value, out)

        return packed


Item = Value | Record | Rows
"""A part that may stand anywhere; a section stands only at the end of all."""


@dataclass(frozen=True, slots=True)
class Takes:
    """All arguments of a script."""

    items: tuple[Item | Section, ...]
    _pack: Packer = field(repr=False, compare=False)

    def lua(self) -> str:
        """Reads the arguments into locals, and refuses what is too few or too many."""
        lines: list[str] = []
        for one in self.items:
            if isinstance(one, Section):
                lines += [f"local {inner.name} = {inner.empty()}" for inner in one.items]
                lines.append("if take_number() == 1 then")
                lines += [line for inner in one.items for line in inner.lua(inner.name, 1)]
                lines.append("end")
            else:
                first, *rest = one.lua(one.name, 1)
                lines += [f"local {first}", *rest]
        return "\n".join([*lines, "all_taken()"])

    def pack(self, values: Mapping[str, Any]) -> list[Argument]:
        """The flat list of a call; raises `TypeError` for a name too few or too many."""
        out: list[Argument] = []
        self._pack(values, out)
        return out


def packer_of(items: Sequence[Item | Section]) -> Packer:
    """Packs a mapping that has exactly these names."""
    steps = [(one.name, one.packer()) for one in items]
    names = {name for name, _ in steps}

    def packed(values: Mapping[str, Any], out: list[Argument]) -> None:
        if values.keys() != names:
            missing, unknown = sorted(names - values.keys()), sorted(values.keys() - names)
            raise TypeError(f"missing {missing}, unknown {unknown}")
        for name, pack in steps:
            pack(values[name], out)

    return packed


def _each(pack: Packer) -> Packer:
    def packed(rows: Any, out: list[Argument]) -> None:
        listed = list(rows)
        out.append(len(listed))
        for row in listed:
            pack(row, out)

    return packed


def _plain_rows(columns: Sequence[Item]) -> Packer:
    fields, width = attrgetter(*(one.name for one in columns)), len(columns)

    def packed(rows: Any, out: list[Argument]) -> None:
        listed = [row if type(row) is tuple else fields(row) for row in rows]
        if any(len(row) != width for row in listed):
            raise TypeError(f"a row has not {width} columns")
        out.append(len(listed))
        out.extend(chain.from_iterable(listed))

    return packed


def _row_packer(columns: Sequence[Item]) -> Packer:
    """Packs a tuple, a mapping or a record by its columns."""
    packers = [one.packer() for one in columns]
    fields, names = attrgetter(*(one.name for one in columns)), [one.name for one in columns]

    def packed(row: Any, out: list[Argument]) -> None:
        if isinstance(row, Mapping):
            row = tuple(row[name] for name in names)
        values = row if type(row) is tuple else fields(row)
        for pack, value in zip(packers, values, strict=True):
            pack(value, out)

    return packed


# ── reading the head ──────────────────────────────────────────────────────────────────────────


def takes_of(source: str) -> Takes:
    """Reads the `-- takes:` lines of a script with its parts."""
    lines = source.split("\n")
    said = [line.removeprefix(_TAKES) for line in lines if line.startswith(_TAKES)]
    described: dict[str, str] = {}
    for line in lines:
        if line.startswith(_RECORD):
            name, _, fields = line.removeprefix(_RECORD).partition(":")
            described[name] = described.get(name, "") + fields
    records: dict[str, tuple[Item, ...]] = {}
    for name, fields in described.items():
        records[name] = _Reader(fields, records).items()
    items = _Reader(" ".join(said), records).everything()
    return Takes(items, packer_of(items))


class _Reader:
    def __init__(self, said: str, records: Mapping[str, tuple[Item, ...]]) -> None:
        self._tokens = _TOKEN.findall(said)
        if "".join(self._tokens) != "".join(said.split()):
            raise ValueError(f"not a list of arguments: {said!r}")
        self._at = 0
        self._records = records

    def everything(self) -> tuple[Item | Section, ...]:
        found: list[Item | Section] = []
        while self._next():
            name = self._word()
            if self._next() == "[":
                self._at += 1
                found.append(Section(name, self.items("]")))
                self._at += 1
            else:
                found.append(self._item(name))
        return tuple(found)

    def items(self, end: str = "") -> tuple[Item, ...]:
        found: list[Item] = []
        while self._next() != end:
            if self._next() == "<":
                # The record itself is the row.
                return self._record()
            found.append(self._item(self._word()))
        return tuple(found)

    def _item(self, name: str) -> Item:
        match self._next():
            case "(":
                self._at += 1
                columns = self.items(")")
                self._at += 1
                return Rows(name, columns)
            case "<":
                return Record(name, self._record())
            case "#" | "?" | "~" | "$" as tag:
                self._at += 1
                return Value(name, tag)
            case _:
                return Value(name, "")

    def _record(self) -> tuple[Item, ...]:
        name = self._tokens[self._at + 1]
        self._at += 3
        return self._records[name]

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _word(self) -> str:
        self._at += 1
        return str(self._tokens[self._at - 1])
