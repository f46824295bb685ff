"""A rule of the simulator, and the case that tests it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """The case in which a rule might not hold: without it, that the rule held says little."""

    text: str
    sources: tuple[str, ...] = ()
    """The counts that it is told by (`sim/reach.py`); without any, one that bears the rule's name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the case that tests it."""

    sentence: str
    case: Case
