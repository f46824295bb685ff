"""The text of a patch, read into hunks.

    patch  = "*** Begin Patch" hunk* "*** End Patch"
    hunk   = "*** Add File: p" ("+" text)*
           | "*** Delete File: p"
           | "*** Update File: p" ["*** Move to: q"] chunk+
    chunk  = ["@@" | ("@@ " context)+] (" " text | "-" text | "+" text)+ ["*** End of File"]

Models are sloppy, so this reader allows what cannot be misunderstood: blanks around
markers, a heredoc's wrapper left around the body, a first chunk without `@@`, an empty
line for an empty context line, carriage returns at line ends.

It must not know what is on disk: whether a hunk fits is `plan`'s question.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

from orchestrator.core.frozen import record

BEGIN_PATCH = "*** Begin Patch"
END_PATCH = "*** End Patch"
ADD_FILE = "*** Add File: "
DELETE_FILE = "*** Delete File: "
UPDATE_FILE = "*** Update File: "
MOVE_TO = "*** Move to: "
END_OF_FILE = "*** End of File"
_HEREDOC_OPENERS = ("<<EOF", "<<'EOF'", '<<"EOF"')


class PatchSyntaxError(ValueError):
    """The text is no patch; the message is meant for the model that wrote it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class LineKind(Enum):
    """The kind of a line in a chunk, by the character that marks it."""

    KEEP = " "
    DROP = "-"
    ADD = "+"


@record
class ChunkLine:
    """A line of a chunk, without its mark."""

    kind: LineKind
    text: str


@record
class Chunk:
    """A replacement inside a file.

    `contexts` are lines to be found first, one after the other (a class, then a method).
    """

    contexts: tuple[str, ...]
    lines: tuple[ChunkLine, ...]
    end_of_file: bool = False


@record
class AddFile:
    """A file to be created, or written over."""

    path: str
    content: str


@record
class DeleteFile:
    """A file to be removed."""

    path: str


@record
class UpdateFile:
    """A file to be changed in places, and moved if `move_to` is given."""

    path: str
    move_to: str | None
    chunks: tuple[Chunk, ...]


Hunk: TypeAlias = AddFile | DeleteFile | UpdateFile


@record
class Patch:
    """The hunks, in the order in which they are to be applied."""

    hunks: tuple[Hunk, ...]


def parse_patch(text: str) -> Patch:
    """Reads a patch; raises nothing but `PatchSyntaxError`."""
    reader = _Reader(_body_lines(text))
    hunks: list[Hunk] = []
    while not reader.done:
        hunks.append(_read_hunk(reader))
    return Patch(tuple(hunks))


class _Reader:
    """A cursor over the lines between the two outer markers."""

    __slots__ = ("_lines", "_next")

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._next = 0

    @property
    def done(self) -> bool:
        return self._next >= len(self._lines)

    @property
    def line(self) -> str:
        return self._lines[self._next]

    @property
    def number(self) -> int:
        # Line 1 is the begin marker, whether or not a heredoc's opener stood before it.
        return self._next + 2

    def take(self) -> str:
        line = self._lines[self._next]
        self._next += 1
        return line


def _body_lines(text: str) -> Sequence[str]:
    # Only "\n" ends a line here: str.splitlines would also cut at form feeds and at
    # U+2028, which are ordinary text inside source files.
    lines = [line.removesuffix("\r") for line in text.strip().split("\n")]
    if len(lines) >= 4 and lines[0].strip() in _HEREDOC_OPENERS and lines[-1].endswith("EOF"):
        lines = lines[1:-1]
    if lines[0].strip() != BEGIN_PATCH:
        raise PatchSyntaxError(f"The first line of the patch must be '{BEGIN_PATCH}'")
    if len(lines) < 2 or lines[-1].strip() != END_PATCH:
        raise PatchSyntaxError(f"The last line of the patch must be '{END_PATCH}'")
    return lines[1:-1]


def _invalid(line_number: int, message: str) -> PatchSyntaxError:
    return PatchSyntaxError(f"invalid hunk at line {line_number}, {message}")


def _read_hunk(reader: _Reader) -> Hunk:
    number = reader.number
    header = reader.take().strip()
    if (path := _named(header, ADD_FILE)) is not None:
        return AddFile(path, _read_added(reader))
    if (path := _named(header, DELETE_FILE)) is not None:
        return DeleteFile(path)
    if (path := _named(header, UPDATE_FILE)) is not None:
        return _read_update(reader, path, number)
    valid = ", ".join(f"'{marker}{{path}}'" for marker in (ADD_FILE, DELETE_FILE, UPDATE_FILE))
    raise _invalid(number, f"'{header}' is not a valid hunk header. Valid hunk headers: {valid}")


def _named(header: str, marker: str) -> str | None:
    if not header.startswith(marker):
        return None
    return header.removeprefix(marker).strip() or None


def _read_added(reader: _Reader) -> str:
    added: list[str] = []
    while not reader.done and reader.line.startswith("+"):
        added.append(reader.take()[1:] + "\n")
    return "".join(added)


def _read_update(reader: _Reader, path: str, number: int) -> UpdateFile:
    move_to = None
    if not reader.done and (move_to := _named(reader.line.strip(), MOVE_TO)) is not None:
        reader.take()
    chunks: list[Chunk] = []
    while not reader.done and not reader.line.startswith("***"):
        if reader.line.strip():
            chunks.append(_read_chunk(reader, first=not chunks))
        else:
            reader.take()
    if not chunks:
        raise _invalid(number, f"Update file hunk for path '{path}' is empty")
    return UpdateFile(path, move_to, tuple(chunks))


def _read_chunk(reader: _Reader, *, first: bool) -> Chunk:
    contexts = _read_contexts(reader, required=not first)
    lines: list[ChunkLine] = []
    while not reader.done and (line := _chunk_line(reader.line)) is not None:
        reader.take()
        lines.append(line)
    if not lines:
        raise _no_lines(reader)
    end_of_file = not reader.done and reader.line.strip() == END_OF_FILE
    if end_of_file:
        reader.take()
    return Chunk(contexts, tuple(lines), end_of_file)


def _read_contexts(reader: _Reader, *, required: bool) -> tuple[str, ...]:
    if required and not _is_context(reader.line):
        message = f"Expected update hunk to start with a @@ context marker, got: '{reader.line}'"
        raise _invalid(reader.number, message)
    contexts: list[str] = []
    while not reader.done and _is_context(reader.line):
        context = reader.take()[3:]
        named = bool(context.strip())
        if not reader.done and _is_context(reader.line) and not (named and reader.line[3:].strip()):
            raise _no_lines(reader)
        if named:
            contexts.append(context)
    return tuple(contexts)


def _is_context(line: str) -> bool:
    return line.rstrip() == "@@" or line.startswith("@@ ")


def _chunk_line(line: str) -> ChunkLine | None:
    """The line as a part of a chunk, or None if the chunk ends before it."""
    if not line:
        return ChunkLine(LineKind.KEEP, "")
    try:
        return ChunkLine(LineKind(line[0]), line[1:])
    except ValueError:
        return None


def _no_lines(reader: _Reader) -> PatchSyntaxError:
    if reader.done or reader.line.startswith("***"):
        return _invalid(reader.number, "Update hunk does not contain any lines")
    message = (
        f"Unexpected line found in update hunk: '{reader.line}'. Every line should start with "
        "' ' (context line), '+' (added line), or '-' (removed line)"
    )
    return _invalid(reader.number, message)
