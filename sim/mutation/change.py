"""A change of one place in the product's text."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Change:
    """Text between two offsets of a file becomes other text; everything else stays byte for byte.

    `before` and `after` are the whole statement (or line of Lua) with and without the change, for people and
    for the name: with the function they say which place is meant, wherever its line has moved to.
    """

    path: str
    """From the repository's root."""
    function: str
    """Qualified name; '' for a module's or a script's own level."""
    operator: str
    line: int
    start: int
    end: int
    """Offsets in characters."""
    old: str
    new: str
    before: str
    after: str
    statement: str
    """The one that is chosen when a sample is drawn: of two that are swapped, the first."""
    twin: int = 0
    """Which of several places of a function that read alike."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.function, self.before, self.after

    @property
    def id(self) -> str:
        named = "\0".join((*self.key, str(self.twin)))
        return hashlib.sha256(named.encode()).hexdigest()[:12]

    @property
    def module(self) -> str:
        """The Python module that is changed; '' for a script."""
        if not self.path.endswith(".py"):
            return ""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def script(self) -> str:
        """The name that `scripts.load` knows a script's file by."""
        return "" if self.module else Path(self.path).stem

    def text(self, root: Path = ROOT) -> str:
        """The whole file with the change in it."""
        whole = (root / self.path).read_text(encoding="utf-8")
        if whole[self.start : self.end] != self.old:
            raise ValueError(f"{self.path} has changed since its changes were made: draw the sample anew")
        return whole[: self.start] + self.new + whole[self.end :]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        what = self.before if self.before == self.after else f"{self.before!r} -> {self.after!r}"
        return f"{self.path}:{self.line} {self.operator}: {what}"


def squeezed(text: str) -> str:
    """A statement in one line: how it is wrapped is no part of a change's name."""
    return " ".join(text.split())


def numbered(changes: list[Change]) -> list[Change]:
    """Changes that would have the same name, told apart by the order of their places; doubles dropped."""
    seen: dict[tuple[str, str, str, str], int] = {}
    places: set[tuple[int, int, str]] = set()
    found = []
    for change in sorted(changes, key=lambda change: (change.start, change.end, change.operator)):
        if (change.start, change.end, change.new) in places:
            continue
        places.add((change.start, change.end, change.new))
        twin = seen.get(change.key, 0)
        seen[change.key] = twin + 1
        found.append(replace(change, twin=twin) if twin else change)
    return found
