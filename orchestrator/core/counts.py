"""How many of something, in the same words wherever a person reads it."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 agent`, `7 agents`, `1,200 tokens`, `1 entry`, `2 entries`."""
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
