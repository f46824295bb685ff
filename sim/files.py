"""Rollouts' files, in memory: what a machine wrote last may be torn when it dies, or when its disk is full.

A process is killed in the middle of a write, or its host loses what the disk had not been given yet: of the
bytes that were appended last some are there. What somebody else has written behind them was read first, so
it stays. Knows bytes and machines.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.rollouts.rollout_file import Files

UNSYNCED_S = 10.0
"""How long what was written may be lost with its host."""


class _Appended(BytesIO):
    """Wherever it was read, it is written at its end."""

    def write(self, content: Any) -> int:
        self.seek(0, 2)
        return super().write(content)


@dataclass(frozen=True, slots=True)
class Written:
    """The last change of a file."""

    machine: str
    at_s: float
    before: int
    """How much of the file was there already."""


class SimFiles:
    """The folder of sessions that all machines of a simulation share."""

    def __init__(self, now_s: Callable[[], float], rng: Random) -> None:
        self._now_s = now_s
        self._rng = rng
        self.content: dict[Path, bytes] = {}
        self._last: dict[Path, Written] = {}
        self.torn: set[Path] = set()
        """Files of which a machine's end has taken a part, until they are written again."""
        self.full: set[str] = set()
        """Machines whose disks are full."""
        self.wrote: Callable[[Path], None] = lambda path: None
        """Told when a file has changed."""
        self.saw: Callable[[str], None] = lambda case: None
        """Told of cases that rules are interested in."""

    def opened_on(self, machine: str) -> Files:
        """As a machine's worker opens them: nobody else does meanwhile."""

        @contextmanager
        def opened(path: Path) -> Iterator[Any]:
            before = self.content.setdefault(path, b"")
            file = _Appended(before)
            yield file
            after = file.getvalue()
            if machine in self.full and len(after) > len(before):
                self.content[path] = after[: self._rng.randint(len(before), len(after) - 1)]
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            if after != before:
                kept = len(before) if after.startswith(before) else 0
                self.content[path] = after
                self.torn.discard(path)
                self._last[path] = Written(machine, self._now_s(), kept)
                self.wrote(path)

        return opened

    def crashed(self, machine: str) -> None:
        """The machine is gone, and maybe a part of what it wrote."""
        for path, last in self._last.items():
            if (
                last.machine == machine
                and self._now_s() - last.at_s < UNSYNCED_S
                and self._rng.random() < 0.5
            ):
                content = self.content[path]
                self.torn.add(path)
                self.saw("exported")
                self.content[path] = content[: self._rng.randint(last.before, len(content))]
