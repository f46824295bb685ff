"""Planted defects: what the simulator is worth is how soon it finds them.

`python -m sim.mutants` plants each in a process of its own, runs seeds until a rule is broken,
and writes the table into `docs/simulator.md`. A defect that no longer fits the product's text
fails loudly: it must be planted anew, not passed over.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from sim.campaign import run_batch
from sim.defects import DEFECTS
from sim.defects_beside import DEFECTS as DEFECTS_BESIDE
from sim.defects_of_births import DEFECTS as DEFECTS_OF_BIRTHS
from sim.defects_of_contents import DEFECTS as DEFECTS_OF_CONTENTS
from sim.defects_of_delivery import DEFECTS as DEFECTS_OF_DELIVERY
from sim.defects_of_deployments import DEFECTS as DEFECTS_OF_DEPLOYMENTS
from sim.defects_of_doors import DEFECTS as DEFECTS_OF_DOORS
from sim.defects_of_doors_more import DEFECTS as DEFECTS_OF_DOORS_MORE
from sim.defects_of_files import DEFECTS as DEFECTS_OF_FILES
from sim.defects_of_folders import DEFECTS as DEFECTS_OF_FOLDERS
from sim.defects_of_jobs import DEFECTS as DEFECTS_OF_JOBS
from sim.defects_of_odd_servers import DEFECTS as DEFECTS_OF_ODD_SERVERS
from sim.defects_of_plans import DEFECTS as DEFECTS_OF_PLANS
from sim.defects_of_processes import DEFECTS as DEFECTS_OF_PROCESSES
from sim.defects_of_readers import DEFECTS as DEFECTS_OF_READERS
from sim.defects_of_requests import DEFECTS as DEFECTS_OF_REQUESTS
from sim.defects_of_rules import DEFECTS as DEFECTS_OF_RULES
from sim.defects_of_trees import DEFECTS as DEFECTS_OF_TREES
from sim.defects_of_undecidable import DEFECTS as DEFECTS_OF_UNDECIDABLE
from sim.defects_of_upkeep import DEFECTS as DEFECTS_OF_UPKEEP
from sim.mutant import Mutant

PAGE = Path(__file__).parent.parent / "docs" / "simulator.md"
BEGIN, END = "<!-- planted defects: begin -->", "<!-- planted defects: end -->"
MOST_SEEDS = 2_000


MUTANTS = (
    *DEFECTS,
    *DEFECTS_OF_TREES,
    *DEFECTS_OF_UPKEEP,
    *DEFECTS_OF_FILES,
    *DEFECTS_OF_READERS,
    *DEFECTS_OF_UNDECIDABLE,
    *DEFECTS_OF_RULES,
    *DEFECTS_OF_DEPLOYMENTS,
    *DEFECTS_OF_PROCESSES,
    *DEFECTS_BESIDE,
    *DEFECTS_OF_DELIVERY,
    *DEFECTS_OF_PLANS,
    *DEFECTS_OF_FOLDERS,
    *DEFECTS_OF_CONTENTS,
    *DEFECTS_OF_BIRTHS,
    *DEFECTS_OF_JOBS,
    *DEFECTS_OF_DOORS,
    *DEFECTS_OF_DOORS_MORE,
    *DEFECTS_OF_ODD_SERVERS,
    *DEFECTS_OF_REQUESTS,
)


@dataclass(frozen=True, slots=True)
class Found:
    """How a defect was found: after how many seeds, and by which rule."""

    name: str
    wrong: str
    seeds: int | None
    rule: str = ""
    seed: int = -1
    workload: str = ""


def _named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def hunt(name: str, first: int, most: int) -> Found:
    """Plants one defect in this process, for good, and looks for it from seed `first` on."""
    mutant = _named(name)
    mutant.plant()
    for at in range(first, most, 10):
        outcomes, _ = run_batch(range(at, min(at + 10, most)), mutant.workload or None)
        for outcome in outcomes:
            if outcome.violation:
                if "TypeError" in outcome.violation.seen:
                    raise ValueError(f"{name!r} does not fit the product any more: {outcome.violation}")
                seed, rule = outcome.seed, outcome.violation.rule
                return Found(name, mutant.wrong, seed + 1, rule, seed, mutant.workload)
    return Found(name, mutant.wrong, None)


def holds(seed: int, workload: str) -> bool:
    """Whether every rule holds under a seed where nothing is planted."""
    return run_batch([seed], workload or None)[0][0].violation is None


def _hunted(pool: ProcessPoolExecutor, name: str, most: int) -> Found:
    """A seed that breaks a rule by itself says nothing of the defect: it is passed over."""
    first = 0
    while True:
        found = pool.submit(hunt, name, first, most).result()
        if found.seeds is None or pool.submit(holds, found.seed, found.workload).result():
            return found
        first = found.seed + 1


def table(found: Iterable[Found]) -> str:
    """The page's table."""
    rows = ["| defect | what is wrong | seeds | broken rule |", "|---|---|---|---|"]
    for one in found:
        seeds = f"{one.seeds}" if one.seeds else "not found"
        seeds += f" of `{one.workload}`" if one.workload else ""
        rows.append(f"| {one.name} | {one.wrong} | {seeds} | {f'`{one.rule}`' if one.rule else ''} |")
    return "\n".join(rows)


def main() -> int:
    """Exit code 1 if a defect was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m sim.mutants", description="Plants defects and looks for them."
    )
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="give up after (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    names = given.names or [mutant.name for mutant in MUTANTS]
    context = get_context("spawn")
    with ProcessPoolExecutor(given.processes, mp_context=context, max_tasks_per_child=1) as pool:
        found = []
        with ThreadPoolExecutor(given.processes) as hunters:
            for one in hunters.map(lambda name: _hunted(pool, name, given.seeds), names):
                print(f"{one.name}: {one.seeds or 'NOT FOUND'} {one.rule}", flush=True)
                found.append(one)
    if not given.names:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}", encoding="utf-8")
    return 0 if all(one.seeds for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
