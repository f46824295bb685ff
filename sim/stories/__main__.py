"""`python -m sim.stories`: compares the kept stories, or digests, with those of today.

Who changed behaviour on purpose reads the differences, and keeps the new stories with `--renew`. Who did not
has found a defect.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context

from sim.stories.calm import CalmWorld
from sim.stories.digests import (
    BROKEN,
    all_differing,
    candidates,
    commit_of_digests,
    explained,
    keep_digests,
    kept_digests,
    steady_digests,
)
from sim.stories.kept import Difference, all_differences, difference, keep, kept_runs, kept_stories
from sim.stories.runs import Run, Told, stories
from sim.stories.steady import steady

BATCH = 4
SHOWN = 12
EXPLAINED, MOST_LINES = 3, 60
"""Runs whose differences are shown with counts of digests, and lines of each."""


def main() -> int:
    """Exit code 1 if a story is not the kept one, or is not steady."""
    given = _arguments()
    if given.show:
        return _show(given.show[0], int(given.show[1]))
    if given.explain:
        return _explain((given.explain[0], int(given.explain[1])), given.beside)
    if given.digests or given.choose:
        return _digests(given)
    runs = [
        run for run in kept_runs(slice_only=given.slice) if not given.workload or run[0] in given.workload
    ]
    if given.steady:
        return _steady(runs)
    began, cpu_s, found = time.monotonic(), 0.0, list[Difference]()
    renewed: dict[Run, list[str]] = {}
    kept = {workload: kept_stories(workload) for workload in {workload for workload, _ in runs}}
    for told in _all(runs, given.processes):
        cpu_s += told.cpu_s
        seen = difference(kept[told.workload].get(told.seed, []), told)
        found += [seen] if seen is not None else []
        if seen is not None and given.all:
            print("\n".join(all_differences(kept[told.workload].get(told.seed, []), told)))
        if not told.broken:
            renewed[told.workload, told.seed] = told.lines
    for one in () if given.all else found[:SHOWN]:
        print(f"{one}\n")
    took = f"{cpu_s:.1f} s of processor time, {time.monotonic() - began:.1f} s by the clock"
    print(f"{len(runs)} stories: {len(found)} differ ({took})")
    if found:
        by_who = Counter(one.who.split()[0] for one in found)
        print("seen first by: " + ", ".join(f"{who} {times}" for who, times in by_who.most_common()))
    if given.renew:
        _renew(renewed, {one.run[0] for one in found})
        return 0
    if found:
        print("If that is meant, keep them with `python -m sim.stories --renew`; else it is a defect.")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.stories", description=__doc__)
    parser.add_argument("--slice", action="store_true", help="only those of CI's slice")
    parser.add_argument("--workload", action="append", help="only this one's; may be repeated")
    parser.add_argument("--all", action="store_true", help="print each line that differs, of each section")
    parser.add_argument("--renew", action="store_true", help="keep those of today where they differ")
    parser.add_argument(
        "--steady", action="store_true", help="show that no story changes by more round trips and turns"
    )
    parser.add_argument("--show", nargs=2, metavar=("WORKLOAD", "SEED"), help="print the story of any run")
    parser.add_argument("--digests", action="store_true", help="the kept digests, not the kept stories")
    parser.add_argument(
        "--choose", action="store_true", help="keep digests of all candidates that have none and are steady"
    )
    parser.add_argument(
        "--explain", nargs=2, metavar=("WORKLOAD", "SEED"), help="what differs in a run since a commit"
    )
    parser.add_argument(
        "--beside", metavar="COMMIT", help="with --explain: that commit (default: the last one with digests)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    return parser.parse_args()


def _show(workload: str, seed: int) -> int:
    told = next(stories([(workload, seed)]))
    print("\n".join(told.lines))
    if told.broken:
        print(f"{BROKEN}{told.broken}")
    return 1 if told.broken else 0


def _explain(run: Run, beside: str | None) -> int:
    """Exit code 1 if anything differs."""
    lines = explained(run, beside or commit_of_digests())
    print("\n".join(lines))
    return 1 if len(lines) > 1 else 0


def _digests(given: argparse.Namespace) -> int:
    """Compares digests, renews them, or chooses more."""
    kept = kept_digests()
    asked = {run: one for run, one in kept.items() if not given.workload or run[0] in given.workload}
    if given.choose:
        runs = [run for run in candidates(given.workload or CalmWorld.workloads) if run not in kept]
        keep_digests({**kept, **_steady_ones(runs, given.processes)})
        return 0
    began = time.monotonic()
    found = dict(all_differing(asked, given.processes))
    print(f"{len(asked):,} digests: {len(found):,} differ ({time.monotonic() - began:.1f} s by the clock)")
    changed = Counter(run[0] for run in found)
    of_each = Counter(run[0] for run in asked)
    for workload, count in changed.most_common():
        print(f"  {workload}: {count} of {of_each[workload]}")
    beside = given.beside or (commit_of_digests() if found else "")
    for run in _first_of_each(found)[:EXPLAINED]:
        print("\n".join(line for line in explained(run, beside)[:MOST_LINES]) + "\n")
    if found and not given.renew:
        print(f"they are: {' '.join(f'{workload}:{seed}' for workload, seed in [*found][:40])}")
        print("`--explain WORKLOAD SEED` tells what differs in one. If all that is meant, keep them with")
        print("`python -m sim.stories --digests --renew`; else it is a defect.")
        return 1
    if found:
        rest = {run: one for run, one in kept.items() if run not in found}
        keep_digests({**rest, **_steady_ones(list(found), given.processes)})
    return 0


def _steady_ones(runs: Sequence[Run], processes: int) -> dict[Run, str]:
    """The digests of runs that are steady; says how many are not."""
    new, bad = dict[Run, str](), 0
    for run, told, shaken in steady_digests(runs, processes):
        if shaken:
            bad += 1
            print(f"{run[0]}, seed {run[1]}, has no digest: {shaken.splitlines()[0]}", flush=True)
        else:
            new[run] = told
    print(f"{len(new):,} digests are kept anew; {bad:,} runs are not steady, or break a rule")
    return new


def _first_of_each(found: Iterable[Run]) -> list[Run]:
    """The first run of each workload, and then all others."""
    first = {run[0]: run for run in reversed(list(found))}
    return [*first.values(), *(run for run in found if first[run[0]] != run)]


def _all(runs: Sequence[Run], processes: int) -> Iterator[Told]:
    batches = [runs[at : at + BATCH] for at in range(0, len(runs), BATCH)]
    if processes == 1:
        yield from stories(runs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from chain.from_iterable(pool.map(_batch, batches))


def _batch(runs: Sequence[Run]) -> list[Told]:
    return list(stories(runs))


def _renew(renewed: dict[Run, list[str]], workloads: set[str]) -> None:
    """Writes the files of workloads in which a story differs; what was not asked for stays as it is."""
    known: dict[Run, list[str]] = {}
    for workload in workloads:
        known |= {(workload, seed): lines for seed, lines in kept_stories(workload).items()}
        known |= {run: lines for run, lines in renewed.items() if run[0] == workload}
    listed = set(kept_runs())
    keep({run: lines for run, lines in known.items() if run in listed})
    print(f"kept anew: {', '.join(sorted(workloads)) or 'nothing'}")


def _steady(runs: Sequence[Run]) -> int:
    bad = 0
    for run in runs:
        _, _, shaken = steady(run)
        if shaken:
            bad += 1
            print(f"{run[0]}, seed {run[1]}: {shaken}\n")
    print(f"{len(runs)} stories: {bad} are not steady")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
