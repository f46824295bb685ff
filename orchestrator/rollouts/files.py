"""The disk, as far as rollouts' files need it: one file at a time, locked for its user.

Files of sessions are all that the runtime itself writes to a disk. The simulation replaces this port.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from orchestrator.private_files import make_folder, open_file

Files = Callable[[Path], AbstractContextManager[BinaryIO]]


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """A file to read and to append to, which is made if it is missing, with its folder.

    A second caller waits for the lock: the session may have been claimed elsewhere by now.
    """
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _opened(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_APPEND
    try:
        descriptor = open_file(path, flags)
    except FileNotFoundError:
        make_folder(path.parent)
        descriptor = open_file(path, flags)
    return os.fdopen(descriptor, "a+b")
