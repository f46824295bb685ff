"""`python -m sim.traces FILE`: the traces of many seeds, kept in a file or compared with one.

A change that is to leave behaviour as it is leaves every trace as it is: write the file before the change,
compare behind it. A digest covers each command with its time and its answer, the head of each log, and all
that event queues and tree logs hold at the end: one byte in one entry makes another digest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from sim.campaign import BATCH, run_batch

SHOWN = 10


def main() -> int:
    """Exit code 1 if a seed's trace is not the kept one, or a rule was broken."""
    given = _arguments()
    found = dict(digests(range(given.seeds), given.processes))
    if not given.file.exists():
        given.file.write_text(json.dumps(found), encoding="utf-8")
        print(f"{len(found):,} traces are kept in {given.file}")
        return 0
    kept = json.loads(given.file.read_text(encoding="utf-8"))
    differ = [seed for seed, digest in found.items() if kept.get(seed, digest) != digest]
    both = len(found.keys() & kept.keys())
    print(f"{both:,} traces compared with {given.file}: {len(differ):,} differ")
    for seed in differ[:SHOWN]:
        print(f"seed {seed}: compare `python -m sim --seed {seed} --trace` of both versions")
    return 1 if differ or not both else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.traces", description=__doc__)
    parser.add_argument("file", type=Path, help="written if it is not there, else compared with")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    return parser.parse_args()


def digests(seeds: range, processes: int) -> Iterator[tuple[str, str]]:
    """Each seed with its trace's digest, and what it ended with."""
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from chain.from_iterable(pool.map(_of_batch, batches))


def _of_batch(seeds: range) -> list[tuple[str, str]]:
    outcomes, _ = run_batch(seeds, traced=True)
    return [(str(outcome.seed), outcome.digest) for outcome in outcomes]


if __name__ == "__main__":
    sys.exit(main())
