"""The writing of a planned merge: all is staged first, then moved in, and moved back if a step fails.

A process that is killed between two moves moves nothing back. So a list of the steps is kept in a folder of
ours, and the old files in the staging folder, until the merge is settled: by these it is taken back. A file
that somebody has changed since is left as it is. A staging folder beside the folder's own files can be
written by commands: its files are believed no more than the folder's, and its names are ours alone.
"""

from __future__ import annotations

import errno
import marshal
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from orchestrator.folders.build import FOLDER_FLAGS, new_file, remove
from orchestrator.folders.known import Known
from orchestrator.folders.merge import FileTooLarge, Plan, Side, Step, entered, read_side
from orchestrator.folders.names import FILE, LINK
from orchestrator.folders.records import FolderError

MOST_LOOKED_AT = 1 << 28
"""Bytes of a file that is compared with what a merge wrote."""
STAGED, STEPS, ELSEWHERE = "staged", "steps", "elsewhere"


def write(plan: Plan, folder: Path, theirs: Known, work: Path) -> None:
    """Writes the steps. `work` is a folder of ours; it is used where it lies on the folder's file system."""
    settle(work)
    if not plan.steps:
        return
    staging = work / STAGED
    if work.stat().st_dev != folder.stat().st_dev:
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
