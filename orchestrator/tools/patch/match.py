"""Where the chunks of a hunk fit in a file, and the text that results.

For each chunk: its contexts are sought forward from the cursor, one after the other, then
the lines that it keeps and drops, as one block. Each search is made four times, every pass
more forgiving than the one before: as written, without trailing blanks, without blanks at
both ends, and with typographic punctuation folded to ASCII. A chunk marked as the file's
end fits there or nowhere. A block that ends in an empty line, and is not found, is sought again
without it. A chunk that only adds goes to the end of the file.

A pass looks at candidates by the rarest line of the block, from an index that is made once
per file and pass, so that neither long files nor many chunks cost more than they must. What
a file of a million like lines could still cost is bounded.

It must not know of paths or disks: texts in, text out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from orchestrator.core.frozen import record
from orchestrator.tools.patch.bounds import MOST_COMPARED
from orchestrator.tools.patch.grammar import Chunk, LineKind

_PUNCTUATION = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys(
        "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
        " ",
    )
)


class ChunkMismatch(ValueError):
    """A chunk has no place in the file; `chunk_index` counts from 0.

    `problem` is what was sought ("context 'def f'", "expected lines"), with the reason where it
    was not sought to the end; `expected` are the lines that were not found.
    """

    def __init__(self, chunk_index: int, problem: str, expected: Sequence[str] = ()) -> None:
        super().__init__(f"Failed to find {problem}")
        self.chunk_index = chunk_index
        self.problem = problem
        self.expected = tuple(expected)


def apply_chunks(text: str, chunks: Sequence[Chunk]) -> str:
    """The text with every chunk applied; ends with a newline unless it is empty.

    Lines that a chunk keeps stay as the file has them, even where a forgiving pass matched:
    a kept line is a promise not to change it (its carriage return, its dashes). Added lines
    take the file's line ending.
    """
    lines, ending = _file_lines(text)
    seeker = _Seeker(lines)
    result: list[str] = []
    cursor = copied = 0
    appended: list[str] = []
    for index, chunk in enumerate(chunks):
        cursor = _after_contexts(seeker, chunk, index, cursor)
        block = _Block.of(chunk)
        if not block.old:
            appended += [line + ending for line in block.added()]
            continue
        start, block = _place(seeker, chunk, block, index, cursor)
        result += lines[copied:start]
        result += block.replacement(lines[start : start + len(block.old)], ending)
        cursor = copied = start + len(block.old)
    result += lines[copied:] + appended
    return "".join(line + "\n" for line in result)


def _file_lines(text: str) -> tuple[list[str], str]:
    """The file's lines without "\n", and what stands before each "\n": "\r" only if it always does."""
    *lines, last = text.split("\n")
    ending = "\r" if lines and all(line.endswith("\r") for line in lines) else ""
    return ([*lines, last + ending] if last else lines), ending


@record
class _Block:
    """A chunk's lines as a block to be found (`old`) and the marks to replace it by."""

    old: tuple[str, ...]
    marks: tuple[tuple[LineKind, str], ...]

    @classmethod
    def of(cls, chunk: Chunk) -> _Block:
        marks = tuple((line.kind, line.text) for line in chunk.lines)
        return cls(tuple(text for kind, text in marks if kind is not LineKind.ADD), marks)

    def added(self) -> list[str]:
        return [text for kind, text in self.marks if kind is LineKind.ADD]

    def without_last_empty_line(self) -> _Block | None:
        """Models write the text's last newline as an empty line; the file has no such line.

        It is taken from the lines to be found, and from the end of the new ones if they end in one.
        """
        if not self.old or self.old[-1] != "":
            return None
        marks = list(self.marks)
        last = max(i for i, (kind, _) in enumerate(marks) if kind is not LineKind.ADD)
        # What is not in the file cannot be kept: if it is to be there, it is new.
        marks[last : last + 1] = [(LineKind.ADD, "")] if marks[last][0] is LineKind.KEEP else []
        end = max((i for i, (kind, _) in enumerate(marks) if kind is not LineKind.DROP), default=None)
        if end is not None and marks[end][1] == "":
            kept = marks[end][0] is LineKind.KEEP
            marks[end : end + 1] = [(LineKind.DROP, "")] if kept else []
        return _Block(self.old[:-1], tuple(marks))

    def replacement(self, found: Sequence[str], ending: str) -> list[str]:
        """The new lines, where `found` are the file's own lines that `old` matched."""
        kept = iter(found)
        lines: list[str] = []
        for kind, text in self.marks:
            if kind is LineKind.ADD:
                lines.append(text + ending)
                continue
            line = next(kept)
            if kind is LineKind.KEEP:
                lines.append(line)
        return lines


TOO_ALIKE = (
    "the place of a chunk: too many of the file's lines are alike to look at each. Send fewer lines around "
    "the change, or change the file by a command"
)


class _TooAlike(Exception):
    """More lines were compared than a patch may cost."""


def _after_contexts(seeker: _Seeker, chunk: Chunk, index: int, cursor: int) -> int:
    for context in chunk.contexts:
        found = seeker.find((context,), cursor)
        if found is None:
            raise ChunkMismatch(index, f"context '{context}'")
        cursor = found + 1
    return cursor


def _place(seeker: _Seeker, chunk: Chunk, block: _Block, index: int, cursor: int) -> tuple[int, _Block]:
    """Where the block starts, and the block as it matched (without its last empty line)."""
    for candidate in (block, block.without_last_empty_line()):
        if candidate is None:
            continue
        if not candidate.old:
            # An empty line alone, which the file does not have: what is new goes where the search stands.
            return cursor, candidate
        find = seeker.find_at_end if chunk.end_of_file else seeker.find
        try:
            start = find(candidate.old, cursor)
        except _TooAlike:
            raise ChunkMismatch(index, TOO_ALIKE) from None
        if start is not None:
            return start, candidate
    raise ChunkMismatch(index, "expected lines", block.old)


def _folded(line: str) -> str:
    return line.strip().translate(_PUNCTUATION)


_PASSES: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip, _folded)


class _Seeker:
    """Searches blocks of lines in one file; each pass's view of the file is made on first need."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._views: list[_View] = []
        self._left = [MOST_COMPARED]

    def find(self, block: Sequence[str], start: int) -> int | None:
        """The first place at or after `start`, by the strictest pass that has one."""
        for number, normalise in enumerate(_PASSES):
            place = self._view(number).find([normalise(line) for line in block], start)
            if place is not None:
                return place
        return None

    def find_at_end(self, block: Sequence[str], start: int) -> int | None:
        """The place where the block is the file's last lines, if it fits there."""
        place = len(self._lines) - len(block)
        if place < start:
            return None
        tail = self._lines[place:]
        for normalise in _PASSES:
            if [normalise(line) for line in tail] == [normalise(line) for line in block]:
                return place
        return None

    def _view(self, number: int) -> _View:
        while len(self._views) <= number:
            normalise = _PASSES[len(self._views)]
            self._views.append(_View([normalise(line) for line in self._lines], self._left))
        return self._views[number]


class _View:
    """The file's lines as a pass compares them, with the positions of each line."""

    def __init__(self, lines: list[str], left: list[int]) -> None:
        self._lines = lines
        self._left = left
        """The number of lines that may still be compared, of all views together."""
        self._positions: dict[str, list[int]] = {}
        for position, line in enumerate(lines):
            self._positions.setdefault(line, []).append(position)

    def find(self, block: list[str], start: int) -> int | None:
        # The rarest line leaves the fewest candidates: a block of blank lines and one
        # unique line is found in one comparison.
        offset, places = self._rarest(block)
        for index in range(bisect_left(places, start + offset), len(places)):
            place = places[index] - offset
            self._left[0] -= len(block)
            if self._left[0] < 0:
                raise _TooAlike
            if self._lines[place : place + len(block)] == block:
                return place
        return None

    def _rarest(self, block: list[str]) -> tuple[int, list[int]]:
        candidates = [(self._positions.get(line, []), offset) for offset, line in enumerate(block)]
        places, offset = min(candidates, key=lambda candidate: len(candidate[0]))
        return offset, places
