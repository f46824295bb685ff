"""Tells whether a story stays what it is where nobody outside may see a difference."""

from __future__ import annotations

from contextlib import ExitStack

from sim.stories.disturbed import DISTURBANCES
from sim.stories.kept import difference
from sim.stories.runs import Run, Told, stories


def steady(run: Run) -> tuple[list[str], float, str]:
    """The story of a run, its processor time, and how the disturbances change it; '' if not at all."""
    told = next(stories([run]))
    if told.broken:
        return told.lines, told.cpu_s, told.broken
    with ExitStack() as disturbances:
        for disturbed in DISTURBANCES:
            disturbances.enter_context(disturbed())
        again: Told = next(stories([run]))
    seen = difference(told.lines, again)
    return told.lines, told.cpu_s, "" if seen is None else str(seen)
