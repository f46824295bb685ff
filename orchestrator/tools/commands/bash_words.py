"""The words of a plain script, and the names of the one program that is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PATCH_NAMES: Final = frozenset({"apply_patch", "applypatch"})
"""Names under which a model calls for a patch as if it were a program."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command after quote removal; `expands` if the shell may put other words in its place.

    A word that expands runs as something else: a file named `-delete` turns `find *` into a deletion.
    """

    text: str
    expands: bool


@dataclass(frozen=True, slots=True)
class PlainScript:
    """The commands of a plain script in the order written, and the operators between them."""

    commands: tuple[tuple[Word, ...], ...]
    operators: tuple[str, ...]
