"""The writing of a planned merge: all is staged first, then moved in, and moved back if a step fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from orchestrator.folders.build import FOLDER_FLAGS, new_file, remove
from orchestrator.folders.known import Known
from orchestrator.folders.merge import Plan, Step, entered
from orchestrator.folders.names import LINK


def write(plan: Plan, folder: Path, theirs: Known, work: Path) -> None:
    """Writes the steps. `work` is a folder of ours; it is used where it lies on the folder's file system."""
    if not plan.steps:
        return
    same = work.stat().st_dev == folder.stat().st_dev
    staging = work / "staged" if same else folder / f".dendro-merge-{os.urandom(6).hex()}"
    remove(staging)
    staging.mkdir()
    try:
        _Writer(plan.steps, folder, theirs, staging).run()
    finally:
        remove(staging)


class _Writer:
    def __init__(self, steps: tuple[Step, ...], folder: Path, theirs: Known, staging: Path) -> None:
        self._steps = steps
        self._theirs = theirs
        self._stack = ExitStack()
        self._root = self._opened(folder)
        self._stage = self._opened(staging)
        self._back: list[Callable[[], None]] = []
        """The steps back, in the order in which their opposites were done."""

    def _opened(self, path: Path) -> int:
        fd = os.open(path, FOLDER_FLAGS)
        self._stack.callback(os.close, fd)
        return fd

    def run(self) -> None:
        """Stages, which is where a disk gets full, then moves names about."""
        with self._stack:
            for number, step in enumerate(self._steps):
                self._staged(f"new-{number}", step)
            try:
                for number, step in enumerate(self._steps):
                    self._move(number, step)
            except BaseException:
                for back in reversed(self._back):
                    with suppress(OSError):
                        back()
                raise

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


def _has(known: Known, folders: list[bytes]) -> bool:
    for name in folders:
        below = known.folders.get(os.fsdecode(name))
        if below is None:
            return False
        known = below
    return True
