"""Faults of a disk in the middle of a piece of work: whoever does it is killed, or there is no more room.

The interpreter tells of each file that is about to be made, renamed or removed; one of these is where the
work ends. Knows paths, and nothing of what they hold.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_GROWS = frozenset({"os.mkdir", "os.symlink", "os.link"})
_CHANGES = _GROWS | {"os.rename", "os.remove", "os.rmdir", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The process that did it is dead: nothing of it runs, no clean-up either."""


@dataclass(slots=True)
class Fault:
    """A fault at a change of the disk: the one that comes after `left` others."""

    left: int
    kills: bool
    met: bool = False

    def changes(self, grows: bool) -> None:
        """The disk is about to be changed; raises what stops that."""
        if not self.met:
            self.left -= 1
            self.met = self.left < 0 and (self.kills or grows)
        if self.met and self.kills:
            raise Killed
        if self.met and grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Now:
    fault: Fault | None = None
    root = ""
    listens = False


@contextmanager
def faulty(fault: Fault | None, root: str) -> Iterator[None]:
    """Meets the fault below this path while the block runs."""
    if not _Now.listens:
        _Now.listens = True
        sys.addaudithook(_heard)
    _Now.fault, _Now.root = fault, root
    try:
        yield
    finally:
        _Now.fault = None


def _heard(event: str, args: tuple[Any, ...]) -> None:
    fault = _Now.fault
    if fault is None or not (event in _CHANGES or event == "open"):
        return
    if event == "open" and not (isinstance(args[2], int) and args[2] & _WRITES):
        return
    path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
    if path.startswith(_Now.root) or not path.startswith("/"):
        fault.changes(event in _GROWS or event == "open")
