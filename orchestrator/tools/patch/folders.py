"""Folders opened so that no symlink can lead away from the path that was checked.

A plan's targets hold no symlinks: they were resolved when it was made. Here every
component is opened relative to the one before it and refused if it is a symlink by now, so
a link swapped in between the check and the write ends the patch instead of redirecting it.
What is then done, is done relative to the open folder, wherever its name may move.

It must not know of patches: paths in, descriptors out. Paths are bytes, as the kernel has
them. Loaded into the supervisor, which forks for every patch: only light imports.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH119, PTH120

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from types import TracebackType

_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class OpenFolders:
    """Descriptors of folders, one per path; closes them all at the end.

    `created` lists the folders that had to be made, outermost first.
    """

    __slots__ = ("_created", "_open")

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}
        self._created: list[bytes] = []

    def __enter__(self) -> OpenFolders:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def open(self, folder: bytes, *, create: bool = False) -> int:
        """The folder's descriptor; `folder` is absolute and free of symlinks and `..`.

        Raises OSError: ELOOP or ENOTDIR if a component is a symlink or a file by now.
        """
        if folder in self._open:
            return self._open[folder]
        above = os.path.dirname(folder)
        if folder == above:
            self._open[folder] = os.open(folder, _FLAGS)
            return self._open[folder]
        parent = self.open(above, create=create)
        try:
            self._open[folder] = _open_entry(folder, parent)
        except FileNotFoundError:
            if not create:
                raise
            os.mkdir(os.path.basename(folder), dir_fd=parent)
            self._created.append(folder)
            self._open[folder] = _open_entry(folder, parent)
        return self._open[folder]

    def remove_created(self) -> None:
        """Takes back the folders that were made, as far as they are empty."""
        for folder in reversed(self._created):
            with suppress(OSError):
                os.rmdir(os.path.basename(folder), dir_fd=self._open[os.path.dirname(folder)])
        self._created.clear()


def _open_entry(folder: bytes, parent: int) -> int:
    name = os.path.basename(folder)
    try:
        return os.open(name, _FLAGS, dir_fd=parent)
    except NotADirectoryError as error:
        # O_DIRECTORY hides the difference; the reader of the error should see it.
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            message = "a symbolic link was put in its place"
            raise OSError(errno.ELOOP, message, folder) from error
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from error
