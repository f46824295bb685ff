"""Newline-delimited JSON without I/O: bytes in, lines out.

Feed whatever arrived; complete lines come back with their position, so that an error
can say which one it means. A line over the limit is dropped as it streams by: memory
stays bounded by the limit, and the connection goes on at the next newline. It does not
look inside a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

DEFAULT_LIMIT = 8 * 1024 * 1024
HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line without its ending; `number` counts from 1, blank lines included."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """A line that went over the limit and was dropped."""

    number: int
    limit: int
    head: bytes = field(default=b"", compare=False)
    """Its first bytes, `HEAD_BYTES` at most: they may say whose it was."""


Frame: TypeAlias = Line | OverlongLine


class LineSplitter:
    """Cuts a byte stream into lines at `\\n`, with `\\r` before it tolerated."""

    def __init__(self, limit: int = DEFAULT_LIMIT, first: int = 1) -> None:
        if limit < 1:
            raise ValueError("a line limit must be at least one byte")
        self._limit = limit
        self._number = first
        self._pending = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields what `data` completed; exhaust it before the next call."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            yield from self._grow(data[start:end])
            yield from self._finish()
            start = end + 1
        yield from self._grow(data[start:])

    def close(self) -> Iterator[Frame]:
        """Yields the last line if no newline ended it; the splitter is fresh afterwards."""
        yield from self._finish()
        self._number = 1

    def _grow(self, piece: bytes) -> Iterator[Frame]:
        if self._dropping or not piece:
            return
        # One byte of grace for the "\r" of a line that fits without it.
        if len(self._pending) + len(piece) > self._limit + 1:
            yield from self._drop(piece)
            return
        self._pending += piece

    def _drop(self, piece: bytes) -> Iterator[Frame]:
        head = bytes(self._pending[:HEAD_BYTES]) + piece[: HEAD_BYTES - min(HEAD_BYTES, len(self._pending))]
        self._pending.clear()
        self._dropping = True
        yield OverlongLine(self._number, self._limit, head)

    def _finish(self) -> Iterator[Frame]:
        if not self._dropping:
            content = bytes(self._pending.removesuffix(b"\r"))
            if len(content) > self._limit:
                yield OverlongLine(self._number, self._limit, content[:HEAD_BYTES])
            elif content.strip():
                yield Line(self._number, content)
        self._pending.clear()
        self._dropping = False
        self._number += 1
