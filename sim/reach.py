"""Coverage of a simulation: ops, answers of scripts, kinds of fact and fault, and the case of each rule.

A rule that holds says little where nothing could have broken it. So each rule names the case in which it
might not hold, and a campaign counts how often that occurred (`rare`).
Names have a kind and a word: `op interrupt`, `reply commit FENCED seq`, `fact stopping`, `case alone`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.broker.scripts import load
from sim.invariants import CASES, RULES

ENOUGH_SEEDS = 5_000
"""Of all workloads: in so many seeds every case is counted often enough, unless the simulator has lost its
way to it."""
LEAST = 3
"""Times in 1,000 seeds that each case is to occur."""
_REASONS = {"FENCED": "why", "REFUSED": "reason"}
"""Replies that may have a word that says why, and the field's name."""
KINDS = ("op", "reply", "fact", "fault")


@dataclass(slots=True)
class Reach:
    """Counts of one simulation, or of many."""

    counts: Counter[str] = field(default_factory=Counter)

    def saw(self, rule: str) -> None:
        """The case of a rule, or another one that a campaign is to come by."""
        self.counts[f"case {rule}"] += 1

    def met(self, kind: str, word: str) -> None:
        self.counts[f"{kind} {word}"] += 1

    def replied(self, name: str, reply: Any) -> None:
        """A script's answer, by its code and, where it says why, by that."""
        if type(reply) is not list or not reply or type(reply[0]) is not bytes or not name.islower():
            return
        code = reply[0]
        if code == b"OK":
            self.counts[f"reply {name} OK"] += 1
            return
        words = [name, code.decode()]
        if words[1] in _REASONS:
            reason = load(name).gives.read(reply)[1].get(_REASONS[words[1]], "")
            words += [reason] if reason.replace("_", "").replace(" ", "").isalpha() else []
        self.counts["reply " + " ".join(words)] += 1

    def of(self, sources: Iterable[str]) -> int:
        return sum(self.counts[source] for source in sources)


def rare(counts: Mapping[str, int], seeds: int) -> dict[str, int]:
    """Times of those cases that occurred less often than they are to, in so many seeds of all workloads."""
    least = LEAST * seeds / 1_000
    return {name: times for name, _, times in _counted(counts) if times < max(least, 1)}


def _counted(counts: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Each case: its name, its words, and how often it occurred."""
    found = Reach(Counter(counts))
    cases = [*((name, rule.case) for name, rule in RULES.items()), *CASES.items()]
    return [(name, case.text, found.of(case.sources or (f"case {name}",))) for name, case in cases]


def table(counts: Mapping[str, int], seeds: int) -> str:
    """Each rule with its case, and everything else that was counted."""
    lines = ["times      in 1,000 seeds   rule or case"]
    for name, text, times in _counted(counts):
        lines.append(f"{times:>9,}  {times * 1_000 / max(seeds, 1):>14,.1f}   {name}: {text}")
    for kind in KINDS:
        words = sorted(name for name in counts if name.startswith(f"{kind} "))
        told = (f"{word.partition(' ')[2]} {counts[word]:,}" for word in words)
        lines.append(f"{kind}: " + " · ".join(told))
    return "\n".join(lines)
