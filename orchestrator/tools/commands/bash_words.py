"""The words of a plain script, and the names of the one program that is none."""

from __future__ import annotations

from typing import Final

from orchestrator.core.frozen import record

PATCH_NAMES: Final = frozenset({"apply_patch", "applypatch"})
"""Names under which a model calls for a patch as if it were a program."""


@record
class Word:
    """A word of a command after quote removal; `expands` if the shell may put other words in its place.

    A word that expands runs as something else: a file named `-delete` turns `find *` into a deletion.
    """

    text: str
    expands: bool


@record
class PlainScript:
    """The commands of a plain script in the order written, and the operators between them."""

    commands: tuple[tuple[Word, ...], ...]
    operators: tuple[str, ...]
