"""Files and programs that the product itself uses, outside of a sandbox, where commands may write.

A command can leave anything under a name that is read later: a pipe that never ends, a device, a
terabyte of zeros, a link to what is hidden from it, or a `git` of its own.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path


def read_regular(path: Path, limit: int, hidden: Iterable[Path] = (), below: Path | None = None) -> bytes:
    """At most `limit` bytes of a file. Never waits for a pipe.

    Raises OSError for what is no regular file, for what really lies below a hidden path, and with `below` for
    what lies anywhere but below that folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        # What was opened, not what the name leads to by now.
        real = Path(f"/proc/self/fd/{descriptor}").readlink()
        if any(real.is_relative_to(folder.resolve()) for folder in hidden):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        if below is not None and not real.is_relative_to(below.resolve()):
            raise PermissionError(errno.EACCES, f"A link leads out of {below}", str(path))
        return file.read(limit)


def find_program(name: str, search_path: str | None = None) -> str | None:
    """The program's path by PATH, as far as no agent can write there."""
    folders = program_folders(":".join(os.get_exec_path()) if search_path is None else search_path)
    return shutil.which(name, path=":".join(folders)) if folders else None


def program_folders(search_path: str) -> list[str]:
    """The parts of a PATH without relative ones and those in the current folder.

    An agent can write there (a virtual environment of the project, `node_modules/.bin`), and what the
    product finds and starts itself runs outside of the sandbox.
    """
    here = Path.cwd()
    said = search_path.split(":")
    return [folder for folder in said if folder.startswith("/") and not _is_below(Path(folder), here)]


def _is_below(folder: Path, here: Path) -> bool:
    real = Path(os.path.realpath(folder))
    return len(here.parts) > 1 and (real.is_relative_to(here) or folder.is_relative_to(here))
