"""Files as the patch applier reads them: content, mode, and where a path really leads.

The one module of this package that reads the disk for planning and for diffs (`writer`
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
from orchestrator.tools.patch.writer import read_entry


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
