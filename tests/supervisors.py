"""Supervisors for tests: impatient ones, and ones whose writers of patches are met between two switches.

A writer is held there, or strikes from there.

The product has no test code for it: a supervisor is started by another boot line. Loaded into that
supervisor, so it imports next to nothing.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.tools.exec import supervisor_process
from orchestrator.tools.exec.supervisor_process import main
from orchestrator.tools.patch import writer


@contextmanager
def booting(start: Callable[..., None], *arguments: str | int) -> Iterator[None]:
    """Inside, supervisors are started by `start(descriptor, *arguments)` of this module."""
    from unittest import mock

    from orchestrator.tools.exec import supervisor

    line = (
        f"import sys; sys.path.append(sys.argv[1]); from tests.supervisors import {start.__name__}; "
        f"{start.__name__}(int(sys.argv[2]), *{arguments!r})"
    )
    with mock.patch.object(supervisor, "_BOOT", line):
        yield


def holding(descriptor: int, fifo: str, nth: int) -> None:
    """A supervisor whose writer stops behind its `nth` switch, until the FIFO is opened and closed."""
    _meet(nth, lambda: Path(fifo).read_bytes())
    main(descriptor)


def deadly(descriptor: int, nth: int) -> None:
    """A supervisor whose writer kills the worker behind its `nth` switch, and goes no further."""
    worker = os.getppid()

    def strike() -> None:
        os.kill(worker, signal.SIGKILL)
        signal.pause()

    _meet(nth, strike)
    main(descriptor)


def impatient(descriptor: int) -> None:
    """A supervisor whose shims wait for another command for a moment only."""
    supervisor_process._REST_S = 0.05
    main(descriptor)


def _meet(nth: int, met: Callable[[], object]) -> None:
    switch, switched = writer._switch, mmap.mmap(-1, 2)  # shared by all forks: how many, and whether met

    def look() -> None:
        if switched[0] == nth and not switched[1]:
            switched[1] = 1
            met()

    def watched(step: writer._Step) -> None:
        look()
        switch(step)
        switched[0] = min(switched[0] + 1, 255)
        look()

    writer._switch = watched
