"""Loads the Lua scripts from package data and composes each with the parts that it names.

The head of a script says what it is made of: `-- uses: base wake` names parts that stand in front
(`_base.lua`, `_wake.lua`), `-- takes: …` its arguments, `-- gives: …` its replies
(`reply_shapes.py`), `-- then: …` parts that stand behind the arguments, and may read them. Redis caches what
it gets by SHA-1, so a script costs its 40 digits a call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from importlib.resources import files
from itertools import chain
from operator import attrgetter
from typing import Any

from orchestrator.broker.reply_shapes import Gives, gives_of
from orchestrator.core.frozen import record, written

# ── arguments ─────────────────────────────────────────────────────────────────────────────────────
# A script's arguments, declared at its head; from that come Lua that reads and Python that packs them.
#
# A script's `-- takes:` lines name its arguments in their order:
#
#     name          a text                         name#    a number
#     name?         whether it is so               name~    a number that stays text
#     name$         an amount: tokens, cost, requests
#     name(a b#)    a list: a count, and then its rows; of one column, its values
#     name<record>  the fields that a part describes (`-- record birth: …`); name(<record>) is a list of such
#     name[a b(c)]  0, or 1 and what it holds
#
# In Lua each is a local of its name (what stands in brackets has the value of an empty one where it is
# not given), rows have fields by name, and an argument too few or too many is a MISCALL before the first
# write. In Python `Takes.pack` takes values by the same names: rows are tuples in the order of the
# columns, or records that have attributes of their names.
#
# Knows nothing of Redis, and not what any argument means.


Argument = str | bytes | int
Packer = Callable[[Any], list[Argument]]

_TAKES, _RECORD = "-- takes:", "-- record "
_TOKEN = re.compile(r"\s*([a-z][a-z0-9_]*|[#?~$(){}\[\]<>])")
_READ = {
    "": "given[{0}]",
    "#": "number_at({0})",
    "?": "given[{0}] == '1'",
    "~": "number_text_at({0})",
    "$": "{{number_at({0}), number_at({0} + 1), number_at({0} + 2)}}",
}
_AS_IT_IS = ("", "#", "~")
_EMPTY = {"": "''", "#": "0", "?": "false", "~": "'0'", "$": "{0, 0, 0}"}


@record
class Value:
    """An argument; an amount stands for three."""

    name: str
    tag: str

    @property
    def width(self) -> int:
        return 3 if self.tag == "$" else 1

    def read(self, behind: int) -> str:
        """The Lua expression that reads it behind so many others that were read and not passed yet."""
        return _READ[self.tag].format(f"read_position + {behind + 1}")

    def empty(self) -> str:
        return _EMPTY[self.tag]

    def part(self, value: str) -> str:
        """The part of a Python list that packs the value of this expression."""
        return {"?": f"int({value})", "$": f"*{value}"}.get(self.tag, value)


@record
class Record:
    """A sequence of fields."""

    name: str
    fields: tuple[Item, ...]

    def lua(self, into: str, depth: int) -> Iterator[str]:
        yield from _read_as(self.fields, f"{into}.", depth)

    @property
    def width(self) -> int:
        return sum(one.width for one in self.fields)

    def empty(self) -> str:
        return "{}"

    def packer(self) -> Packer:
        return packer_of(self.fields)


@record
class Rows:
    """A count, and then so many rows."""

    name: str
    columns: tuple[Item, ...]

    width = 1
    """The count alone, if there are none."""

    def lua(self, into: str, depth: int) -> Iterator[str]:
        at, row = f"i{depth}", f"row{depth}"
        least = sum(one.width for one in self.columns)
        yield f"for {at} = 1, take_count({least}) do"
        match self.columns:
            case (Value() as only,):
                yield f"{into}[{at}] = {only.read(0)}"
                yield _passed(least)
            case columns if plain := _plain(columns):
                yield f"{into}[{at}] = {{{plain}}}"
                yield _passed(least)
            case columns:
                yield f"local {row} = {{}}"
                yield from _read_as(columns, f"{row}.", depth + 1)
                yield f"{into}[{at}] = {row}"
        yield "end"

    def empty(self) -> str:
        return "{}"

    def packer(self) -> Packer:
        match self.columns:
            case (Value(tag=tag),) if tag in _AS_IT_IS:
                return _listed
            case (only,):
                return _each(packer_of((only,)), lambda row: {only.name: row})
        if all(isinstance(one, Value) and one.tag in _AS_IT_IS for one in self.columns):
            return _plain_rows(self.columns)
        return _each(packer_of(self.columns), _by_name(self.columns))


@record
class Section:
    """0, or 1 and what it holds."""

    name: str
    items: tuple[Item, ...]

    def lua(self) -> Iterator[str]:
        yield from (f"local {inner.name} = {inner.empty()}" for inner in self.items)
        yield "if take_number() == 1 then"
        yield from _read_as(self.items, "", 1, empty=True)
        yield "end"

    def packer(self) -> Packer:
        pack = packer_of(self.items)
        return lambda value: [0] if value is None else [1, *pack(value)]


Item = Value | Record | Rows
"""A part that may stand anywhere; a section stands only at the end of all."""


def _read_as(items: Sequence[Item], into: str, depth: int, *, empty: bool = False) -> Iterator[str]:
    """Reads each into a name that begins so, where an `empty` one may stand; values are passed together."""
    read = 0
    for one in items:
        if isinstance(one, Value):
            yield f"{into}{one.name} = {one.read(read)}"
            read += one.width
            continue
        if read:
            yield _passed(read)
            read = 0
        if not empty:
            yield f"{into}{one.name} = {{}}"
        yield from one.lua(f"{into}{one.name}".removeprefix("local "), depth)
    if read:
        yield _passed(read)


def _passed(count: int) -> str:
    return f"read_position = read_position + {count}"


def _plain(columns: Sequence[Item]) -> str:
    """The fields of a table that reads a row of values alone; empty for any other."""
    fields: list[str] = []
    read = 0
    for one in columns:
        if not isinstance(one, Value):
            return ""
        fields.append(f"{one.name} = {one.read(read)}")
        read += one.width
    return ", ".join(fields)


@record
class Takes:
    """All arguments of a script."""

    items: tuple[Item | Section, ...]
    _pack: Packer = field(repr=False, compare=False)

    def lua(self) -> str:
        """Reads the arguments into locals, and refuses what is too few or too many."""
        plain = [one for one in self.items if not isinstance(one, Section)]
        lines = list(_read_as(plain, "local ", 1))
        for one in self.items[len(plain) :]:
            if isinstance(one, Section):
                lines += one.lua()
        return "\n".join([*lines, "all_taken()"])

    def pack(self, values: Mapping[str, Any]) -> list[Argument]:
        """The flat list of a call; raises `TypeError` for a name too few or too many."""
        return self._pack(values)


def packer_of(items: Sequence[Item | Section]) -> Packer:
    """Packs a mapping that has exactly these names: one list, written out as straight code."""
    names = frozenset(one.name for one in items)

    def misnamed(values: Mapping[str, Any]) -> TypeError:
        missing, unknown = sorted(names - values.keys()), sorted(values.keys() - names)
        return TypeError(f"missing {missing}, unknown {unknown}")

    scope: dict[str, Any] = {"names": names, "misnamed": misnamed}
    parts = []
    for place, one in enumerate(items):
        value = f"values[{one.name!r}]"
        if isinstance(one, Value):
            parts.append(one.part(value))
        else:
            scope[f"pack_{place}"] = one.packer()
            parts.append(f"*pack_{place}({value})")
    lines = ["if values.keys() != names: raise misnamed(values)", f"return [{', '.join(parts)}]"]
    pack: Packer = written("pack", ["values"], lines, scope)
    return pack


def _listed(values: Any) -> list[Argument]:
    listed = list(values)
    return [len(listed), *listed]


def _each(pack: Packer, named: Callable[[Any], Mapping[str, Any]]) -> Packer:
    def packed(rows: Any) -> list[Argument]:
        listed = list(rows)
        return [len(listed), *chain.from_iterable(pack(named(row)) for row in listed)]

    return packed


def _plain_rows(columns: Sequence[Item]) -> Packer:
    fields, width = attrgetter(*(one.name for one in columns)), len(columns)

    def packed(rows: Any) -> list[Argument]:
        out: list[Argument] = [0]
        for count, row in enumerate(rows, 1):
            values = row if type(row) is tuple else fields(row)
            if len(values) != width:
                raise TypeError(f"a row has not {width} columns: {row!r}")
            out += values
            out[0] = count
        return out

    return packed


def _by_name(columns: Sequence[Item]) -> Callable[[Any], Mapping[str, Any]]:
    """Gives the values of a tuple, a mapping or a record the names of its columns."""
    names = tuple(one.name for one in columns)
    fields = attrgetter(*names)

    def named(row: Any) -> Mapping[str, Any]:
        if isinstance(row, Mapping):
            return row
        return dict(zip(names, row if type(row) is tuple else fields(row), strict=True))

    return named


# ── reading the head ──────────────────────────────────────────────────────────────────────────────


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


# ── scripts ───────────────────────────────────────────────────────────────────────────────────────


_USES, _THEN = "-- uses: ", "-- then: "


@record
class Script:
    """A Lua script as it is sent to Redis."""

    name: str
    source: bytes
    sha: str
    takes: Takes = field(repr=False, compare=False)
    gives: Gives = field(repr=False, compare=False)


@cache
def load(name: str) -> Script:
    """The script `lua/<name>.lua` with its parts in front."""
    source = "\n".join(text for _, text in composed(name, _read)).encode()
    head = _head(name, _read)
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest()
    return Script(name, source, sha, takes_of(head), gives_of(name, head))


def composed(name: str, read: Callable[[str], str]) -> list[tuple[str, str]]:
    """The pieces of a script in their order: the file's name (empty for what is generated) and its text."""
    takes = takes_of(_head(name, read))
    pieces = [(part, read(part)) for part in _parts(read(name), _USES)]
    pieces.append(("", takes.lua()))
    return [*pieces, *((part, read(part)) for part in _parts(read(name), _THEN)), (name, read(name))]


def gives_of_script(name: str, read: Callable[[str], str]) -> Gives:
    """The replies that a script declares, with those of its parts."""
    return gives_of(name, _head(name, read))


def _head(name: str, read: Callable[[str], str]) -> str:
    """The text in which a script and its parts declare what it takes and gives."""
    body = read(name)
    if not body.startswith(_USES):
        raise ValueError(f"lua/{name}.lua does not begin with {_USES!r}")
    return "\n".join([*(read(part) for part in _parts(body, _USES)), body])


def _parts(body: str, head: str) -> list[str]:
    said = next((line for line in body.split("\n") if line.startswith(head)), head)
    return [f"_{part}" for part in said.removeprefix(head).split()]


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
