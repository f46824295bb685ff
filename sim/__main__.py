"""`python -m sim`: 10,000 seeds on all cores, or one seed with its trace."""

from __future__ import annotations

import argparse
import os
import sys

from sim.campaign import Report, campaign, run_batch
from sim.reach import ENOUGH_SEEDS, LEAST, rare, table
from sim.workloads import WORKLOADS

SEEDS = 10_000


def main() -> int:
    """Exit code 1 if a rule was broken."""
    given = _arguments()
    if given.seed is not None:
        return _one(given.seed, given.workload, given.trace)
    report = campaign(
        range(given.first, given.first + given.seeds), given.processes, given.workload, _Progress()
    )
    print(f"\r{report}\n\n{table(report.reach, report.outcomes)}\n")
    for outcome in sorted(report.failures, key=lambda outcome: outcome.seed)[:20]:
        print(f"seed {outcome.seed} ({outcome.workload}): {outcome.violation}")
    if report.failures:
        seed = min(outcome.seed for outcome in report.failures)
        print(f"replay one with: python -m sim --seed {seed} --trace")
    # With one workload, or few seeds, chance may pass a case by.
    whole = given.workload is None and given.seeds >= ENOUGH_SEEDS
    unseen = rare(report.reach, report.outcomes) if whole else {}
    for name, times in unseen.items():
        few = f"occurred {times} times in {given.seeds:,} seeds"
        print(f"the case of `{name}` {few}, and is to occur {LEAST} times in 1,000: the rule is not tested")
    return 1 if report.failures or unseen else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Simulates whole fleets, a seed each.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="only this one; else the seed chooses")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened, line by line")
    return parser.parse_args()


class _Progress:
    """Tells of failures as they come: a long campaign may be ended before its end."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, report: Report) -> None:
        for outcome in report.failures[self._told :]:
            print(f"seed {outcome.seed} ({outcome.workload}): {outcome.violation}", file=sys.stderr)
        self._told = len(report.failures)
        if sys.stderr.isatty():
            print(f"\r{report.outcomes} seeds, {len(report.failures)} failures", end="", file=sys.stderr)


def _one(seed: int, workload: str | None, traced: bool) -> int:
    outcome = run_batch([seed], workload, traced=True)[0][0]
    for line in outcome.lines if traced else ():
        print(line)
    print(
        f"seed {seed} ({outcome.workload}): {outcome.violation or 'every rule held'}; "
        f"{outcome.commits} commits, {outcome.simulated_s:.1f} s, trace {outcome.digest[:16]}"
    )
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main())
