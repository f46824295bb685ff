"""A three-way merge into a folder: planned by paths, without looking for renames, and written whole or not.

What the folder holds is read from the disk, not from its last snapshot: an ignored file in the way, or one
that changed since, is a conflict and not lost. Contents are merged by `git merge-file`.
"""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.folders.build import FOLDER_FLAGS, new_file, remove
from orchestrator.folders.git_objects import object_id
from orchestrator.folders.known import Change, File, Known, changes, told
from orchestrator.folders.names import FILE, FOLDER, LINK, PROGRAM, mode_of, quoted
from orchestrator.folders.outcomes import (
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
        what: Literal["A", "M", "D"] = "A" if self.before is None else "D" if self.after is None else "M"
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
        return merged_content(self._work, self._bounds.seconds, ours, base, theirs)

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


def merged_content(work: Path, seconds: float, ours: bytes, base: bytes, theirs: bytes) -> bytes:
    """A text that two sides have changed, as git merges it, in a folder of ours. Raises `Refused`."""
    names = []
    for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
        (work / name).write_bytes(content)
        names.append(name)
    try:
        words, environ = ("merge-file", "-p", *names), git_environment(Path(os.devnull))
        done = run_git_here(words, environ, work, seconds)
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


# ── merge writer ──────────────────────────────────────────────────────────────────────────────────
# The writing of a planned merge: all is staged first, then moved in, and moved back if a step fails.
#
# A process that is killed between two moves moves nothing back. So a list of the steps is kept in a
# folder of ours, and the old files in the staging folder, until the merge is settled: by these it is
# taken back. A file that somebody has changed since is left as it is. A staging folder beside the
# folder's own files can be written by commands: its files are believed no more than the folder's, and its
# names are ours alone.


MOST_LOOKED_AT = 1 << 28
"""Bytes of a file that is compared with what a merge wrote."""
STAGED, STEPS, ELSEWHERE = "staged", "steps", "elsewhere"


def write(plan: Plan, folder: Path, theirs: Known, work: Path) -> None:
    """Writes the steps. `work` is a folder of ours; used if files can be moved from it to the folder."""
    settle(work)
    if not plan.steps:
        return
    staging = work / STAGED
    if _mount(work) != _mount(folder):
        staging = folder / f".dendro-merge-{os.urandom(6).hex()}"
        (work / ELSEWHERE).write_bytes(os.fsencode(staging))
    staging.mkdir()
    written = False
    try:
        _Writer(plan.steps, folder, theirs, staging, work).run()
        written = True
    finally:
        if not written:
            settle(work)


def _mount(folder: Path) -> tuple[int, str]:
    """The device and the mount of a folder: a file is renamed within one of them alone.

    A volume of a container may be the same device and another mount; subvolumes of btrfs are other devices
    of one mount. Where `/proc` is not to be had, the device counts alone.
    """
    fd = os.open(folder, FOLDER_FLAGS)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        return os.fstat(fd).st_dev, next((line for line in lines if line.startswith("mnt_id:")), "")
    except FileNotFoundError:
        return os.fstat(fd).st_dev, ""
    finally:
        os.close(fd)


def settle(work: Path) -> None:
    """Removes what a merge has left to be taken back by: it is known to be whole, or not to matter."""
    (work / STEPS).unlink(missing_ok=True)
    remove(_staging(work))
    (work / ELSEWHERE).unlink(missing_ok=True)


def _staging(work: Path) -> Path:
    """The staging folder of the last merge: among our own, or in the folder if that is on another disk."""
    try:
        return Path(os.fsdecode((work / ELSEWHERE).read_bytes()))
    except FileNotFoundError:
        return work / STAGED


def take_back(folder: Path, work: Path) -> None:
    """Takes back the last merge, which a process did not live to tell of: all of it, or what there is."""
    staging = _staging(work)
    try:
        steps, made = marshal.loads((work / STEPS).read_bytes())
    except FileNotFoundError:
        # Nothing was moved yet.
        settle(work)
        return
    with ExitStack() as stack:
        root = _opened(stack, folder)
        try:
            stage = _opened(stack, staging)
        except OSError as error:
            settle(work)
            raise FolderError(
                "failed",
                f"a merge was broken off, and {staging.name}, where it kept what it replaced, is no "
                "folder any more: a part of it may be in the folder",
            ) from error
        back = _Back(root, stage, sorted(made, key=len, reverse=True))
        for number, step in reversed(list(enumerate(steps))):
            back.step(number, *step)
        back.without_folders()
    settle(work)


def _opened(stack: ExitStack, path: Path) -> int:
    fd = os.open(path, FOLDER_FLAGS)
    stack.callback(os.close, fd)
    return fd


class _Back:
    """The way back of steps of which some were done; each is looked at, and done again harmlessly."""

    def __init__(self, root: int, stage: int, made: list[bytes]) -> None:
        self._root = root
        self._stage = stage
        self._made = made
        """The folders that the merge has made, inner ones first."""

    def step(self, number: int, path: bytes, had: bool, after: tuple[int, bytes] | None) -> None:
        """Takes a path's new file out if it is in, and puts its old one back if it is out."""
        *folders, name = path.split(b"/")
        if after is not None and not self._is_staged(f"new-{number}"):
            with entered(self._root, folders) as (fd, missing), suppress(FileNotFoundError):
                if missing is None:
                    if self._side(fd, name) not in (after, None):
                        return
                    os.rename(name, f"new-{number}", src_dir_fd=fd, dst_dir_fd=self._stage)
        if not had or not self._is_staged(f"old-{number}"):
            return
        self.without_folders(path)
        if not self._is_there(folders, name):
            self._make(folders)
            with entered(self._root, folders) as (fd, _):
                os.rename(f"old-{number}", name, src_dir_fd=self._stage, dst_dir_fd=fd)

    def without_folders(self, place: bytes = b"") -> None:
        """Removes folders that the merge has made: all, or those in the place of a file."""
        for path in self._made:
            if place and path != place and not path.startswith(place + b"/"):
                continue
            *folders, name = path.split(b"/")
            with entered(self._root, folders) as (fd, missing), suppress(OSError):
                if missing is None:
                    os.rmdir(name, dir_fd=fd)

    def _is_there(self, folders: list[bytes], name: bytes) -> bool:
        with entered(self._root, folders) as (fd, missing):
            return missing is None and self._side(fd, name) is not None

    def _side(self, fd: int, name: bytes) -> Side | None:
        """The side that a file is; one that cannot be read is somebody else's."""
        try:
            found = read_side(fd, os.fsdecode(name), MOST_LOOKED_AT)
        except (OSError, FileTooLarge):
            return Side(0, b"")
        return found[0] if found is not None else None

    def _is_staged(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._stage, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _make(self, folders: list[bytes]) -> None:
        for depth in range(1, len(folders) + 1):
            with entered(self._root, folders[: depth - 1]) as (fd, _), suppress(FileExistsError):
                os.mkdir(folders[depth - 1], 0o755, dir_fd=fd)


class _Writer:
    def __init__(
        self, steps: tuple[Step, ...], folder: Path, theirs: Known, staging: Path, work: Path
    ) -> None:
        self._steps = steps
        self._theirs = theirs
        self._stack = ExitStack()
        self._root = _opened(self._stack, folder)
        self._stage = _opened(self._stack, staging)
        self._work = _opened(self._stack, work)
        self._back: list[Callable[[], None]] = []
        """The steps back, in the order in which their opposites were done."""

    def run(self) -> None:
        """Stages, which is where a disk gets full, then moves names about."""
        with self._stack:
            for number, step in enumerate(self._steps):
                self._staged(f"new-{number}", step)
            self._note_steps()
            try:
                for number, step in enumerate(self._steps):
                    self._move(number, step)
            except BaseException:
                for back in reversed(self._back):
                    with suppress(OSError):
                        back()
                raise

    def _note_steps(self) -> None:
        """Writes what is about to be done, and which folders it makes."""
        steps = [(step.path, step.before is not None, _plain(step.after)) for step in self._steps]
        made = {folder for step in self._steps if step.after for folder in self._lacking(step.path)}
        part = "steps.part"
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=self._work)
        new_file(self._work, part, marshal.dumps((steps, list(made))), FILE)
        os.rename(part, STEPS, src_dir_fd=self._work, dst_dir_fd=self._work)

    def _lacking(self, path: bytes) -> Iterator[bytes]:
        """The folders around a path that are not there."""
        folders = path.split(b"/")[:-1]
        for depth in range(len(folders), 0, -1):
            with entered(self._root, folders[:depth]) as (_, missing):
                if missing is None:
                    return
            yield b"/".join(folders[:depth])

    def _staged(self, name: str, step: Step) -> None:
        if step.after is None:
            return
        if step.after.mode == LINK:
            os.symlink(step.content, os.fsencode(name), dir_fd=self._stage)
        else:
            new_file(self._stage, name, step.content, step.after.mode)

    def _move(self, number: int, step: Step) -> None:
        *folders, name = step.path.split(b"/")
        if step.after is not None:
            self._make_folders(folders)
        if step.before is not None:
            self._exchange(folders, name, f"old-{number}", away=True)
        if step.after is not None:
            with suppress(OSError):
                self._rmdir([*folders, name])  # a folder that this merge has emptied
            self._exchange(folders, name, f"new-{number}", away=False)
        else:
            self._drop_folders(folders)

    def _exchange(self, folders: list[bytes], name: bytes, staged: str, *, away: bool) -> None:
        """Moves a file of the folder to its name in the staging folder, or from there."""
        self._rename(folders, name, staged, away=away)
        self._back.append(partial(self._rename, folders, name, staged, away=not away))

    def _rename(self, folders: list[bytes], name: bytes, staged: str, *, away: bool) -> None:
        with self._in(folders) as fd:
            if away:
                os.rename(name, staged, src_dir_fd=fd, dst_dir_fd=self._stage)
            else:
                os.rename(staged, name, src_dir_fd=self._stage, dst_dir_fd=fd)

    def _make_folders(self, folders: list[bytes]) -> None:
        for depth in range(1, len(folders) + 1):
            path = folders[:depth]
            with self._in(path[:-1]) as fd, suppress(FileExistsError):
                os.mkdir(path[-1], 0o755, dir_fd=fd)
                self._back.append(partial(self._rmdir, path))

    @contextmanager
    def _in(self, folders: list[bytes]) -> Iterator[int]:
        with entered(self._root, folders) as (fd, missing):
            if missing is not None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), b"/".join(folders))
            yield fd

    def _drop_folders(self, folders: list[bytes]) -> None:
        """Removes folders that the merge has emptied and the other side has not."""
        for depth in range(len(folders), 0, -1):
            if _has(self._theirs, folders[:depth]):
                return
            try:
                self._rmdir(folders[:depth])
            except OSError:
                return
            self._back.append(partial(self._make_folders, folders[:depth]))

    def _rmdir(self, path: list[bytes]) -> None:
        with self._in(path[:-1]) as fd:
            os.rmdir(path[-1], dir_fd=fd)


def _plain(side: Side | None) -> tuple[int, bytes] | None:
    return None if side is None else (side.mode, side.sha)


def _has(known: Known, folders: list[bytes]) -> bool:
    for name in folders:
        below = known.folders.get(os.fsdecode(name))
        if below is None:
            return False
        known = below
    return True
