"""The arguments of a call, read in their order, and the numbers in hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.broker.scripts import load


def number(fields: Mapping[bytes, bytes], name: bytes) -> int:
    """The number in a field; 0 where there is none."""
    return int(fields.get(name) or 0)


def replied(script: str, code: str, **values: Any) -> list[Any]:
    """The reply of a script with these fields, in the order of its head."""
    return load(script).gives.packed(code, **values)


def written(value: float) -> bytes:
    return b"%d" % value


def letters(text: bytes, most: int) -> bytes:
    """As many of the first letters as `most` bytes hold."""
    return text[:most].decode("utf-8", "ignore").encode() if len(text) > most else text


class Given:
    """Arguments, from the first one on."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = words
        self._at = 0

    def word(self) -> bytes:
        self._at += 1
        return self._words[self._at - 1]

    def words(self, count: int) -> list[bytes]:
        self._at += count
        return list(self._words[self._at - count : self._at])

    def number(self) -> int:
        return int(self.word())

    def rows(self, width: int) -> list[list[bytes]]:
        return [self.words(width) for _ in range(self.number())]

    def amount(self) -> list[int]:
        """Tokens, cost and requests."""
        return [self.number(), self.number(), self.number()]
