"""Asks the process that reads scripts (`script_process`), and starts it: when it is first needed, and again.

One that is lost or late says nothing of the script: it is started again and asked again. A script that
costs that one, too, has no answer. One process serves all threads of this one; a fork of this one starts its
own.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import Any, Final

PLAIN: Final = b"p"
BEGINNINGS: Final = b"b"
PATCH: Final = b"a"
ANSWER_S: Final = 5.0
"""By the clock; the process gives up much earlier, by the processor's time."""
START_S: Final = 30.0
_LENGTH: Final = struct.Struct("!I")
MOST_BYTES: Final = 64 << 20
"""Of an answer: more than the parts of the longest script take."""
_MODULE: Final = "orchestrator.tools.commands.script_process"


class _Reader:
    """The process, and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # An empty environment: a grammar that is made to do another thing finds no key in it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._socket = ours
        ours.settimeout(START_S)
        try:
            self._receive(_LENGTH.size)
        except OSError:
            self.end()
            raise
        ours.settimeout(ANSWER_S)

    def ask(self, kind: bytes, source: bytes) -> Any:
        """The answer; raises `OSError` if there is none."""
        self._socket.sendall(kind + _LENGTH.pack(len(source)) + source)
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if length > MOST_BYTES:
            raise ConnectionError(f"the reader of scripts announced {length:,} bytes")
        try:
            return json.loads(self._receive(length))
        except (ValueError, RecursionError) as error:
            # The grammar may have overwritten what answers.
            raise ConnectionError("the reader of scripts gave no answer") from error

    def _receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self._socket.recv(length - len(data))
            if not more:
                raise ConnectionError("the reader of scripts has ended")
            data += more
        return data

    def end(self) -> None:
        """Kills the process."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Leaves the process to the one that this one was forked from."""
        self._socket.close()
        self._process.returncode = 0  # it is no child of this process: nobody waits for it here


_lock = Lock()
_reader: _Reader | None = None


def ask(kind: bytes, source: bytes) -> Any:
    """The reader's answer for a script.

    Raises `OSError` if no reader can be started, or if each of two was lost or late: nothing is known of the
    script then.
    """
    with _lock:
        with suppress(OSError):
            return _ask(kind, source)
        return _ask(kind, source)


def _ask(kind: bytes, source: bytes) -> Any:
    global _reader
    if _reader is None:
        _reader = _Reader()
    try:
        return _reader.ask(kind, source)
    except OSError:
        _reader.end()
        _reader = None
        raise


def _forked() -> None:
    global _reader, _lock
    _lock = Lock()
    if _reader is not None:
        with suppress(OSError):
            _reader.leave()
        _reader = None


def _leave() -> None:
    with _lock:
        if _reader is not None:
            _reader.end()


os.register_at_fork(after_in_child=_forked)
atexit.register(_leave)
