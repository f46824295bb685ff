"""The plan of a patch: the content of every file after it, decided before anything is written.

Hunks are checked in order against an overlay: a later hunk sees what an earlier one leaves.
The first hunk that does not fit fails the whole patch, with nothing on disk touched.

It must not write, and must not know which paths are permitted: see `writable` and `apply`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, assert_never

from orchestrator.core.frozen import record
from orchestrator.folders.linediff import unified_diff
from orchestrator.protocol import commands as wire
from orchestrator.tools.patch.bounds import MOST_BYTES, MOST_FILES, MOST_LINES
from orchestrator.tools.patch.files import FileImage, FileReader
from orchestrator.tools.patch.grammar import AddFile, DeleteFile, Hunk, Patch, PatchSyntaxError, UpdateFile
from orchestrator.tools.patch.match import ChunkMismatch, apply_chunks

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


def refusal_text(error: PatchSyntaxError | PatchCheckError) -> str:
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


def plan_patch(patch: Patch, cwd: Path, files: FileReader) -> PatchPlan:
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


def _check_hunk(overlay: _Overlay, hunk: Hunk) -> None:
    match hunk:
        case AddFile():
            _check_add(overlay, hunk)
        case DeleteFile():
            _check_delete(overlay, hunk)
        case UpdateFile():
            _check_update(overlay, hunk)
        case _:
            assert_never(hunk)


def _check_add(overlay: _Overlay, hunk: AddFile) -> None:
    place = overlay.locate(hunk.path)
    before = _read_for_write(overlay, place)
    image = FileImage(_encoded(hunk.content, place.path), before.mode if before else 0)
    overlay.write(place.target, image, added=True)


def _check_delete(overlay: _Overlay, hunk: DeleteFile) -> None:
    place = overlay.locate(hunk.path)
    try:
        present = overlay.read(place.path, place.entry) is not None
    except OSError as error:
        raise _Misfit(f"Failed to delete file {place.path}: {_reason(error)}", place.path) from error
    if not present:
        raise _Misfit(f"Failed to delete file {place.path}: {_MISSING}", place.path)
    overlay.write(place.entry, None)


def _check_update(overlay: _Overlay, hunk: UpdateFile) -> None:
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


def _no_match(path: Path, hunk: UpdateFile, mismatch: ChunkMismatch) -> _Misfit:
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


def _header(hunk: Hunk) -> str:
    match hunk:
        case AddFile():
            return f"Add File: {hunk.path}"
        case DeleteFile():
            return f"Delete File: {hunk.path}"
        case UpdateFile():
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


def _summary(patch: Patch) -> str:
    letters: dict[str, list[str]] = {"A": [], "M": [], "D": []}
    for hunk in patch.hunks:
        match hunk:
            case AddFile():
                letters["A"].append(hunk.path)
            case UpdateFile():
                letters["M"].append(hunk.move_to or hunk.path)
            case DeleteFile():
                letters["D"].append(hunk.path)
            case _:
                assert_never(hunk)
    lines = [f"{letter} {path}\n" for letter, paths in letters.items() for path in paths]
    return "Success. Updated the following files:\n" + "".join(lines)
