"""The rules' part of a command's assessment: what is allowed, and the strictest rule that it meets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final

from orchestrator.core.calls.exec import Segment, StrictRule
from orchestrator.tools.commands.bash import command_beginnings, read_plain, unwrap
from orchestrator.tools.commands.safety import system_program, without_runners
from orchestrator.tools.rules.parse import PrefixRule

TOO_INVOLVED = "there are rules that ask or forbid, and the script is too involved to be held against them"


def segments(
    argv: Sequence[str], rules: Iterable[PrefixRule], free: Callable[[str], bool]
) -> tuple[Segment, ...]:
    """The certain commands, each with what the rules allow it; `free` says so of a program's name."""
    allowing = [rule for rule in rules if rule.decision == "allow"]
    in_reach = free(argv[0])
    return tuple(_segment(words, allowing, in_reach, free) for words in certain_commands(argv))


def _segment(
    words: Words, rules: Sequence[PrefixRule], in_reach: bool, free: Callable[[str], bool]
) -> Segment:
    meant = [rule for rule in rules if rule.means(words)]
    if not meant:
        return Segment(words)
    # A rule that was written to keep a command in its sandbox is the stricter one.
    leaves = in_reach and not any(rule.confined for rule in meant) and free(words[0])
    return Segment(words, "free" if leaves else "confined")


def strict_rule(argv: Sequence[str], rules: Iterable[PrefixRule]) -> StrictRule | None:
    """The strictest rule that any command in sight meets; None for no rule but such as allow."""
    strict = [rule for rule in rules if rule.decision != "allow"]
    if not strict:
        return None
    commands = all_commands(argv)
    if commands is None:
        return StrictRule("prompt", TOO_INVOLVED)
    met = [rule for rule in strict if any(_meets(rule, words) for words in commands)]
    for decision in ("forbidden", "prompt"):
        for rule in met:
            if rule.decision == decision:
                return StrictRule(rule.decision, rule.justification)
    return None


def _meets(rule: PrefixRule, words: Words) -> bool:
    """Whether a rule means a command, by its program's path or by its name alone."""
    if rule.means(words):
        return True
    return bool(words) and "/" in words[0] and rule.means((words[0].rpartition("/")[2], *words[1:]))


# ── within ────────────────────────────────────────────────────────────────────────────────────────
# The commands that a command consists of: those that are certain, and all that can be seen in it.
#
# Certain ones are what a rule may allow. What a rule forbids is looked for everywhere: in substitutions
# and loops, behind sudo and its like, in a shell's script within a shell's script.


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
