"""The one place that makes files and folders which only their owner may read, whatever the umask is.

Conversations, packs, keys and settings lie in them. A file has mode 600 and a folder 700 from its first
moment, links are not followed, and what another user of the machine has put there is refused. Imports
nothing of Dendro, so that every layer can use it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077
"""The bits of a mode that give something to others than the owner."""
_IS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPrivate(PermissionError):
    """A file or folder of this user's is another user's, a link, or of another kind. Nothing was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EACCES, f"{path} {why}")
        self.why = why


def make_folder(folder: Path) -> None:
    """Makes a folder and those of its parents that are missing; those that are there stay as they are."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    try:
        folder.mkdir(FOLDER)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    _close_folder(folder)


def own_folder(folder: Path) -> bool:
    """Makes a folder, or sees to it that the one that is there is this user's alone.

    True if others could look into it until now. Raises `NotPrivate` for another user's, and for a link.
    """
    make_folder(folder)
    return _close_folder(folder)


def _close_folder(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, _IS_FOLDER)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise NotPrivate(folder, "is a link, or no folder: put a folder of your own there") from None
        raise
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise NotPrivate(
                folder, f"belongs to another user (uid {found.st_uid}): name a folder of your own"
            )
        if found.st_mode & stat.S_ISVTX:
            raise NotPrivate(folder, "is a folder that other users write to, too: name a folder of your own")
        if stat.S_IMODE(found.st_mode) & 0o777 != FOLDER:
            os.fchmod(descriptor, FOLDER)
            _require_closed(folder, os.fstat(descriptor))
    finally:
        os.close(descriptor)
    return bool(found.st_mode & OTHERS)


def open_file(path: Path, flags: int) -> int:
    """Opens a file that is made if it is missing, and is this user's alone from here on; a descriptor.

    `flags` say how it is opened. Raises `NotPrivate` for a link, another user's file, or no file.
    """
    always = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | always, FILE)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise NotPrivate(path, "is a link, or no file: remove it") from None
        raise
    try:
        _close_file(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def new_file(path: Path) -> int:
    """Makes a file and answers a descriptor to write to; raises `FileExistsError`, for a link too."""
    return open_file(path, os.O_WRONLY | os.O_EXCL)


def _close_file(path: Path, descriptor: int) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivate(path, "is no file: remove it")
    if found.st_uid != os.geteuid():
        raise NotPrivate(path, f"belongs to another user (uid {found.st_uid}): remove it")
    if stat.S_IMODE(found.st_mode) != FILE:
        os.fchmod(descriptor, FILE)
        _require_closed(path, os.fstat(descriptor))


def _require_closed(path: Path, found: os.stat_result) -> None:
    if found.st_mode & OTHERS:
        raise NotPrivate(
            path, "can be read by other users, and its file system keeps no modes: choose another"
        )


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when the block ends, whole and with mode 600, or never.

    With `sync` its bytes and its name survive a power failure then. A link at `path` is replaced. Raises
    `OSError` that names `path`.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        opened = new_file(draft)
    except OSError as error:
        if isinstance(error, NotPrivate):
            draft.unlink(missing_ok=True)
        raise _about(path, error) from error
    try:
        with os.fdopen(opened, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if sync:
        _sync_folder(path.parent)


def _about(path: Path, error: OSError) -> OSError:
    """An error of a draft as one of the file that was asked for."""
    if isinstance(error, NotPrivate):
        return NotPrivate(path, error.why)
    return type(error)(error.errno, error.strerror, str(path))


def write_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Puts a content in the place of a file, as `replacing` does."""
    with replacing(path, sync=sync) as file:
        file.write(content)


def write_new_file(path: Path, content: bytes) -> bool:
    """Puts a content under a name that nobody has, whole or not at all; False if there is one.

    Of several who try at the same time, one succeeds. It survives a power failure.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write_file(draft, content)
    except OSError as error:
        raise _about(path, error) from error
    try:
        # A link takes no name that another file has.
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    # Without this the name itself may be gone after a power failure.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def close_below(folder: Path) -> None:
    """Takes from others what they may do with a folder of this user's and all that is in it.

    For what an earlier version has left open. Follows no links; other users' files stay as they are.
    """
    for _, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        _take_away(descriptor)
        for name in files:
            try:
                file = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor
                )
            except OSError:
                continue  # a link, a socket, or gone meanwhile
            try:
                _take_away(file)
            finally:
                os.close(file)


def _take_away(descriptor: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and found.st_mode & OTHERS:
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~OTHERS)
