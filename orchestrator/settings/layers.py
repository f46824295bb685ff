"""Layers of configuration: the values of each key by source, and their precedence.

Holds raw values with their origin; knows nothing of any setting's meaning or type.
A key is a tuple of parts, never a dotted string: names of headers and models have dots.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.sandbox.trusted_files import read_regular

KeyPath = tuple[str, ...]

FILE_LIMIT_BYTES = 1024 * 1024
"""A file may come with a stranger's repository; the longest sensible one has a few kilobytes."""


class Rank(IntEnum):
    """The precedence of a source of settings; the higher rank wins."""

    DEFAULT = 0
    FILE = 1
    FOLDER = 2
    PROFILE = 3
    ENVIRONMENT = 4
    OVERRIDE = 5
    FLAG = 6


@record
class Origin:
    """The place where a value was found; relative paths in the value count from `base`."""

    rank: Rank
    where: str
    base: Path


@record
class Found:
    """A value. `text` is what a person typed where there are no types (environment, `-c`)."""

    value: object
    origin: Origin
    text: str | None = None


class SettingsError(Exception):
    """A setting that cannot be used: names the place, the key, what was found and what is allowed."""

    def __init__(self, where: str, key: str, found: str, allowed: str) -> None:
        self.where, self.key, self.found, self.allowed = where, key, found, allowed
        subject = f"{key} = {found}" if key else found
        super().__init__(f"{where}: {subject}: {allowed}")


class Layers:
    """The leaves of all layers, the winner of each kept. Add layers from the weakest to the strongest."""

    def __init__(self) -> None:
        self._leaves: dict[KeyPath, Found] = {}
        self._read: set[KeyPath] = set()

    def merge(self, table: Mapping[str, object], origin: Origin, without: Collection[KeyPath] = ()) -> None:
        """Lays a table over what is there, leaf by leaf, but for the keys in `without`."""
        for path, value in leaves(table):
            if path and path not in without:
                self._put(path, Found(value, origin))

    def assign(self, path: KeyPath, found: Found) -> None:
        """Replaces a key whole: a table given by `-c` does not mix with the file's."""
        for old in [leaf for leaf in self._leaves if leaf[: len(path)] == path]:
            del self._leaves[old]
        for below, value in leaves(found.value):
            self._put(path + below, replace(found, value=value))

    def take(self, path: KeyPath) -> Found | None:
        """The value of a leaf, which counts as read from now on."""
        self._read.add(path)
        return self._leaves.get(path)

    def peek(self, path: KeyPath) -> Found | None:
        """The value of a leaf, which does not count as read by that."""
        return self._leaves.get(path)

    def below(self, path: KeyPath) -> dict[KeyPath, Found]:
        """Leaves of a table by what follows `path`; an empty table is one leaf with an empty key."""
        return {leaf[len(path) :]: found for leaf, found in self._leaves.items() if leaf[: len(path)] == path}

    def names(self, path: KeyPath) -> list[str]:
        """Names of the tables and values right below `path`."""
        return list(dict.fromkeys(below[0] for below in self.below(path) if below))

    def unread(self) -> Iterator[tuple[KeyPath, Found]]:
        """The leaves that no setting read: most likely typing errors."""
        return ((path, found) for path, found in self._leaves.items() if path not in self._read)

    def _put(self, path: KeyPath, found: Found) -> None:
        if found.value == {} and self.below(path):
            return
        # A value and a table of the same name exclude each other; the later layer is right.
        for other in [
            leaf for leaf in self._leaves if leaf[: len(path)] == path or leaf == path[: len(leaf)]
        ]:
            del self._leaves[other]
        self._leaves[path] = found


def leaves(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """All values below a table with their paths; an empty table is a value of its own."""
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from leaves(below, (*path, str(name)))
    else:
        yield path, value


def read_config(file: Path) -> bytes:
    """The content of a configuration file, or an error that says why there is none."""
    return _read(file, lambda: _opened(file))


def read_folder_file(file: Path) -> bytes:
    """The same of a file that an agent may have left in a folder: a pipe there would never end."""
    return _read(file, lambda: read_regular(file, FILE_LIMIT_BYTES + 1))


def _opened(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(FILE_LIMIT_BYTES + 1)


def _read(file: Path, content_of: Callable[[], bytes]) -> bytes:
    try:
        content = content_of()
    except OSError as error:
        raise SettingsError(
            str(file), "", f"cannot be read: {error.strerror}", "name a readable file"
        ) from error
    if len(content) > FILE_LIMIT_BYTES:
        found = f"larger than {FILE_LIMIT_BYTES // 1024} KiB"
        raise SettingsError(str(file), "", found, "a configuration file is small; remove or shorten it")
    return content


def parse_toml(file: Path, content: bytes) -> Mapping[str, object]:
    """The content of a configuration file; the error says where the file stops being TOML."""
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            str(file), "", f"not TOML: {error}", "write `key = value`, strings in quotes"
        ) from error
    except RecursionError as error:
        raise SettingsError(
            str(file), "", "nested too deep", "no setting needs more than four levels"
        ) from error


def parse_value(text: str) -> object:
    """The value of `text` as TOML, else the text itself: `-c model=gpt-5` needs no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    # A line break in the text could bring further keys along; then it is no single value.
    return parsed["value"] if parsed.keys() == {"value"} else text


def parse_override(override: str) -> tuple[KeyPath, str]:
    """Splits `key=value`; the key is a TOML key, dotted and quoted as in a file."""
    key, equals, text = override.partition("=")
    try:
        (leaf,) = leaves(tomllib.loads(f"{key.strip()} = 0"))
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise SettingsError("-c", "", repr(override), "write -c key=value, such as -c model=gpt-5") from error
    if not equals:
        raise SettingsError("-c", "", repr(override), "write -c key=value, such as -c model=gpt-5")
    return leaf[0], text.strip()


# ── file edits ────────────────────────────────────────────────────────────────────────────────────
# Edits of a settings file: a line for each key, all else of the text stays as a person wrote it.
#
# Pure: text in, text out. An edit counts only if a reader of TOML finds exactly what was meant; where a
# person has written a table in a way that a line cannot change, it is refused.


Edit: TypeAlias = tuple[KeyPath, object]
"""A key, and its new value: None takes it out."""
_HEADER = re.compile(r"^[ \t]*\[.*$", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class CannotEdit(ValueError):
    """An edit that no line of this text makes; the message names the key."""


def with_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text after all edits; raises `CannotEdit`, and `TOMLDecodeError` for what is no TOML."""
    for path, value in edits:
        wanted = _set(tomllib.loads(text), path, value)
        text = _edited(text, path, value)
        if not _reads(text, wanted):
            key = ".".join(path)
            raise CannotEdit(f"{key} stands there in a form that is a person's to change: edit the file")
    return text


def _reads(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return _without_empty(tomllib.loads(text)) == _without_empty(wanted)
    except tomllib.TOMLDecodeError:
        return False


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without tables that hold nothing: a header may stay behind."""
    inner = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in table.items()}
    return {key: value for key, value in inner.items() if value != {}}


def _set(table: Mapping[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    first, *rest = path
    changed = dict(table)
    if rest:
        inner = changed.get(first)
        changed[first] = _set(inner if isinstance(inner, dict) else {}, rest, value)
    elif value is None:
        changed.pop(first, None)
    else:
        changed[first] = value
    return changed


def _edited(text: str, path: KeyPath, value: object) -> str:
    *table, key = path
    line = "" if value is None else f"{_key(key)} = {_written(value)}\n"
    start, end = _section(text, table)
    if start < 0:
        if not line:
            return text
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{'.'.join(map(_key, table))}]\n{line}"
    section = text[start:end]
    before = re.compile(rf"^[ \t]*{re.escape(_key(key))}[ \t]*=.*\n?", re.MULTILINE)
    if (place := before.search(section)) is not None:
        section = section[: place.start()] + line + section[place.end() :]
    elif line:
        body = section.rstrip("\n")
        tail = section[len(body) :]
        gap = "\n" if body else ""
        section = f"{body}{gap}{line}{tail[1:] if body else tail}"
    return text[:start] + section + text[end:]


def _section(text: str, table: Sequence[str]) -> tuple[int, int]:
    """The span of a table's lines behind its header; -1 where there is none."""
    headers = list(_HEADER.finditer(text))
    if not table:
        return 0, headers[0].start() if headers else len(text)
    wanted = re.compile(rf"[ \t]*\[[ \t]*{re.escape('.'.join(map(_key, table)))}[ \t]*\][ \t]*(#.*)?")
    for place, header in enumerate(headers):
        if wanted.fullmatch(header.group().rstrip("\r")):
            end = headers[place + 1].start() if place + 1 < len(headers) else len(text)
            return min(header.end() + 1, len(text)), end
    return -1, -1


def _key(part: str) -> str:
    return part if _BARE.fullmatch(part) else json.dumps(part)


def _written(value: object) -> str:
    """A value as TOML on one line."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{_key(str(k))} = {_written(v)}" for k, v in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_written, value)) + "]"
        case str() | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)
        case _:
            raise CannotEdit(f"{value!r} is no value of a settings file")
