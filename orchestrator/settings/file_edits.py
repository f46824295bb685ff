"""Edits of a settings file: a line for each key, all else of the text stays as a person wrote it.

Pure: text in, text out. An edit counts only if a reader of TOML finds exactly what was meant; where a person
has written a table in a way that a line cannot change, it is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator.settings.layers import KeyPath

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
