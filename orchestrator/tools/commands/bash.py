"""Shell scripts as the commands that they certainly are: what a plain one runs, what any other may begin.

A script is *plain* if every shell we start (bash, zsh, sh) runs exactly the words that
are written, in simple commands joined by `&&`, `||`, `;` or `|`. Only then may it be
judged by its words. What an unquoted word turns into must be knowable, so redirects,
expansions, subshells, assignments, background jobs, comments and newlines between commands
all make a script not plain.

Models write these scripts, so they are read in a process of their own.
This module must not know what any command does.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any, Final

from orchestrator.tools.commands.bash_words import PlainScript, Word

__all__ = [
    "MAX_SCRIPT_BYTES",
    "PlainScript",
    "Word",
    "beginnings_or_fault",
    "command_beginnings",
    "read_plain",
    "unwrap",
]

MAX_SCRIPT_BYTES: Final = 128 * 1024
"""Linux refuses a longer single argument (MAX_ARG_STRLEN), so no longer script can run."""

TOO_INVOLVED: Final = "its script is too involved"
_SHELLS: Final = frozenset({"bash", "zsh", "sh"})
_MORE_SHELLS: Final = _SHELLS | {"ash", "dash", "ksh", "mksh", "rbash"}
_LONG_OPTIONS_WITH_VALUE: Final = frozenset({"--init-file", "--rcfile"})
# A string ends at NUL for execve, and shells and terminals differ on the other controls.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def unwrap(argv: Sequence[str]) -> str | None:
    """The script of `bash|zsh|sh -c|-lc SCRIPT` (the shell by name or path), else None."""
    match argv:
        case [shell, "-c" | "-lc", script] if shell.rpartition("/")[2] in _SHELLS:
            return script
        case _:
            return None


def script_in(argv: Sequence[str]) -> str | None:
    """The script that a shell or `eval` is given as an argument, whatever its options are, else None.

    For what must not be missed: what may be allowed is asked of `unwrap`, which knows one way to write it.
    """
    name = argv[0].rpartition("/")[2] if argv else ""
    if name == "eval":
        return " ".join(argv[2:] if argv[1:2] == ["--"] else argv[1:])
    if name not in _MORE_SHELLS:
        return None
    given, at = False, 1
    while at < len(argv) and argv[at].startswith(("-", "+")):
        option, at = argv[at], at + 1
        if option in ("-", "--"):
            break
        if option.startswith("--"):
            at += option in _LONG_OPTIONS_WITH_VALUE
            continue
        letters = option[1:]
        given = given or (option[0] == "-" and "c" in letters)
        # The name of an option is the next word; in zsh it may be the rest of this one.
        at += letters.endswith("o") if name == "zsh" else letters.count("o") + letters.count("O")
    return argv[at] if given and at < len(argv) else None


def read_plain(script: str) -> PlainScript | None:
    """The script as commands and operators, with patterns marked; None if it is not plain or not readable."""
    if _CONTROL.search(script):
        return None
    source = _source(script.strip(" \t\n"))
    if source is None:
        return None
    with suppress(OSError):
        return _plain(source)
    return None


@lru_cache(maxsize=256)
def _plain(source: bytes) -> PlainScript | None:
    found = ask(PLAIN, source)
    if found is None:
        return None
    commands, operators = found
    words = (tuple(Word(text, expands) for text, expands in command) for command in commands)
    return PlainScript(tuple(words), tuple(operators))


def command_beginnings(script: str) -> tuple[tuple[str, ...], ...] | None:
    """Of every command anywhere in *any* script, the leading words that are literally known.

    For recognising what must not slip through: commands inside substitutions, loops and
    functions count, and a script that does not parse is searched as far as it was read.
    None if the script is too large or too involved to be read at all.
    """
    found = beginnings_or_fault(script)
    return None if isinstance(found, str) else found


def beginnings_or_fault(script: str) -> tuple[tuple[str, ...], ...] | str:
    """`command_beginnings`, or the reason why the script cannot be read."""
    source = _source(script)
    if source is None:
        return f"its script is no text of at most {MAX_SCRIPT_BYTES:,} bytes"
    try:
        found = _beginnings(source)
    except OSError:
        return "the process that reads scripts was lost twice with it, or too slow"
    return TOO_INVOLVED if found is None else found


@lru_cache(maxsize=256)
def _beginnings(source: bytes) -> tuple[tuple[str, ...], ...] | None:
    found = ask(BEGINNINGS, source)
    return None if found is None else tuple(map(tuple, found))


def _source(script: str) -> bytes | None:
    if len(script) > MAX_SCRIPT_BYTES:
        return None
    try:
        source = script.encode()
    except UnicodeEncodeError:
        return None
    return source if len(source) <= MAX_SCRIPT_BYTES else None


# ── script reader ─────────────────────────────────────────────────────────────────────────────────
# Asks the process that reads scripts (`bash_grammar`), and starts it: when it is first needed, and
# again.
#
# One that is lost or late says nothing of the script: it is started again and asked again. A script that
# costs that one, too, has no answer. One process serves all threads of this one; a fork of this one
# starts its own.


PLAIN: Final = b"p"
BEGINNINGS: Final = b"b"
PATCH: Final = b"a"
ANSWER_S: Final = 5.0
"""By the clock; the process gives up much earlier, by the processor's time."""
START_S: Final = 30.0
_LENGTH: Final = struct.Struct("!I")
MOST_BYTES: Final = 64 << 20
"""Of an answer: more than the parts of the longest script take."""
_MODULE: Final = "orchestrator.tools.commands.bash_grammar"


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
