"""Loads the Lua scripts from package data and composes each with the parts that it names.

The first line of a script, `-- uses: base wake`, names parts kept in `_base.lua`, `_wake.lua`.
Redis caches what it gets by SHA-1, so a script costs its 40 digits a call.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_USES = "-- uses: "


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script as it is sent to Redis."""

    name: str
    source: bytes
    sha: str


@cache
def load(name: str) -> Script:
    """The script `lua/<name>.lua` with its parts in front."""
    body = _read(name)
    first, _, _ = body.partition("\n")
    if not first.startswith(_USES):
        raise ValueError(f"lua/{name}.lua does not begin with {_USES!r}")
    parts = [_read(f"_{part}") for part in first.removeprefix(_USES).split()]
    source = "\n".join([*parts, body]).encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
