"""Ctrl-C where it means that a person has seen enough, and nothing is to be undone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

LOOK_S = 0.05


class Left(asyncio.Event):
    """Set when the person left."""

    async def unless(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The work's result; None if the person left first, and the work has ended then."""
        doing, leaving = asyncio.create_task(work), asyncio.create_task(self.wait())
        try:
            await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            leaving.cancel()
            while not doing.done():
                # Asked again until it works: a cancellation that meets the end of what `wait_for`
                # waited for is forgotten on Python 3.11 (bpo-37658).
                doing.cancel()
                await asyncio.wait((doing,), timeout=LOOK_S)


@contextmanager
def ctrl_c() -> Iterator[Left]:
    """From here on Ctrl-C sets the event, and no longer ends this process."""
    loop, left = asyncio.get_running_loop(), Left()
    loop.add_signal_handler(signal.SIGINT, left.set)
    try:
        yield left
    finally:
        loop.remove_signal_handler(signal.SIGINT)
