"""Loads the Lua scripts from package data and composes each with the parts that it names.

The head of a script says what it is made of: `-- uses: base wake` names parts that stand in front
(`_base.lua`, `_wake.lua`), `-- takes: …` its arguments (`arguments.py`), `-- gives: …` its replies
(`reply_shapes.py`), `-- then: …` parts that stand behind the arguments, and may read them. Redis caches what
it gets by SHA-1, so a script costs its 40 digits a call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import field
from functools import cache
from importlib.resources import files

from orchestrator.broker.arguments import Takes, takes_of
from orchestrator.broker.reply_shapes import Gives, gives_of
from orchestrator.core.frozen import record

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
