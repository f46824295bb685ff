"""Files as the patch applier reads them: content, mode, and where a path really leads.

The one module of this package that reads the disk for planning and for diffs (`apply`
writes it). Everything else gets a `FileReader`, so that tests and takeovers may hand in
another view of the same files.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileImage:
    """One file at one moment. A symlink's content is its target, as git stores it."""

    content: bytes
    mode: int

    @property
    def git_mode(self) -> str:
        """The mode as git writes it: symlink, executable or plain."""
        if stat.S_ISLNK(self.mode):
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"


class FileReader(Protocol):
    """What planning and diffs need to know of a file system."""

    def resolve(self, path: Path) -> Path:
        """Where the path leads when every symlink on it is followed; it need not exist."""
        ...

    def read(self, path: Path) -> FileImage | None:
        """The file, a last symlink not followed; None if there is none.

        Raises OSError for what is no file (a folder, a device) or cannot be read.
        """
        ...


class DiskFiles:
    """The file system of this machine."""

    def resolve(self, path: Path) -> Path:
        return Path(os.path.realpath(path))

    def read(self, path: Path) -> FileImage | None:
        try:
            return read_image(path.name, path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return None


def read_image(name: str, folder: Path | int) -> FileImage:
    """Reads the entry `name` of a folder, given by path or by descriptor."""
    if isinstance(folder, Path):
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return read_image(name, descriptor)
        finally:
            os.close(descriptor)
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        return FileImage(os.fsencode(os.readlink(name, dir_fd=folder)), info.st_mode)
    _require_regular(info, name)
    # O_NONBLOCK and the second look: a pipe put in the file's place meanwhile must not
    # hold the worker for ever.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        info = os.fstat(stream.fileno())
        _require_regular(info, name)
        return FileImage(stream.read(), info.st_mode)


def _require_regular(info: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", name)


def display_root(cwd: Path) -> Path:
    """The folder that diffs name files from: the git work tree around `cwd`, else `cwd`."""
    for folder in (cwd, *cwd.parents):
        if (folder / ".git").exists():
            return folder
    return cwd
