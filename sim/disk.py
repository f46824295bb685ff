"""Faults of a disk in the middle of a piece of work: whoever does it is killed, or there is no more room.

Each file that is about to be made, renamed or removed may be where the work ends. Knows paths, and nothing of
what they hold.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_GROWS = ("mkdir", "symlink", "link")
_SHRINKS = ("rename", "replace", "remove", "unlink", "rmdir", "truncate", "ftruncate")
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


@contextmanager
def faulty(fault: Fault | None, root: str) -> Iterator[None]:
    """Meets the fault below this path while the block runs.

    Functions of `os` and `open` are exchanged meanwhile. An audit hook would hear as much, but for as long as
    the process lasts, and of each record that is made: that took a twentieth of all simulations' time.
    """
    if fault is None:
        yield
        return

    def heard(change: Any, grows: bool, writes: Callable[..., bool]) -> Any:
        def changes(first: Any, *given: Any, **named: Any) -> Any:
            if writes(*given, **named):
                path = os.fsdecode(first) if isinstance(first, str | bytes | os.PathLike) else ""
                if path.startswith(root) or not path.startswith("/"):
                    fault.changes(grows)
            return change(first, *given, **named)

        return changes

    new = [(os, name, heard(getattr(os, name), name in _GROWS, _always)) for name in (*_GROWS, *_SHRINKS)]
    new.append((os, "open", heard(os.open, True, _flags_write)))
    new += [(module, "open", heard(builtins.open, True, _mode_writes)) for module in (builtins, io)]
    kept = [(module, name, getattr(module, name)) for module, name, _ in new]
    for module, name, change in new:
        setattr(module, name, change)
    try:
        yield
    finally:
        for module, name, change in kept:
            setattr(module, name, change)


def _always(*_: Any, **__: Any) -> bool:
    return True


def _flags_write(flags: int, *_: Any, **__: Any) -> bool:
    return bool(flags & _WRITES)


def _mode_writes(mode: str = "r", *_: Any, **__: Any) -> bool:
    return not {"w", "a", "x", "+"}.isdisjoint(mode)
