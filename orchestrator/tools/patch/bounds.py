"""Bounds on a patch of one call, and on the part of it that events and the call's record hold.

A patch of thousands of files is applied like any other. What its events and its call's record hold is
bounded: beyond a number of files they say how many more there are, and never seem to say all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.protocol.commands import FileChange
from orchestrator.protocol.wire import written

MOST_FILES: Final = 10_000
"""Hunks of one patch."""
MOST_BYTES: Final = 256 << 20
"""Content of all files that one patch reads: it is held in memory until they are written."""
MOST_LINES: Final = 1_000_000
"""Of a file that is searched or compared line by line: each line costs some 200 bytes of memory meanwhile."""
MOST_COMPARED: Final = 1 << 28
"""Lines that are compared to find the places of one file's chunks: a second of a processor's time."""
SHOWN_BYTES: Final = 128 << 10
"""Most bytes of `changes` in an event, each long text counted as its reference."""
TEXT_CHARS: Final = 4 << 20
"""Of one text that is shown: a diff, a file's content."""
INLINE_BYTES: Final = 64 << 10
"""Most bytes of a record or the baselines in an entry; larger ones are one text, stored beside the entry."""
_REFERENCE_BYTES: Final = 256
_FILE_BYTES: Final = 64


def shown(changes: Mapping[str, FileChange]) -> tuple[dict[str, FileChange], int]:
    """As many of the changes as events carry, in their order, and the number of those left out."""
    told: dict[str, FileChange] = {}
    left = SHOWN_BYTES
    for path, change in changes.items():
        texts = written(change)
        left -= len(path) + _FILE_BYTES + sum(_weight(text) for text in texts.values())
        if left < 0:
            break
        told[path] = change.model_copy(update={name: text and cut(text) for name, text in texts.items()})
    return told, len(changes) - len(told)


def _weight(text: str | None) -> int:
    return min(len(text or ""), _REFERENCE_BYTES)


def cut(text: str) -> str:
    """The text, or its beginning with a word about the rest."""
    rest = len(text) - TEXT_CHARS
    return text if rest <= 0 else f"{text[:TEXT_CHARS]}\n[… {rest:,} more characters]\n"


def weight(data: Mapping[str, Mapping[str, Any]]) -> int:
    """The bytes that records of files take in an entry, each long text counted as its reference."""
    return sum(
        2 * len(path) + _FILE_BYTES + sum(_weight(text) for text in fields.values() if isinstance(text, str))
        for path, fields in data.items()
    )
