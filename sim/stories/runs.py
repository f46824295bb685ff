"""Calm runs, one after the other in this process, each with its story."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sim.campaign import _garbage_kept
from sim.double import opened
from sim.loop import silenced, unlisted
from sim.stories.calm import CalmWorld
from sim.stories.told import Story

Run = tuple[str, int]
"""A workload and a seed."""


@dataclass(frozen=True, slots=True)
class Told:
    """The story of a run."""

    workload: str
    seed: int
    lines: list[str]
    broken: str
    """The rule that was broken, and what was seen; '' as a rule."""
    cpu_s: float


def stories(plan: Iterable[Run]) -> Iterator[Told]:
    """Runs a plan; a run that raises tells what it raised."""
    with _garbage_kept(), unlisted(), opened() as double:
        for workload, seed in plan:
            began = time.process_time()
            world = CalmWorld(seed, double, workload)
            story = Story(world)
            outcome = world.run()
            broken = f"{outcome.violation.rule}: {outcome.violation.seen}" if outcome.violation else ""
            yield Told(workload, seed, story.lines(), broken, time.process_time() - began)
            with silenced():
                gc.collect()
            gc.freeze()
