"""Many seeds, on all cores: what they cost, and the first that breaks a rule."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

from sim.double import opened
from sim.loop import silenced, unlisted
from sim.world import Outcome, World

BATCH = 25


@dataclass(slots=True)
class Report:
    """Results of a campaign."""

    outcomes: int = 0
    commits: int = 0
    commands: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    failures: list[Outcome] = field(default_factory=list)
    reach: Counter[str] = field(default_factory=Counter)
    """Counts of the cases that all simulations reached."""

    def add(self, outcomes: Sequence[Outcome], cpu_s: float) -> None:
        self.outcomes += len(outcomes)
        self.commits += sum(outcome.commits for outcome in outcomes)
        self.commands += sum(outcome.commands for outcome in outcomes)
        for outcome in outcomes:
            self.reach.update(outcome.reach)
        self.simulated_s += sum(outcome.simulated_s for outcome in outcomes)
        self.cpu_s += cpu_s
        self.failures += [outcome for outcome in outcomes if outcome.violation]

    def __str__(self) -> str:
        wall_s, cpu_s = max(self.wall_s, 1e-9), max(self.cpu_s, 1e-9)
        each = f"{self.commits / max(self.outcomes, 1):.1f} commits and"
        each += f" {self.commands / max(self.outcomes, 1):.0f} commands each"
        return (
            f"{self.outcomes:,} schedules, {self.commits:,} commits ({each}), "
            f"{self.simulated_s / 3600:.1f} simulated hours; {len(self.failures)} failures\n"
            f"{self.wall_s:.1f} s by the clock: {self.outcomes / wall_s:.1f} schedules/s, "
            f"{self.commits / wall_s:.0f} commits/s\n"
            f"{self.cpu_s:.1f} s of processor time: {self.outcomes / cpu_s:.1f} schedules/s and "
            f"{self.commits / cpu_s:.0f} commits/s for one core"
        )


def run_batch(
    seeds: Sequence[int], workload: str | None = None, *, traced: bool = False
) -> tuple[list[Outcome], float]:
    """Runs seeds one after the other in this process; their outcomes and the CPU seconds that they took."""
    began = time.process_time()
    outcomes = list(stories(((workload, seed) for seed in seeds), traced=traced))
    return outcomes, time.process_time() - began


def stories(plan: Iterable[tuple[str | None, int]], *, traced: bool = False) -> Iterator[Outcome]:
    """Runs workloads (None: the seed chooses) under seeds, one after the other in this process."""
    with _garbage_kept(), unlisted(), opened() as double:
        for workload, seed in plan:
            outcome = World(seed, double, workload).run(traced=traced)
            # Nobody holds the world any more; what is left behind it are caches, which stay.
            with silenced():
                gc.collect()
            gc.freeze()
            yield outcome


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Each simulation clears up behind itself: when that happens must not depend on what ran before."""
    frozen = gc.get_freeze_count() > 0
    if not frozen:
        _freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()


def _freeze() -> None:
    """Freezes imported objects: collections behind thousands of simulations do not look at them."""
    gc.collect()
    gc.freeze()


def campaign(
    seeds: range, processes: int, workload: str | None = None, told: Callable[[Report], None] = lambda _: None
) -> Report:
    """Runs all seeds on `processes` cores; goes on behind failures."""
    report, began = Report(), time.monotonic()
    for outcomes, cpu_s in _done(seeds, processes, workload):
        report.add(outcomes, cpu_s)
        report.wall_s = time.monotonic() - began
        told(report)
    return report


def _done(seeds: range, processes: int, workload: str | None) -> Iterator[tuple[list[Outcome], float]]:
    batches = (seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH))
    with ProcessPoolExecutor(processes, mp_context=get_context("fork"), initializer=_freeze) as pool:
        running: set[Future[tuple[list[Outcome], float]]] = set()
        for batch in batches:
            running.add(pool.submit(run_batch, batch, workload))
            if len(running) >= 2 * processes:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in running)
