"""Watching processes from outside: found by a mark in their command line, waited for by pidfd."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path


class Witness:
    """Holds a pidfd of every process that carries the mark, so that no pid can be mistaken for another."""

    def __init__(self, mark: str) -> None:
        self.pidfds: list[int] = []
        for pid in marked(mark):
            # It may have ended since it was found.
            with suppress(ProcessLookupError):
                self.pidfds.append(os.pidfd_open(pid))

    def close(self) -> None:
        for pidfd in self.pidfds:
            os.close(pidfd)

    def all_dead_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        return all(_is_dead(pidfd, max(0.0, until - time.monotonic())) for pidfd in self.pidfds)

    def all_alive(self) -> bool:
        return bool(self.pidfds) and not any(_is_dead(pidfd, 0.0) for pidfd in self.pidfds)


def marked(mark: str) -> list[int]:
    """The processes whose command line holds the mark as a word."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if mark.encode() in words:
            found.append(int(entry.name))
    return found


def _is_dead(pidfd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
