"""Reading of an entry of an open folder: its bytes and its mode.

Loaded into the supervisor, which forks for every patch: only light imports.
"""

# pathlib would add a third to what each fork copies.

from __future__ import annotations

import errno
import os
import stat

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
