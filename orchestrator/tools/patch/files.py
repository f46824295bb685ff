"""Files as the patch applier reads them: content, mode, and where a path really leads.

The one module of this package that reads the disk for planning and for diffs (`writing`
writes it). Everything else gets a `FileReader`, so that tests and takeovers may hand in
another view of the same files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from orchestrator.core.frozen import record
from orchestrator.sandbox.policy_paths import Place


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


# ── entries ───────────────────────────────────────────────────────────────────────────────────────
# Reading of an entry of an open folder: its bytes and its mode.
#
# Loaded into the supervisor, which forks for every patch: only light imports.


MOST_BYTES = 64 << 20
"""A file without end (a terabyte of zeros takes no room on a disk) must not fill the worker's memory."""


def read_entry(name: str | bytes, folder: int) -> tuple[bytes, int]:
    """Content and mode of a file; a symlink's content is its target.

    Raises OSError for what is no file (a folder, a device), is absent, or cannot be read.
    """
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _require_bounded(info, name)
    if stat.S_ISLNK(info.st_mode):
        return os.readlink(os.fsencode(name), dir_fd=folder), info.st_mode
    _require_regular(info, name)
    # O_NONBLOCK and the second look: a pipe put in the file's place meanwhile must not
    # hold the worker for ever.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        info = os.fstat(stream.fileno())
        _require_regular(info, name)
        _require_bounded(info, name)
        # One byte more than the bound: what grows meanwhile is not read to its end, wherever that is.
        content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _too_large(name)
        return content, info.st_mode


def _require_bounded(info: os.stat_result, name: str | bytes) -> None:
    if stat.S_ISREG(info.st_mode) and info.st_size > MOST_BYTES:
        raise _too_large(name)


def _too_large(name: str | bytes) -> OSError:
    return OSError(errno.EFBIG, f"File too large for a patch (over {MOST_BYTES >> 20} MiB)", name)


def _require_regular(info: os.stat_result, name: str | bytes) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", name)
