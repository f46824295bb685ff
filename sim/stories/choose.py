"""`python -m sim.stories.choose`: chooses the runs whose stories are kept, out of many calm ones.

The greediest first: the run that adds most branches of the product for its time. One whose story a
disturbance changes that nobody outside may see (`sim/stories/disturbed.py`) is passed over.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from sim.mutation.change import ROOT
from sim.mutation.maps import Measuring, seed_name
from sim.mutation.marks import Marks

SHARES = 2
"""Into which the kept runs are split, to be measured side by side."""
Branches = dict[str, int]
"""Of each run, a bit for each branch."""


def main() -> int:
    """Measures candidates into a folder, or picks from what was measured there."""
    given = _arguments()
    if given.measure:
        _measure(given)
        return 0
    return _add(given.add, given.slice_s) if given.add else _pick(given)


def _add(names: Sequence[str], slice_s: float) -> int:
    """Keeps more runs, as far as they are steady: the first of them in CI's slice."""
    from sim.stories.kept import keep, kept_runs, kept_stories, list_runs
    from sim.stories.steady import steady

    slice_runs = set(kept_runs(slice_only=True))
    listed = [(run, run in slice_runs) for run in kept_runs()]
    new: dict[tuple[str, int], list[str]] = {}
    spent_s = 0.0
    for name in names:
        workload, _, seed = name.rpartition(":")
        run = (workload, int(seed))
        if any(run == known for known, _ in listed):
            continue
        story, cpu_s, shaken = steady(run)
        print(f"{name}: {f'not steady, {shaken}' if shaken else f'{cpu_s:.2f} s'}", flush=True)
        if not shaken:
            spent_s += cpu_s
            listed.append((run, spent_s <= slice_s))
            new[run] = story
    for workload in {workload for workload, _ in new}:
        new |= {(workload, seed): lines for seed, lines in kept_stories(workload).items()}
    list_runs(listed)
    keep(new)
    print(f"{len(listed)} runs are kept; those that are new take {spent_s:.1f} s")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.stories.choose", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run candidates, and note where they come")
    parser.add_argument("--kept", action="store_true", help="with --measure: the kept runs, and no others")
    parser.add_argument("--share", type=int, default=0, help="with --kept: which half of them")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=8, help="seeds of each workload (default: %(default)s)")
    parser.add_argument("--workload", action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--add", action="append", metavar="WORKLOAD:SEED", help="keep this run, too, if it is steady"
    )
    parser.add_argument("--cpu-s", type=float, default=80.0, help="of all kept runs (default: %(default)s)")
    parser.add_argument("--slice-s", type=float, default=20.0, help="of CI's slice (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutation", help="where measures are kept")
    return parser.parse_args()


def _measure(given: argparse.Namespace) -> None:
    name = f"kept-{given.share}" if given.kept else given.first
    out: Path = given.folder / f"stories-{name}.json"
    out.parent.mkdir(exist_ok=True)
    measuring = Marks(out) if given.kept else Measuring(out, branches=True)
    measuring.start()
    # What runs is what is imported from here on.
    from sim.stories.calm import CalmWorld
    from sim.stories.digests import kept_digests
    from sim.stories.kept import kept_runs
    from sim.stories.runs import stories

    seeds = range(given.first, given.first + given.seeds)
    plan = [(name, seed) for seed in seeds for name in given.workload or CalmWorld.workloads]
    if given.kept:
        plan = [*dict.fromkeys((*kept_runs(), *kept_digests()))][given.share :: SHARES]
    measuring.note_scripts()
    told = stories(plan)
    for workload, seed in plan:
        name = seed_name(workload, seed)
        measuring.context(name)
        began = time.process_time()
        done = next(told)
        measuring.took_s[name] = time.process_time() - began
        if isinstance(measuring, Marks):
            measuring.pause()
        if done.broken:
            measuring.failed.append(name)
            print(name, done.broken[:300], file=sys.stderr)
    measuring.save()


def _pick(given: argparse.Namespace) -> int:
    from sim.stories.kept import keep, list_runs
    from sim.stories.steady import steady

    branches, took_s = _measured(given.folder)
    chosen: list[tuple[tuple[str, int], bool]] = []
    told: dict[tuple[str, int], list[str]] = {}
    seen, spent_s = 0, 0.0
    left = dict(branches)
    while left and spent_s < given.cpu_s:
        name = max(left, key=lambda name: ((left[name] & ~seen).bit_count() / took_s[name], name))
        gain = (left.pop(name) & ~seen).bit_count()
        if not gain:
            break
        workload, _, seed = name.rpartition(":")
        run = (workload, int(seed))
        story, cpu_s, shaken = steady(run)
        if shaken:
            print(f"{name} is not steady: {shaken}", flush=True)
            continue
        often = spent_s + cpu_s <= given.slice_s
        chosen.append((run, often))
        told[run] = story
        seen |= branches[name]
        spent_s += cpu_s
        print(f"{len(chosen)} {name} adds {gain}: {seen.bit_count()} in {spent_s:.1f} s", flush=True)
    every = reduce(or_, branches.values(), 0)
    came = f"{seen.bit_count()} of {every.bit_count()} branches"
    print(f"{len(chosen)} runs come to {came} in {spent_s:.1f} s")
    list_runs(chosen)
    keep(told)
    return 0


def _measured(folder: Path) -> tuple[Branches, dict[str, float]]:
    """The branches of each run that held every rule, and how long it took."""
    found: dict[str, int] = {}
    bits: dict[tuple[Any, ...], int] = {}

    def has(name: str, *branch: Any) -> None:
        found[name] = found.get(name, 0) | (1 << bits.setdefault(branch, len(bits)))

    took_s: dict[str, float] = {}
    for file in sorted(folder.glob("stories-*.json")):
        about = json.loads(file.read_text(encoding="utf-8"))
        took_s |= {name: s for name, s in about["took_s"].items() if name not in about["failed"]}
        for name, path, begin, end in _arcs(file.with_suffix(".coverage")):
            has(name, path, begin, end)
        for script, names in about["scripts"].items():
            for name in names:
                has(name, script)
    return {name: some for name, some in found.items() if name in took_s}, took_s


def _arcs(file: Path) -> Iterator[tuple[str, str, int, int]]:
    with sqlite3.connect(file) as data:
        yield from data.execute(
            "SELECT context.context, file.path, fromno, tono FROM arc "
            "JOIN context ON context.id = context_id JOIN file ON file.id = file_id "
            "WHERE context.context <> ''"
        )


if __name__ == "__main__":
    sys.exit(main())
