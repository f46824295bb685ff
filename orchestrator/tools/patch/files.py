"""Files as the patch applier reads them: content, mode, and where a path really leads.

The one module of this package that reads the disk for planning and for diffs (`writing`
writes it). Everything else gets a `FileReader`, so that tests and takeovers may hand in
another view of the same files.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.sandbox.place import Place
from orchestrator.tools.patch.entries import read_entry


@dataclass(frozen=True, slots=True)
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
    """The file system of this machine."""

    def resolve(self, path: Path) -> Path:
        return Path(os.path.realpath(path))

    def read(self, path: Path) -> FileImage | None:
        try:
            return _read_image(path.name, path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return None


class PlacedFiles(DiskFiles):
    """The files of a portable folder: a path of its commands leads where this machine has it."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def resolve(self, path: Path) -> Path:
        return self._place.followed(path)


def _read_image(name: str, folder: Path) -> FileImage:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return FileImage(*read_entry(name, descriptor))
    finally:
        os.close(descriptor)


def display_root(cwd: Path) -> Path:
    """The folder that diffs name files from: the git work tree around `cwd`, else `cwd`.

    An empty `.git` folder is no repository: sandboxes leave such ones behind.
    """
    for folder in (cwd, *cwd.parents):
        git = folder / ".git"
        if git.is_file() or os.path.lexists(git / "HEAD"):
            return folder
    return cwd
