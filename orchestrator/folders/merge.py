"""A three-way merge into a folder: planned by paths, without looking for renames, and written whole or not.

What the folder holds is read from the disk, not from its last snapshot: an ignored file in the way, or one
that changed since, is a conflict and not lost. Contents are merged by `git merge-file`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from orchestrator.folders.build import FOLDER_FLAGS
from orchestrator.folders.git_objects import object_id
from orchestrator.folders.known import Change, File, Known, changes
from orchestrator.folders.names import FILE, FOLDER, LINK, PROGRAM, mode_of, quoted
from orchestrator.folders.records import (
    ANYWHERE,
    Bounds,
    Conflict,
    Conflicted,
    Counts,
    FolderError,
    Guard,
    Planned,
)
from orchestrator.folders.store import Objects
from orchestrator.folders.take import told
from orchestrator.sandbox.git import GitFailed, git_environment, run_git_here

MOST_CONFLICTS = 100
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FILES = (FILE, PROGRAM)


class Side(NamedTuple):
    """A path on one side: its mode (0 for what no snapshot has) and the id of its content."""

    mode: int
    sha: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """A path that the merge changes."""

    path: bytes
    before: Side | None
    after: Side | None
    content: bytes = b""

    @property
    def change(self) -> Change:
        """The step as it is counted."""
        what = "A" if self.before is None else "D" if self.after is None else "M"
        return Change(what, self.path, None, None)


class Refused(Exception):
    """A path that cannot be merged; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a merge, or its conflicts."""

    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all paths with their contents before and after."""
        found = hashlib.sha256()
        for step in self.steps:
            for part in (step.path, repr(step.before).encode(), repr(step.after).encode()):
                found.update(len(part).to_bytes(8) + part)
        return found.hexdigest()

    def counted(self) -> tuple[Counts, tuple[str, ...]]:
        """The figures and names of the steps."""
        return told(step.change for step in self.steps)

    def told(self) -> Planned | Conflicted:
        """The plan as a record."""
        if self.conflicts:
            return Conflicted(self.conflicts[:MOST_CONFLICTS], len(self.conflicts))
        return Planned(self.digest, *self.counted())


class Planner:
    """Plans a merge into the folder at a path. `work` is a folder of ours for the contents to merge."""

    def __init__(
        self, folder: Path, objects: Objects, bounds: Bounds, work: Path, guard: Guard = ANYWHERE
    ) -> None:
        self._folder = folder
        self._objects = objects
        self._bounds = bounds
        self._work = work
        self._guard = guard
        self._content: dict[bytes, bytes] = {}
        """Contents of files here, by their ids."""
        self._given_up: set[bytes] = set()
        """Paths that the merge takes away."""

    def plan(self, base: Known, theirs: Known) -> Plan:
        """The steps that bring the changes from `base` to `theirs` into the folder."""
        steps: list[Step] = []
        conflicts: list[Conflict] = []
        found = sorted(changes(base, theirs), key=lambda change: (change.what != "D", change.path))
        root = os.open(self._folder, FOLDER_FLAGS)
        try:
            for change in found:
                # What goes is planned first: a folder may come where a file was.
                try:
                    step = self._step(root, change)
                except Refused as refused:
                    conflicts.append(Conflict(quoted(change.path)[:512], str(refused)))
                    continue
                if step is not None:
                    steps.append(step)
                if change.what == "D":
                    self._given_up.add(change.path)
        finally:
            os.close(root)
        return Plan(tuple(steps), tuple(conflicts))

    def _step(self, root: int, change: Change) -> Step | None:
        base, theirs = _side(change.before), _side(change.after)
        ours = self._ours(root, change.path)
        if ours == theirs:
            return None
        if not self._guard.allows(change.path):
            raise Refused("the sandbox does not let it be written: change it by a patch, which asks")
        if ours == base:
            return self._taken(change.path, ours, theirs)
        if ours is not None and ours.mode == FOLDER:
            if theirs is not None and self._is_given_up(root, change.path):
                return self._taken(change.path, None, theirs)
            raise Refused("a folder here, a file there")
        if ours is None:
            raise Refused("deleted here, changed there")
        if theirs is None:
            raise Refused("changed here, deleted there")
        if base is None:
            raise Refused("another file is here already")
        if not all(side.mode in _FILES for side in (base, ours, theirs)):
            raise Refused("a link or another kind of file, changed on both sides")
        return self._merged(change.path, base, ours, theirs)

    def _taken(self, path: bytes, ours: Side | None, theirs: Side | None) -> Step:
        content = self._objects.read(theirs.sha, "blob") if theirs is not None else b""
        return Step(path, ours, theirs, content)

    def _merged(self, path: bytes, base: Side, ours: Side, theirs: Side) -> Step | None:
        mode = theirs.mode if ours.mode == base.mode else ours.mode
        if base.sha == theirs.sha:
            content = self._content[ours.sha]
        elif ours.sha in (base.sha, theirs.sha):
            content = self._objects.read(theirs.sha, "blob")
        else:
            parts = (self._content[ours.sha], self._objects.read(base.sha, "blob"))
            content = self._merged_content(*parts, self._objects.read(theirs.sha, "blob"))
        after = Side(mode, object_id("blob", content))
        return Step(path, ours, after, content) if after != ours else None

    def _merged_content(self, ours: bytes, base: bytes, theirs: bytes) -> bytes:
        names = []
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (self._work / name).write_bytes(content)
            names.append(name)
        try:
            words, environ = ("merge-file", "-p", *names), git_environment(Path(os.devnull))
            done = run_git_here(words, environ, self._work, self._bounds.seconds)
        except GitFailed as error:
            raise FolderError("failed", f"{error}. Nothing was merged") from error
        if done.code == 0:
            return done.out
        if 0 < done.code < 128:
            raise Refused("the same lines changed on both sides")
        if b"binary" in done.complaint:
            raise Refused("a binary file, changed on both sides")
        raise FolderError(
            "failed", f"git cannot merge a file: {done.complaint.decode('utf-8', 'replace')[:200].strip()}"
        )

    def _ours(self, root: int, path: bytes) -> Side | None:
        """The side that the folder is at a path."""
        *folders, name = path.split(b"/")
        with entered(root, folders) as (fd, missing):
            if missing is None:
                return self._here(fd, os.fsdecode(name))
            if missing and b"/".join(folders[:missing]) not in self._given_up:
                raise Refused("a file or a link here, where a folder belongs")
            return None

    def _here(self, fd: int, name: str) -> Side | None:
        try:
            found = read_side(fd, name, self._bounds.max_file)
        except FileTooLarge as error:
            raise Refused("the file here is larger than workspace.max_file") from error
        except OSError as error:
            raise Refused(f"the file here cannot be read ({error.strerror})") from error
        if found is None:
            return None
        side, content = found
        if side.mode in _FILES:
            self._content[side.sha] = content
        return side

    def _is_given_up(self, root: int, path: bytes) -> bool:
        """Whether all that a folder holds is taken away by this merge."""
        with entered(root, path.split(b"/")) as (fd, missing):
            if missing is not None:
                return False
            with os.scandir(fd) as names:
                found = [
                    (path + b"/" + os.fsencode(it.name), it.is_dir(follow_symlinks=False)) for it in names
                ]
        return all(self._is_given_up(root, it) if folder else it in self._given_up for it, folder in found)


def _side(file: File | None) -> Side | None:
    return None if file is None else Side(file.mode, file.sha)


class FileTooLarge(Exception):
    """A file has more bytes than are read."""


def read_side(fd: int, name: str, most: int) -> tuple[Side, bytes] | None:
    """The side that a name of a folder is, and a file's content; None if nothing is there.

    Raises `OSError`, `FileTooLarge`.
    """
    try:
        now = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind = stat.S_IFMT(now.st_mode)
    if kind == stat.S_IFDIR:
        return Side(FOLDER, b""), b""
    if kind == stat.S_IFLNK:
        return Side(LINK, object_id("blob", os.fsencode(os.readlink(name, dir_fd=fd)))), b""
    if kind != stat.S_IFREG:
        return Side(0, b""), b""
    if now.st_size > most:
        raise FileTooLarge
    content = _read(fd, name)
    return Side(mode_of(now.st_mode), object_id("blob", content)), content


def _read(fd: int, name: str) -> bytes:
    file = os.open(name, _FILE_FLAGS, dir_fd=fd)
    with os.fdopen(file, "rb", buffering=0) as opened:
        return opened.readall() or b""


@contextmanager
def entered(root: int, folders: list[bytes]) -> Iterator[tuple[int, int | None]]:
    """Goes down without following links. Gives the folder reached, and None if it is the last of them.

    Else the number of names that lead to something that is no folder; 0 if there is nothing.
    """
    fd, missing = os.dup(root), None
    try:
        for depth, name in enumerate(folders, 1):
            try:
                below = os.open(name, FOLDER_FLAGS, dir_fd=fd)
            except FileNotFoundError:
                missing = 0
                break
            except OSError:
                missing = depth
                break
            os.close(fd)
            fd = below
        yield fd, missing
    finally:
        os.close(fd)
