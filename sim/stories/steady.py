"""Tells whether a story stays what it is where nobody outside may see a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from sim.stories.disturbed import DISTURBANCES
from sim.stories.kept import difference
from sim.stories.runs import Run, Told, stories


def steady(run: Run) -> tuple[list[str], float, str]:
    """The story of a run, its processor time, and how the disturbances change it; '' if not at all."""
    told, shaken = next(steadily([run]))
    return told.lines, told.cpu_s, shaken


def steadily(runs: Iterable[Run]) -> Iterator[tuple[Told, str]]:
    """The story of each run, and how the disturbances change it; all in this process, one after the other."""
    now = [("", 0)]
    going = _again(now)
    for run in runs:
        now[0] = run
        try:
            told = next(going)
            shaken = told.broken or _shaken(told, going)
        except Exception as error:
            # What raises in the middle of a run ends the row of runs.
            going = _again(now)
            told, shaken = Told(*run, [], "", 0.0), f"{type(error).__name__}: {error}"
        yield told, shaken


def _again(now: list[Run]) -> Iterator[Told]:
    """The run that is meant just then, as often as anybody asks."""
    return stories(now[0] for _ in iter(int, 1))


def _shaken(told: Told, going: Iterator[Told]) -> str:
    with ExitStack() as disturbances:
        for disturbed in DISTURBANCES:
            disturbances.enter_context(disturbed())
        again = next(going)
    seen = difference(told.lines, again)
    return "" if seen is None else str(seen)
