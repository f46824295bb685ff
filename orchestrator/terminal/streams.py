"""Standard input and output of a command, and the keys of its terminal: hidden lines, Ctrl-C.

A descriptor made non-blocking is so for every process that shares it: the shell, and our own stdout. So
reads wait in a thread of their own, and writes wait only where one would block.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from orchestrator.terminal.text import json_for_stdout

STDIN, STDOUT = 0, 1
POLL_S = 0.05


async def read_stdin(limit: int) -> bytes:
    """The next bytes of standard input; empty at its end.

    The thread is a daemon: one that still waits for a line does not keep the process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes) -> None:
        if not result.done():
            result.set_result(data)

    def wait() -> None:
        try:
            data = os.read(STDIN, limit)
        except OSError:
            # A terminal that went away reads like one that ended.
            data = b""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, data)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
    return await result


async def write_json(data: bytes) -> None:
    """Writes lines of JSON; raises BrokenPipeError when no reader is left."""
    if os.isatty(STDOUT):
        data = json_for_stdout(data)
    await write_stdout(data)


async def write_stdout(data: bytes) -> None:
    """Writes all of it; raises BrokenPipeError when no reader is left."""
    # A pipe that is writable takes PIPE_BUF bytes at once (POSIX, write).
    if len(data) <= select.PIPE_BUF and select.select((), (STDOUT,), (), 0)[1]:
        write_all(data)
        return
    await asyncio.to_thread(write_all, data)


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(STDOUT, view) :]


class Echo:
    """Whether the terminal shows what is typed; it does again when a secret was typed, or the person left."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._hid = False

    def hid_a_line(self) -> bool:
        """Whether a part of the line that was just read was hidden, if only for a moment."""
        hid, self._hid = self._hid, self._before is not None
        return hid

    def set(self, *, hides: bool) -> None:
        import termios

        self._hid = self._hid or hides
        if hides == (self._before is not None):
            return
        with suppress(termios.error, OSError):
            # Input that waits stays: it was typed ahead, and whoever asks says whether it counts.
            if self._before is not None:
                termios.tcsetattr(STDIN, termios.TCSADRAIN, self._before)
                self._before = None
                return
            now = termios.tcgetattr(STDIN)
            hidden = [*now[:3], now[3] & ~termios.ECHO | termios.ECHONL, *now[4:]]
            termios.tcsetattr(STDIN, termios.TCSADRAIN, hidden)
            self._before = now


# ── Ctrl-C ────────────────────────────────────────────────────────────────────────────────────────


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
                await asyncio.wait((doing,), timeout=POLL_S)


@contextmanager
def ctrl_c() -> Iterator[Left]:
    """From here on Ctrl-C sets the event, and no longer ends this process."""
    loop, left = asyncio.get_running_loop(), Left()
    loop.add_signal_handler(signal.SIGINT, left.set)
    try:
        yield left
    finally:
        loop.remove_signal_handler(signal.SIGINT)
