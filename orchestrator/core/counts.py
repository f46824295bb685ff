"""How many of something and how long, in the same words wherever a person reads it."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 agent`, `7 agents`, `1,200 tokens`, `1 entry`, `2 entries`."""
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("ss"):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def change_size(insertions: int, deletions: int, files: int) -> str:
    """The size of a change of files: `+120 −14 in 9 files`."""
    return f"+{insertions:,} −{deletions:,} in {counted(files, 'file')}"


def age(seconds: float) -> str:
    """A duration in its largest unit: `42s`, `7m`, `3h`, `12d`."""
    for limit, unit, size in ((60, "s", 1), (3600, "m", 60), (86_400, "h", 3600)):
        if seconds < limit:
            return f"{max(0, int(seconds)) // size}{unit}"
    return f"{int(seconds) // 86_400}d"
