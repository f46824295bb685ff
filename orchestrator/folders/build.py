"""Making and removing folders through descriptors, so that no name in them can lead elsewhere."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from orchestrator.folders.names import LINK, MOST_DEPTH, PROGRAM, refused_link
from orchestrator.folders.outcomes import FolderError
from orchestrator.folders.stat_cache import UNSURE, File, Known
from orchestrator.folders.store import Objects

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GRAIN_NS = 20_000_000


class Build:
    """The making of one folder. `stats` has what the system said of each file, by its path."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.stats: dict[bytes, os.stat_result] = {}

    def folder(self, path: Path, root: Known) -> Known:
        """Makes a folder at a path where nothing is; gives it as the next walk will find it."""
        path.mkdir(mode=0o755)
        fd = os.open(path, FOLDER_FLAGS)
        try:
            return self._below(fd, b"", 0, root)
        finally:
            os.close(fd)

    def _below(self, fd: int, path: bytes, depth: int, wanted: Known) -> Known:
        made = Known()
        made.tree, made.links = wanted.tree, wanted.links
        for name, file in wanted.files.items():
            made.files[name] = self._file(fd, path + os.fsencode(name), name, depth, file)
        for name in (*wanted.folders, *wanted.links):
            os.mkdir(name, 0o755, dir_fd=fd)
        for name, folder in wanted.folders.items():
            below = os.open(name, FOLDER_FLAGS, dir_fd=fd)
            try:
                made.folders[name] = self._below(below, path + os.fsencode(name) + b"/", depth + 1, folder)
            finally:
                os.close(below)
        made.sum_up()
        return made

    def _file(self, fd: int, path: bytes, name: str, depth: int, file: File) -> File:
        content = self._objects.read(file.sha, "blob")
        if file.mode == LINK:
            if (why := refused_link(content, depth)) is not None:
                raise FolderError("refused", f"a snapshot holds {why}: nothing is made of it")
            os.symlink(content, os.fsencode(name), dir_fd=fd)
            now = os.stat(name, dir_fd=fd, follow_symlinks=False)
        else:
            now = new_file(fd, name, content, file.mode)
        self.stats[path] = now
        return File(now.st_ctime_ns, file.size, now.st_ino, file.mode, file.sha)


def new_file(fd: int, name: str, content: bytes, mode: int) -> os.stat_result:
    """Writes a file that must not exist yet; gives what the system says of it then."""
    made = os.open(name, _NEW_FILE, 0o755 if mode == PROGRAM else 0o644, dir_fd=fd)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(made, view) :]
        return os.fstat(made)
    finally:
        os.close(made)


def doubted(known: Known, now_ns: int) -> None:
    """Forgets the times of files that changed so shortly ago that another change might not show."""
    for name, file in known.files.items():
        if file.ctime_ns >= now_ns - _GRAIN_NS:
            known.files[name] = file._replace(ctime_ns=UNSURE)
    for folder in known.folders.values():
        doubted(folder, now_ns)


def clock_ns(folder: Path) -> int:
    """The time by the clock of a folder's file system."""
    stamp = folder / "stamp"
    stamp.touch()
    os.utime(stamp)
    return stamp.stat().st_mtime_ns


def remove(path: Path) -> None:
    """Removes a folder with whatever is in it, also what a command made unreadable."""
    try:
        parent = os.open(path.parent, FOLDER_FLAGS)
    except FileNotFoundError:
        return
    try:
        _remove(parent, path.name)
    finally:
        os.close(parent)


def _remove(parent: int, name: str) -> None:
    """Goes down without recursion: a command may have made folders deeper than any stack."""
    try:
        kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(kind):
        os.unlink(name, dir_fd=parent)
        return
    while not _emptied(parent, name):
        pass
    os.rmdir(name, dir_fd=parent)


def _emptied(parent: int, name: str) -> bool:
    """Empties a folder down to MOST_DEPTH; what lies deeper is moved up, and False says: once more."""
    top = _opened(parent, name)
    try:
        return _empty(top, top, 0)
    finally:
        os.close(top)


def _empty(top: int, fd: int, depth: int) -> bool:
    whole = True
    with os.scandir(fd) as names:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in names]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=fd)
        elif depth >= MOST_DEPTH:
            os.rename(name, f".deep-{os.urandom(8).hex()}", src_dir_fd=fd, dst_dir_fd=top)
            whole = False
        else:
            below = _opened(fd, name)
            try:
                whole &= _empty(top, below, depth + 1)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=fd)
    return whole


def _opened(parent: int, name: str) -> int:
    with suppress(OSError):
        # Not through a link: the name was a folder's a moment ago, and nothing runs in it any more.
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, FOLDER_FLAGS, dir_fd=parent)
