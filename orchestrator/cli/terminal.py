"""Handling of text and keys in a terminal: foreign text, standard input and output, Ctrl-C.

Text of a model or a command must not steer the terminal: an escape sequence in a command could
hide half of it from the person who approves it; a bidirectional override could show it in another
order. Both are made visible instead.

A descriptor made non-blocking is so for every process that shares it: the shell, and our own stdout. So
reads wait in a thread of their own, and writes wait only where one would block.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import unicodedata
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.text import Text

STDIN, STDOUT = 0, 1
_KEPT = frozenset("\n\t")
_CONTROL_PICTURES = 0x2400
"""Unicode's pictures of the C0 controls stand in the controls' own order."""
POLL_S = 0.05


def plain(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(_visible(char) for char in text.replace("\r\n", "\n"))


def _visible(char: str) -> str:
    if char in _KEPT:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return f"\\u{code:04x}" if _steers(char) else char


def _steers(char: str) -> bool:
    """Whether a terminal may obey it."""
    # Cc: controls, C1 too; Cf: bidirectional overrides and the like; Cs: lone surrogates.
    return char not in _KEPT and unicodedata.category(char) in ("Cc", "Cf", "Cs")


def plain_json(text: str) -> str:
    """JSON text of the same value, in whose strings a terminal finds nothing to obey."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_escaped(char) if _steers(char) else char for char in text)


def _escaped(char: str) -> str:
    """The character in the notation of JSON: two escapes for one outside of the basic plane (RFC 8259, 7)."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def json_for_stdout(data: bytes) -> bytes:
    """JSON as it is printed: unchanged for a program, without what steers a terminal for a person."""
    return plain_json(data.decode()).encode() if sys.stdout.isatty() else data


def shown(text: str, style: str = "") -> Text:
    """The same for rich, which reads no markup in it."""
    return Text(plain(text), style=style)


def one_line(text: str) -> str:
    """The text on a single line: its line breaks and tabs are shown as what they are."""
    return plain(text).replace("\n", "␊").replace("\t", "␉")


# ── standard input and output ─────────────────────────────────────────────────────────────────


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


# ── Ctrl-C ────────────────────────────────────────────────────────────────────────────────────


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
