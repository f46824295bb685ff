"""A script's replies, declared at its head; from that comes Python that reads them by name.

A script's `-- gives:` lines name its replies, with `|` between them: first the codes, in capitals, that share
the fields behind them in their order. A script whose reply has no code has that one alone. A line that ends
with a comma goes on in the next.

    name          a text                         name#    a whole number from 0 on
    name?         whether it is so: 1 or nothing name%    such a number, or nothing
    name~         a number, also below 0
    name!         bytes as they are              name*    pairs: names and values, one after the other
    name(a b#)    one list: rows of these columns, one after the other; of one column, its values
    name{a b#}    a list of rows, each a list of these columns
    name{<row>}   the same with columns that a part describes (`-- row account: …`)
    [name …]      what may be missing at the end

A reply that is too short, too long or of another type is a `BadReply` that names script and field: nothing is
guessed. Knows nothing of Redis, and not what any reply means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from orchestrator.broker.errors import BrokerError
from orchestrator.core.frozen import record, written

Read = Callable[[Any], Any]

_BITS: Final = 53
"""Lua counts in doubles: a number of more bits is not the one that was meant."""
_GIVES: Final = "-- gives:"
_ROW: Final = "-- row "
_TOKEN: Final = re.compile(r"\s*([a-z][a-z0-9_]*|[A-Z_]+|[#~?%!*(){}<>|\[\]])")
_TAGS: Final = "#~?%!*"


class BadReply(BrokerError):
    """A reply that is not what the head of its script says: script and library are of two versions."""


@record
class Field:
    """A field of a reply; one with columns is a list."""

    name: str
    tag: str = ""
    columns: tuple[Field, ...] = ()
    nested: bool = False
    """Whether each row is a list of its own."""
    optional: bool = False

    def reader(self) -> Read:
        """Reads the value; raises `ValueError` for another type."""
        if not self.columns:
            return _READERS[self.tag]
        readers = [column.reader() for column in self.columns]
        if not self.nested and len(readers) == 1:
            return _each(readers[0])
        return _rows(readers) if self.nested else _flat(readers)


@record
class Shape:
    """The fields of a reply behind its code."""

    codes: tuple[str, ...]
    fields: tuple[Field, ...]


@record
class Gives:
    """All replies of a script."""

    script: str
    shapes: Mapping[str, Shape]
    """By code; the one of no code is alone, under the empty text."""
    _readers: dict[bytes, tuple[str, Read]] = field(default_factory=dict, repr=False, compare=False)
    """By code, for those that were met."""

    def read(self, reply: Sequence[Any]) -> tuple[str, Any]:
        """The code and the fields by their names; raises `BadReply`."""
        said = b"" if "" in self.shapes or not reply else reply[0]
        found = self._readers.get(said) if type(said) is bytes else None
        code, read = found or self._reader(said)
        try:
            return code, read(reply)
        except ValueError as error:
            raise BadReply(f"script {self.script} answered {code or 'a reply'} wrongly: {error}") from error

    def _reader(self, said: object) -> tuple[str, Read]:
        code = said.decode(errors="replace") if isinstance(said, bytes) else f"{said!r:.80}"
        if code not in self.shapes or not isinstance(said, bytes):
            raise self.unexpected(code)
        found = code, _written(self.shapes[code].fields, coded=bool(code))
        self._readers[said] = found
        return found

    def unexpected(self, code: str) -> BadReply:
        """A code that the head does not name, or its caller does not know."""
        return BadReply(f"script {self.script} answered {code}, which this version does not know")

    def packed(self, code: str, **values: Any) -> list[Any]:
        """The reply with these fields in the head's order; raises `TypeError` for one too few or too many."""
        names = [one.name for one in self.shapes[code].fields]
        needed = [one.name for one in self.shapes[code].fields if not one.optional]
        if not values.keys() <= set(names) or not values.keys() >= set(needed):
            raise TypeError(f"{self.script} {code} has the fields {names}, and not {sorted(values)}")
        return [*([code.encode()] if code else ()), *(values[name] for name in names if name in values)]


def gives_of(script: str, source: str) -> Gives:
    """Reads the `-- gives:` lines of a script with its parts."""
    lines = source.split("\n")
    rows: dict[str, tuple[Field, ...]] = {}
    for line in lines:
        if line.startswith(_ROW):
            name, _, columns = line.removeprefix(_ROW).partition(":")
            rows[name] = _Head(columns, rows).fields("")
    shapes: dict[str, Shape] = {}
    for said in _replies(lines):
        codes, fields = _Head(said, rows).reply()
        shape = Shape(codes, fields)
        if twice := sorted(shapes.keys() & set(codes or ("",))):
            raise ValueError(f"{script} declares its reply {twice[0]} twice")
        shapes.update(dict.fromkeys(codes or ("",), shape))
    if "" in shapes:
        shapes = {"": shapes[""]}
    return Gives(script, shapes)


def _replies(lines: Sequence[str]) -> Iterator[str]:
    said = ""
    for line in lines:
        if line.startswith(_GIVES):
            said += line.removeprefix(_GIVES)
            if said.endswith(","):
                said = said[:-1]
                continue
            yield from said.split("|")
            said = ""


class _Head:
    def __init__(self, said: str, rows: Mapping[str, tuple[Field, ...]]) -> None:
        self._tokens = _TOKEN.findall(said)
        if "".join(self._tokens) != "".join(said.split()):
            raise ValueError(f"not a list of replies: {said!r}")
        self._at = 0
        self._rows = rows

    def reply(self) -> tuple[tuple[str, ...], tuple[Field, ...]]:
        codes = []
        while self._next().isupper():
            codes.append(self._take())
        return tuple(codes), self.fields("")

    def fields(self, end: str, *, optional: bool = False) -> tuple[Field, ...]:
        found: list[Field] = []
        while self._next() != end:
            match self._next():
                case "[":
                    self._take()
                    found += self.fields("]", optional=True)
                case "<":
                    self._take()
                    found += self._rows[self._take()]
                    self._take()
                case _:
                    found.append(self._field(self._take(), optional=optional))
        self._take()
        return tuple(found)

    def _field(self, name: str, *, optional: bool) -> Field:
        match self._next():
            case "(" | "{" as opened:
                self._take()
                columns = self.fields(")" if opened == "(" else "}")
                return Field(name, "", columns, nested=opened == "{", optional=optional)
            case tag if tag and tag in _TAGS:
                return Field(name, self._take(), optional=optional)
            case _:
                return Field(name, optional=optional)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return str(token)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────

_PLAIN: Final = {"": "{0}.decode()", "!": "{0}", "#": "{0}", "?": "{0} == 1 or {0} == b'1'"}
"""For what most fields are: what is made of the value."""


def _written(fields: Sequence[Field], *, coded: bool) -> Read:
    """Reads a reply of these fields to a dict, as straight code."""
    first = int(coded)
    least, most = first + sum(not one.optional for one in fields), first + len(fields)
    readers = [_named(one) for one in fields]

    def refuse(reply: Sequence[Any]) -> None:
        """Raises what is wrong with the reply."""
        if len(reply) < least:
            raise ValueError(f"{fields[len(reply) - first].name} is missing")
        if len(reply) > most:
            raise ValueError(f"it has {len(reply)} values, and {most} are declared")
        for read, value in zip(readers, reply[first:], strict=False):
            read(value)

    scope: dict[str, Any] = {"refuse": refuse}
    plain = [one for one in fields if not one.columns and one.tag in _PLAIN and not one.optional]
    parts = []
    for one, reader in zip(fields, readers, strict=True):
        if one in plain:
            part = _PLAIN[one.tag].format(f"{one.name}_")
        else:
            scope[f"read_{one.name}"] = reader
            # Most lists are empty.
            part = f"read_{one.name}({one.name}_){f' if {one.name}_ != [] else []' if one.columns else ''}"
        parts.append(f"{one.name!r}: {part}")
    sized = f"len(reply) == {most}" if least == most else f"{least} <= len(reply) <= {most}"
    lines = [f"if not {sized}: refuse(reply)"]
    if least < most:
        lines.append(f"reply = [*reply, *(None,) * ({most} - len(reply))]")
    if fields:
        lines.append(f"{'_, ' * first}{''.join(f'{one.name}_, ' for one in fields)} = reply")
    if tests := list(_tests(plain)):
        lines.append(f"if not ({' and '.join(tests)}): refuse(reply)")
    read: Read = written("read", ["reply"], [*lines, f"return {{{', '.join(parts)}}}"], scope)
    return read


def _tests(plain: Sequence[Field]) -> Iterator[str]:
    """Tests that hold together if all values are of their types; few, for many values."""
    numbers = [f"{one.name}_" for one in plain if one.tag == "#"]
    texts = [f"{one.name}_" for one in plain if one.tag in ("", "!")]
    if numbers:
        yield f"{' is '.join(f'type({name})' for name in numbers)} is int"
        # Of numbers that are not below 0, and all below a power of two, this is 0.
        yield f"not ({' | '.join(numbers)}) >> {_BITS}"
    if texts:
        yield f"{' is '.join(f'type({name})' for name in texts)} is bytes"
    for one in plain:
        if one.tag == "?":
            yield "({0} == 1 or {0} == 0 or {0} == b'' or {0} == b'1')".format(f"{one.name}_")


def _named(one: Field) -> Read:
    read = one.reader()

    def named(value: Any) -> Any:
        if one.optional and value is None:
            return None
        try:
            return read(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{one.name} is {error}") from error

    return named


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{value!r:.80}")
    return value


def _text(value: Any) -> str:
    return _bytes(value).decode()


def _number(value: Any) -> int:
    if type(value) is not int or value >> _BITS:
        raise ValueError(f"{value!r:.80}")
    return value


def _signed(value: Any) -> int:
    return _number(value) if type(value) is not int or value >= 0 else -_number(-value)


def _flag(value: Any) -> bool:
    if value not in (0, 1, b"", b"1"):
        raise ValueError(f"{value!r:.80}")
    return value in (1, b"1")


def _maybe_number(value: Any) -> int | None:
    if value == b"":
        return None
    # A score is a text, and perhaps in the way of a float.
    return _number(int(float(value))) if type(value) is bytes else _number(value)


def _pairs(value: Any) -> dict[bytes, bytes]:
    if not set(map(type, _listed(value))) <= {bytes}:
        raise ValueError(f"{value!r:.80}, and not of names and values")
    return dict(zip(value[::2], value[1::2], strict=True))


_READERS: Final[Mapping[str, Read]] = {
    "": _text, "!": _bytes, "#": _number, "~": _signed, "?": _flag, "%": _maybe_number, "*": _pairs,
}  # fmt: skip


def _listed(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{value!r:.80}, and not a list")
    return value


def _each(read: Read) -> Read:
    return lambda value: [read(one) for one in _listed(value)]


def _row(readers: Sequence[Read]) -> Read:
    """Reads a row to a tuple; raises `ValueError` or `TypeError` for one of another width."""
    names = [f"value_{place}" for place in range(len(readers))]
    parts = (f"read_{name}({name})" for name in names)
    scope: dict[str, Any] = {f"read_{name}": read for name, read in zip(names, readers, strict=True)}
    lines = [f"{', '.join(names)}, = row", f"return ({', '.join(parts)},)"]
    read: Read = written("read_row", ["row"], lines, scope)
    return read


def _flat(readers: Sequence[Read]) -> Read:
    width, row = len(readers), _row(readers)

    def read(value: Any) -> list[tuple[Any, ...]]:
        listed = _listed(value)
        if len(listed) % width:
            raise ValueError(f"{len(listed)} values, and not rows of {width}")
        return list(map(row, zip(*(iter(listed),) * width, strict=True)))

    return read


def _rows(readers: Sequence[Read]) -> Read:
    row = _row(readers)
    return lambda value: list(map(row, map(_listed, _listed(value))))
