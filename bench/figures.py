"""Figures of a bench: each with its unit, its target, and its conditions. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a figure; where there is a second limit, it is the p99's."""

    kind: Literal["at most", "at least"]
    value: float
    p99: float | None = None

    def met_by(self, value: float, p99: float | None) -> bool:
        if self.kind == "at least":
            return value >= self.value
        return value <= self.value and (self.p99 is None or p99 is None or p99 <= self.p99)

    def __str__(self) -> str:
        sign = "≥" if self.kind == "at least" else "≤"
        tail = "" if self.p99 is None else f", p99 {sign} {shown(self.p99)}"
        return f"{sign} {shown(self.value)}{tail}"


def at_most(value: float, p99: float | None = None) -> Target:
    return Target("at most", value, p99)


def at_least(value: float) -> Target:
    return Target("at least", value)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table. `value` is the p50 where there is a `p99`."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    p99: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None where nothing was promised."""
        return None if self.target is None else self.target.met_by(self.value, self.p99)

    def wire(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "p99": self.p99,
            "unit": self.unit,
            "target": None if self.target is None else str(self.target),
            "met": self.met,
            "note": self.note,
        }


def spread(name: str, seconds: Sequence[float], target: Target | None = None, note: str = "") -> Figure:
    """p50 and p99 of some durations, in milliseconds."""
    p99 = statistics.quantiles(seconds, n=100)[98]
    return Figure(name, statistics.median(seconds) * 1000, "ms", target, p99 * 1000, note)


def shown(value: float) -> str:
    """Three digits that matter, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
