"""Shell scripts as the commands that they certainly are: what a plain one runs, what any other may begin.

A script is *plain* if every shell we start (bash, zsh, sh) runs exactly the words that
are written, in simple commands joined by `&&`, `||`, `;` or `|`. Only then may it be
judged by its words. What an unquoted word turns into must be knowable, so redirects,
expansions, subshells, assignments, background jobs, comments and newlines between commands
all make a script not plain.

Models write these scripts, so they are read in a process of their own (`script_reader`).
This module must not know what any command does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from orchestrator.tools.commands.bash_words import PlainScript, Word
from orchestrator.tools.commands.script_reader import BEGINNINGS, PLAIN, ask

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

_SHELLS: Final = frozenset({"bash", "zsh", "sh"})
# A string ends at NUL for execve, and shells and terminals differ on the other controls.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def unwrap(argv: Sequence[str]) -> str | None:
    """The script of `bash|zsh|sh -c|-lc SCRIPT` (the shell by name or path), else None."""
    match argv:
        case [shell, "-c" | "-lc", script] if shell.rpartition("/")[2] in _SHELLS:
            return script
        case _:
            return None


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
    return "its script is too involved" if found is None else found


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
