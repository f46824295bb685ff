"""The plan of a patch: the content of every file after it, decided before anything is written.

Hunks are checked in order against an overlay: a later hunk sees what an earlier one leaves.
The first hunk that does not fit fails the whole patch, with nothing on disk touched.

It must not write, and must not know which paths are permitted: see `outside` and `writer`.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, assert_never

from orchestrator.core.frozen import record
from orchestrator.folders.linediff import unified_diff
from orchestrator.protocol import commands as wire
from orchestrator.protocol.commands import FileChange
from orchestrator.protocol.wire import written
from orchestrator.sandbox.policy_paths import PROJECT_CONFIG, Place
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.patch import grammar
from orchestrator.tools.patch.writer import read_entry

# ── bounds ────────────────────────────────────────────────────────────────────────────────────────
# Bounds on a patch of one call, and on the part of it that events and the call's record hold.
#
# A patch of thousands of files is applied like any other. What its events and its call's record hold is
# bounded: beyond a number of files they say how many more there are, and never seem to say all.


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
        left -= _bytes(path) + _FILE_BYTES + sum(_weight(text) for text in texts.values())
        if left < 0:
            break
        told[path] = change.model_copy(update={name: text and cut(text) for name, text in texts.items()})
    return told, len(changes) - len(told)


def _weight(text: str | None) -> int:
    # What it may have at most, since no letter takes less than a byte.
    return min(_bytes((text or "")[:_REFERENCE_BYTES]), _REFERENCE_BYTES)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def cut(text: str) -> str:
    """The text, or its beginning with a word about the rest."""
    rest = len(text) - TEXT_CHARS
    return text if rest <= 0 else f"{text[:TEXT_CHARS]}\n[… {rest:,} more characters]\n"


def weight(data: Mapping[str, Mapping[str, Any]]) -> int:
    """The bytes that records of files take in an entry, each long text counted as its reference."""
    return sum(
        2 * _bytes(path)
        + _FILE_BYTES
        + sum(_weight(text) for text in fields.values() if isinstance(text, str))
        for path, fields in data.items()
    )


# ── plan ──────────────────────────────────────────────────────────────────────────────────────────


CHANGE_CONTEXT_LINES = 1
"""Unchanged lines around each change in the `unified_diff` of a FileChange."""

ChangeKind: TypeAlias = Literal["add", "update", "delete"]


class PatchCheckError(Exception):
    """The patch does not fit the files; nothing was written.

    `message` is for the model and names file and hunk. `hunk_index` counts from 0; file and
    index are None for a patch without hunks.
    """

    def __init__(self, message: str, file: Path | None = None, hunk_index: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.hunk_index = hunk_index


def refusal_text(error: grammar.PatchSyntaxError | PatchCheckError) -> str:
    """The text that the model reads about a patch that was refused before anything was written."""
    return f"apply_patch verification failed: {error.message}"


@record
class PlannedFile:
    """A file before and after a patch. A move is two of them: the source is deleted, the target is written.

    `path` is absolute and normalised, as people know it; `target` is where the path really leads
    with every symlink followed (for a file to be deleted: of its folder), and the only place
    that is ever written. `mode` holds the permission bits of `after`, None for a new file.
    """

    path: Path
    target: Path
    kind: ChangeKind
    before: FileImage | None
    after: bytes | None
    mode: int | None
    move_to: Path | None = None
    moved_from: Path | None = None
    unified_diff: str = ""


@record
class PatchPlan:
    """All files of a patch, in the order in which the patch touches them first.

    `changes` are told by events, by path; `summary` is what
    the model reads on success, with the paths as the patch has them.
    """

    files: tuple[PlannedFile, ...]
    changes: dict[str, wire.FileChange]
    summary: str


def plan_patch(patch: grammar.Patch, cwd: Path, files: FileReader) -> PatchPlan:
    """Checks all hunks; raises `PatchCheckError` for the first that cannot be applied.

    `cwd` must be absolute; relative paths in the patch start there.
    """
    if not patch.hunks:
        raise PatchCheckError("No files were modified.")
    if len(patch.hunks) > MOST_FILES:
        raise PatchCheckError(
            f"Nothing was written: a patch may change at most {MOST_FILES:,} files, this one changes "
            f"{len(patch.hunks):,}; send it in parts"
        )
    overlay = _Overlay(cwd, files)
    for index, hunk in enumerate(patch.hunks):
        try:
            _check_hunk(overlay, hunk)
        except _Misfit as misfit:
            where = (
                f"Nothing was written: hunk {index + 1} of {len(patch.hunks)} ({_header(hunk)}{misfit.where})"
            )
            message = f"{misfit.message}\n{where} does not apply."
            raise PatchCheckError(message, misfit.path, index) from misfit
    planned = tuple(overlay.planned())
    return PatchPlan(planned, _changes(planned), _summary(patch))


class _Misfit(Exception):
    """A hunk does not fit; `where` narrows the place down inside of the hunk."""

    def __init__(self, message: str, path: Path, where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.where = where


@record
class _Place:
    """A path of the patch: as people know it, its entry in its real folder, and where it leads."""

    path: Path
    entry: Path
    target: Path


class _Overlay:
    """The files as the hunks so far leave them, over the files as they are."""

    def __init__(self, cwd: Path, files: FileReader) -> None:
        self._cwd = cwd
        self._files = files
        self._paths: dict[Path, Path] = {}
        self._before: dict[Path, FileImage | None] = {}
        self._now: dict[Path, FileImage | None] = {}
        self._moves: dict[Path, Path] = {}
        self._added: set[Path] = set()
        self._read = 0
        """Bytes of all files that were read."""

    def locate(self, name: str) -> _Place:
        # Normalised before symlinks are followed, so that the path which a person approves
        # is the path that is written: `link/../x` means the `x` beside `link`.
        path = Path(os.path.normpath(self._cwd / name))
        try:
            entry = self._files.resolve(path.parent) / path.name
            target = entry if entry in self._now else self._files.resolve(path)
        except ValueError as error:
            raise _Misfit(f"Failed to use {name!r} as a path: {error}", path) from error
        except OSError as error:
            # A link on the way was swapped while it was being followed.
            raise _Misfit(f"Failed to follow {path}: {_reason(error)}", path) from error
        return _Place(path, entry, target)

    def read(self, path: Path, target: Path) -> FileImage | None:
        if target not in self._now:
            image = self._files.read(target)
            self._read += len(image.content) if image is not None else 0
            if self._read > MOST_BYTES:
                raise _Misfit(
                    f"The files of a patch may have at most {MOST_BYTES:,} bytes together; send it in parts",
                    path,
                )
            self._before[target] = self._now[target] = image
            self._paths[target] = path
        return self._now[target]

    def write(self, target: Path, image: FileImage | None, *, added: bool = False) -> None:
        """Sets the content; a file written over or removed is no longer what was moved there."""
        self._now[target] = image
        if added or image is None:
            self._moves = {source: dest for source, dest in self._moves.items() if dest != target}
        if added:
            self._added.add(target)

    def move(self, source: Path, dest: Path, image: FileImage) -> None:
        origin = next((first for first, last in self._moves.items() if last == source), source)
        self.write(source, None)
        self.write(dest, image, added=True)
        self._added.discard(dest)
        if origin != dest:
            self._moves[origin] = dest

    def require_folder(self, path: Path, target: Path) -> None:
        """A file can be put at `target` only if nothing above it is a file."""
        for folder in target.parents:
            if self._now.get(folder) is not None:
                raise _write_failed(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
            try:
                image = self._files.read(folder)
            except IsADirectoryError:
                return
            if image is not None:
                raise _write_failed(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))

    def planned(self) -> Iterator[PlannedFile]:
        # A file that the patch itself made, or put back, was not moved as far as the disk knows.
        moves = {s: d for s, d in self._moves.items() if self._before[s] and self._now[s] is None}
        sources = {dest: source for source, dest in moves.items()}
        for target, path in self._paths.items():
            before, now = self._before[target], self._now[target]
            dest = moves.get(target)
            if before is None and now is None:
                continue
            result = self._now[dest] if dest else now
            yield PlannedFile(
                path=path,
                target=target,
                kind=self._kind(target, dest),
                before=before,
                after=now.content if now else None,
                mode=stat.S_IMODE(now.mode) if now and now.mode else None,
                move_to=self._paths[dest] if dest else None,
                moved_from=self._paths[sources[target]] if target in sources else None,
                unified_diff=_diff(before, result) if before and result else "",
            )

    def _kind(self, target: Path, dest: Path | None) -> ChangeKind:
        if dest is not None:
            return "update"
        if self._now[target] is None:
            return "delete"
        return "add" if self._before[target] is None or target in self._added else "update"


def _check_hunk(overlay: _Overlay, hunk: grammar.Hunk) -> None:
    match hunk:
        case grammar.AddFile():
            _check_add(overlay, hunk)
        case grammar.DeleteFile():
            _check_delete(overlay, hunk)
        case grammar.UpdateFile():
            _check_update(overlay, hunk)
        case _:
            assert_never(hunk)


def _check_add(overlay: _Overlay, hunk: grammar.AddFile) -> None:
    place = overlay.locate(hunk.path)
    before = _read_for_write(overlay, place)
    image = FileImage(_encoded(hunk.content, place.path), before.mode if before else 0)
    overlay.write(place.target, image, added=True)


def _check_delete(overlay: _Overlay, hunk: grammar.DeleteFile) -> None:
    place = overlay.locate(hunk.path)
    try:
        present = overlay.read(place.path, place.entry) is not None
    except OSError as error:
        raise _Misfit(f"Failed to delete file {place.path}: {_reason(error)}", place.path) from error
    if not present:
        raise _Misfit(f"Failed to delete file {place.path}: {_MISSING}", place.path)
    overlay.write(place.entry, None)


def _check_update(overlay: _Overlay, hunk: grammar.UpdateFile) -> None:
    place = overlay.locate(hunk.path)
    before, text = _read_for_update(overlay, place)
    try:
        content = _encoded(apply_chunks(text, hunk.chunks), place.path)
    except ChunkMismatch as mismatch:
        raise _no_match(place.path, hunk, mismatch) from mismatch
    image = FileImage(content, before.mode)
    if hunk.move_to is None:
        overlay.write(place.target, image)
        return
    dest = overlay.locate(hunk.move_to)
    if place.entry != place.target:
        message = f"Failed to move file {place.path}: it is a symbolic link to {place.target}"
        raise _Misfit(message, place.path)
    _read_for_write(overlay, dest)
    overlay.move(place.target, dest.target, image)


def _read_for_update(overlay: _Overlay, place: _Place) -> tuple[FileImage, str]:
    failed = f"Failed to read file to update {place.path}"
    try:
        image = overlay.read(place.path, place.target)
        if image is None:
            raise _Misfit(f"{failed}: {_MISSING}", place.path)
        if stat.S_ISLNK(image.mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _require_comparable(image, place.path)
        return image, image.content.decode("utf-8")
    except OSError as error:
        raise _Misfit(f"{failed}: {_reason(error)}", place.path) from error
    except UnicodeDecodeError as error:
        raise _Misfit(f"{failed}: it is not valid UTF-8", place.path) from error


def _read_for_write(overlay: _Overlay, place: _Place) -> FileImage | None:
    try:
        before = overlay.read(place.path, place.target)
        if before is not None and stat.S_ISLNK(before.mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if before is None:
            overlay.require_folder(place.path, place.target)
        else:
            _require_comparable(before, place.path)
    except OSError as error:
        raise _write_failed(place.path, error) from error
    return before


def _require_comparable(image: FileImage, path: Path) -> None:
    if image.content.count(b"\n") > MOST_LINES:
        raise _Misfit(
            f"Failed to change {path}: it has more than {MOST_LINES:,} lines; change it by a command", path
        )


_MISSING = f"{os.strerror(errno.ENOENT)} (os error {errno.ENOENT})"


def _reason(error: OSError) -> str:
    return f"{error.strerror} (os error {error.errno})"


def _write_failed(path: Path, error: OSError) -> _Misfit:
    return _Misfit(f"Failed to write file {path}: {_reason(error)}", path)


def _no_match(path: Path, hunk: grammar.UpdateFile, mismatch: ChunkMismatch) -> _Misfit:
    message = f"Failed to find {mismatch.problem} in {path}"
    if mismatch.expected:
        message += ":\n" + "\n".join(mismatch.expected)
    where = f", chunk {mismatch.chunk_index + 1} of {len(hunk.chunks)}"
    return _Misfit(message, path, where)


def _encoded(text: str, path: Path) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Misfit(f"Failed to write file {path}: the text is not valid Unicode", path) from error


def _header(hunk: grammar.Hunk) -> str:
    match hunk:
        case grammar.AddFile():
            return f"Add File: {hunk.path}"
        case grammar.DeleteFile():
            return f"Delete File: {hunk.path}"
        case grammar.UpdateFile():
            return f"Update File: {hunk.path}"
        case _:
            assert_never(hunk)


def _diff(before: FileImage, after: FileImage) -> str:
    return unified_diff(_shown(before.content), _shown(after.content), CHANGE_CONTEXT_LINES)


def _shown(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _changes(planned: tuple[PlannedFile, ...]) -> dict[str, wire.FileChange]:
    # A move is told by its source alone; the file at its end has no entry of its own.
    return {str(file.path): _file_change(file) for file in planned if file.moved_from is None}


def _file_change(file: PlannedFile) -> wire.FileChange:
    match file.kind:
        case "add":
            return wire.AddFile(content=_shown(file.after or b""))
        case "delete":
            return wire.DeleteFile(content=_shown(file.before.content if file.before else b""))
        case "update":
            move_path = str(file.move_to) if file.move_to else None
            return wire.UpdateFile(unified_diff=file.unified_diff, move_path=move_path)
        case _:
            assert_never(file.kind)


def _summary(patch: grammar.Patch) -> str:
    letters: dict[str, list[str]] = {"A": [], "M": [], "D": []}
    for hunk in patch.hunks:
        match hunk:
            case grammar.AddFile():
                letters["A"].append(hunk.path)
            case grammar.UpdateFile():
                letters["M"].append(hunk.move_to or hunk.path)
            case grammar.DeleteFile():
                letters["D"].append(hunk.path)
            case _:
                assert_never(hunk)
    lines = [f"{letter} {path}\n" for letter, paths in letters.items() for path in paths]
    return "Success. Updated the following files:\n" + "".join(lines)


# ── match ─────────────────────────────────────────────────────────────────────────────────────────
# Where the chunks of a hunk fit in a file, and the text that results.
#
# For each chunk: its contexts are sought forward from the cursor, one after the other, then the lines
# that it keeps and drops, as one block. Each search is made four times, every pass more forgiving than
# the one before: as written, without trailing blanks, without blanks at both ends, and with typographic
# punctuation folded to ASCII. A chunk marked as the file's end fits there or nowhere. A block that ends
# in an empty line, and is not found, is sought again without it. A chunk that only adds goes to the end
# of the file.
#
# A pass looks at candidates by the rarest line of the block, from an index that is made once per file and
# pass, so that neither long files nor many chunks cost more than they must. What a file of a million like
# lines could still cost is bounded.
#
# It must not know of paths or disks: texts in, text out.


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


def apply_chunks(text: str, chunks: Sequence[grammar.Chunk]) -> str:
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
    marks: tuple[tuple[grammar.LineKind, str], ...]

    @classmethod
    def of(cls, chunk: grammar.Chunk) -> _Block:
        marks = tuple((line.kind, line.text) for line in chunk.lines)
        return cls(tuple(text for kind, text in marks if kind is not grammar.LineKind.ADD), marks)

    def added(self) -> list[str]:
        return [text for kind, text in self.marks if kind is grammar.LineKind.ADD]

    def without_last_empty_line(self) -> _Block | None:
        """Models write the text's last newline as an empty line; the file has no such line.

        It is taken from the lines to be found, and from the end of the new ones if they end in one.
        """
        if not self.old or self.old[-1] != "":
            return None
        marks = list(self.marks)
        last = max(i for i, (kind, _) in enumerate(marks) if kind is not grammar.LineKind.ADD)
        # What is not in the file cannot be kept: if it is to be there, it is new.
        marks[last : last + 1] = (
            [(grammar.LineKind.ADD, "")] if marks[last][0] is grammar.LineKind.KEEP else []
        )
        end = max((i for i, (kind, _) in enumerate(marks) if kind is not grammar.LineKind.DROP), default=None)
        if end is not None and marks[end][1] == "":
            kept = marks[end][0] is grammar.LineKind.KEEP
            marks[end : end + 1] = [(grammar.LineKind.DROP, "")] if kept else []
        return _Block(self.old[:-1], tuple(marks))

    def replacement(self, found: Sequence[str], ending: str) -> list[str]:
        """The new lines, where `found` are the file's own lines that `old` matched."""
        kept = iter(found)
        lines: list[str] = []
        for kind, text in self.marks:
            if kind is grammar.LineKind.ADD:
                lines.append(text + ending)
                continue
            line = next(kept)
            if kind is grammar.LineKind.KEEP:
                lines.append(line)
        return lines


TOO_ALIKE = (
    "the place of a chunk: too many of the file's lines are alike to look at each. Send fewer lines around "
    "the change, or change the file by a command"
)


class _TooAlike(Exception):
    """More lines were compared than a patch may cost."""


def _after_contexts(seeker: _Seeker, chunk: grammar.Chunk, index: int, cursor: int) -> int:
    for context in chunk.contexts:
        found = seeker.find((context,), cursor)
        if found is None:
            raise ChunkMismatch(index, f"context '{context}'")
        cursor = found + 1
    return cursor


def _place(
    seeker: _Seeker, chunk: grammar.Chunk, block: _Block, index: int, cursor: int
) -> tuple[int, _Block]:
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


# ── writable ──────────────────────────────────────────────────────────────────────────────────────
# The check of which files of a plan are outside the writable roots.
#
# A path counts where it really leads: `plan` has followed every symlink and `..` already, so what is
# compared here is what will be written. A repository's `.git` is read-only even in a writable root: a
# hook or a config entry written there runs as the user, outside of the sandbox, at the next `git`
# command. Where `.git` is a file (a worktree, a submodule) or a symlink, the folders that it leads to are
# read-only too. So is every `dendro.toml` that is there, however deep: the next `dendro` that starts
# beside it reads it, and may trust it. A new one is a stranger's, which loosens nothing.
#
# It must not know of policies or approvals: roots in, offending paths out.


_POINTER = "gitdir:"
_POINTER_BYTES = 8192


@record
class WritableRoots:
    """Folders that may be written, less those inside them that may not.

    The `.git` of each root and every `dendro.toml` that exists are read-only without being named.
    """

    roots: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()


def outside(plan: PatchPlan, roots: WritableRoots | None) -> tuple[Path, ...]:
    """The plan's paths (sources and ends of moves too) that lie outside; None permits all.

    Raises OSError if a root cannot be resolved: unknown is not permitted.
    """
    if roots is None:
        return ()
    allowed = [Path(os.path.realpath(root)) for root in roots.roots]
    refused = [Path(os.path.realpath(path)) for path in roots.read_only]
    refused += [path for root in allowed for path in git_folders(root)]
    return tuple(
        file.path
        for file in plan.files
        if not _within(file.target, allowed) or _within(file.target, refused) or _configures(file)
    )


def _configures(file: PlannedFile) -> bool:
    """Whether settings are changed that may be trusted, or be what keeps a session in bounds."""
    return file.before is not None and PROJECT_CONFIG in (file.path.name, file.target.name)


def git_folders(root: Path) -> Iterator[Path]:
    """The git paths to protect for a work tree at `root`, whether or not they exist yet."""
    entry = root / ".git"
    yield entry
    yield Path(os.path.realpath(entry))
    if (git_dir := _pointed_at(entry, prefix=_POINTER)) is None:
        return
    yield git_dir
    # Hooks and config of a worktree live in the repository that it belongs to.
    if (common := _pointed_at(git_dir / "commondir", prefix="")) is not None:
        yield common


def _pointed_at(file: Path, prefix: str) -> Path | None:
    """The folder that a pointer file names, relative to the pointer's own folder."""
    try:
        if not file.is_file():
            return None
        line = os.fsdecode(read_regular(file, _POINTER_BYTES)).strip()
    except OSError:
        return None
    if not line.startswith(prefix) or "\0" in line:
        return None
    named = line.removeprefix(prefix).strip()
    return Path(os.path.realpath(file.parent / named)) if named else None


def _within(path: Path, folders: list[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────
# Files as the patch applier reads them: content, mode, and where a path really leads.
#
# The one module of this package that reads the disk for planning and for diffs (`writer` writes it).
# Everything else gets a `FileReader`, so that tests and takeovers may hand in another view of the same
# files.


@record
class FileImage:
    """A file at a moment. A symlink's content is its target, as git stores it."""

    content: bytes
    mode: int

    @property
    def git_mode(self) -> str:
        """The mode as git writes it: symlink, executable or plain."""
        if stat.S_ISLNK(self.mode):
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"


class FileReader(Protocol):
    """The file system as planning and diffs read it."""

    def resolve(self, path: Path) -> Path:
        """Where the path leads when every symlink on it is followed; it need not exist."""
        ...

    def read(self, path: Path) -> FileImage | None:
        """The file, a last symlink not followed; None if there is none.

        Raises OSError for what is no file (a folder, a device) or cannot be read.
        """
        ...


class DiskFiles:
    """The file system of this machine, without what is hidden from the session's commands.

    `hidden` are real paths. A file there cannot be read, and so no patch can be planned that changes it,
    moves it to where it can be read, or makes one beside it.
    """

    def __init__(self, hidden: Iterable[Path] = ()) -> None:
        self._hidden = tuple(hidden)

    def resolve(self, path: Path) -> Path:
        return Path(os.path.realpath(path))

    def read(self, path: Path) -> FileImage | None:
        try:
            return self._read(path.name, path.parent)
        except (FileNotFoundError, NotADirectoryError):
            # What could stand below a hidden folder is hidden, too.
            self._require_shown(self.resolve(path))
            return None

    def _read(self, name: str, folder: Path) -> FileImage:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The folder that is open, not what its name leads to by now.
            self._require_shown(Path(f"/proc/self/fd/{descriptor}").readlink() / name)
            return FileImage(*read_entry(name, descriptor))
        finally:
            os.close(descriptor)

    def _require_shown(self, real: Path) -> None:
        if any(real.is_relative_to(path) for path in self._hidden):
            raise PermissionError(errno.EACCES, "Dendro keeps it from sessions", str(real))


class PlacedFiles(DiskFiles):
    """The files of a portable folder: a path of its commands leads where this machine has it."""

    def __init__(self, place: Place, hidden: Iterable[Path] = ()) -> None:
        super().__init__(hidden)
        self._place = place

    def resolve(self, path: Path) -> Path:
        return self._place.followed(path)

    def _require_shown(self, real: Path) -> None:
        # The copies lie in a hidden folder.
        if not self._place.holds(real):
            super()._require_shown(real)


def display_root(cwd: Path) -> Path:
    """The folder that diffs name files from: the git work tree around `cwd`, else `cwd`.

    An empty `.git` folder is no repository: sandboxes leave such ones behind.
    """
    for folder in (cwd, *cwd.parents):
        git = folder / ".git"
        if git.is_file() or os.path.lexists(git / "HEAD"):
            return folder
    return cwd
