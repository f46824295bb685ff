"""The commands that a command consists of: those that are certain, and all that can be seen in it.

Certain ones are what a rule may allow. What a rule forbids is looked for everywhere: in substitutions and
loops, behind sudo and its like, in a shell's script within a shell's script.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from orchestrator.tools.commands.bash import command_beginnings, read_plain, unwrap
from orchestrator.tools.commands.safety import system_program, without_runners

MOST_DEPTH: Final = 8
"""Shells within shells."""
MOST_COMMANDS: Final = 10_000

Words = tuple[str, ...]


def certain_commands(argv: Sequence[str]) -> tuple[Words, ...]:
    """The simple commands of a plain script, each up to its first word with a pattern; else the command."""
    script = unwrap(argv)
    plain = read_plain(script) if script is not None and system_program(argv[0]) is not None else None
    if plain is None:
        return (tuple(argv),)
    return tuple(
        tuple(word.text for word in takewhile(lambda word: not word.expands, command))
        for command in plain.commands
    )


def all_commands(argv: Sequence[str]) -> tuple[Words, ...] | None:
    """Of each command that can be seen, the words that are known; None if not all of it can be read."""
    found: list[Words] = []
    pending = [(tuple(argv), 0)]
    while pending:
        words, depth = pending.pop()
        found.append(words)
        inner = tuple(without_runners(words))
        if inner != words:
            found.append(inner)
        script = unwrap(inner)
        if script is None:
            continue
        beginnings = command_beginnings(script) if depth < MOST_DEPTH else None
        if beginnings is None or len(found) + len(pending) + len(beginnings) > MOST_COMMANDS:
            return None
        pending += [(beginning, depth + 1) for beginning in beginnings]
    return tuple(found)
