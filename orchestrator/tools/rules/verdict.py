"""The rules' part of a command's assessment: what is allowed, and the strictest rule that it meets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orchestrator.core.calls.exec import Segment, StrictRule
from orchestrator.tools.commands.within import Words, all_commands, certain_commands
from orchestrator.tools.rules.rule import PrefixRule

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
