"""A terminal that a command gets, from the worker's end: what is typed goes in, what it prints comes out.

The command has the other end for its input and both outputs. A program that does not read leaves what was
typed waiting here, up to a bound; nothing here waits for the program.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios

ROWS, COLUMNS = 24, 80
WAITING_BYTES = 64 * 1024
"""Bytes that may wait for a program that does not read."""


class Terminal:
    """A pseudo-terminal; `other` is the command's end, to be closed when the command has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.descriptor, self.other = os.openpty()
        """The worker's end is closed by whoever reads it, with `closed`."""
        os.set_blocking(self.descriptor, False)
        for end in (self.descriptor, self.other):
            os.set_inheritable(end, False)
        fcntl.ioctl(self.other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._waiting = bytearray()
        self._open = True

    def write(self, data: bytes) -> bool:
        """Types to the program; False, and nothing is typed, if too much of before still waits."""
        if len(self._waiting) + len(data) > WAITING_BYTES:
            return False
        if self._open and data:
            self._waiting += data
            self._send()
        return True

    @property
    def waiting(self) -> int:
        """Bytes that the program has not taken yet."""
        return len(self._waiting)

    def closed(self) -> None:
        """Notes that the worker's end is about to be closed."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self.descriptor)
            self._waiting.clear()

    def _send(self) -> None:
        try:
            written = os.write(self.descriptor, self._waiting)
        except BlockingIOError:
            written = 0
        except OSError:
            # The program has ended: nobody reads any more.
            self._waiting.clear()
            written = 0
        del self._waiting[:written]
        if self._waiting:
            self._loop.add_writer(self.descriptor, self._send)
        else:
            self._loop.remove_writer(self.descriptor)
