"""Kept digests: of many more calm runs than have a story, only whether it is still the same.

`digests.txt` has a run a line: workload, seed, and a part of the hash of its story. A digest that differs
names the run; what differs is told by running it beside the commit that the digests are of (`--explain`). A
run whose story changes where nobody outside may see anything, or that breaks a rule, has no digest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from sim.stories.kept import all_differences
from sim.stories.runs import Run, Told, stories
from sim.stories.steady import steadily

FILE = Path(__file__).with_name("digests.txt")
ROOT = Path(__file__).parents[2]
CHARS = 12
BATCH = 8


def digest(lines: Sequence[str]) -> str:
    """A part of the hash of a story."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()[:CHARS]


def kept_digests() -> dict[Run, str]:
    """The digest of each run that has one, in the order of workloads and seeds."""
    rows = (line.split() for line in FILE.read_text(encoding="utf-8").splitlines()) if FILE.exists() else ()
    return {(row[0], int(row[1])): row[2] for row in rows}


def keep_digests(found: Mapping[Run, str]) -> None:
    FILE.write_text(
        "".join(f"{workload} {seed} {found[workload, seed]}\n" for workload, seed in sorted(found)),
        encoding="utf-8",
    )


def differing(kept: Mapping[Run, str]) -> Iterator[tuple[Run, str]]:
    """Runs whose story is another one than was kept, with today's digest, or the rule that was broken."""
    for told in stories(kept):
        run = told.workload, told.seed
        if (seen := told.broken or digest(told.lines)) != kept[run]:
            yield run, seen


def all_differing(kept: Mapping[Run, str], processes: int) -> Iterator[tuple[Run, str]]:
    """The same on several cores."""
    runs = list(kept)
    batches = [{run: kept[run] for run in runs[at : at + BATCH]} for at in range(0, len(runs), BATCH)]
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from chain.from_iterable(pool.map(_differing, batches))


def _differing(kept: Mapping[Run, str]) -> list[tuple[Run, str]]:
    return list(differing(kept))


def steady_digests(runs: Sequence[Run], processes: int) -> Iterator[tuple[Run, str, str]]:
    """Each run with its digest, and why it has none."""
    batches = [runs[at : at + BATCH] for at in range(0, len(runs), BATCH)]
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from chain.from_iterable(pool.map(_steady_digests, batches))


def _steady_digests(runs: Sequence[Run]) -> list[tuple[Run, str, str]]:
    return [((told.workload, told.seed), digest(told.lines), shaken) for told, shaken in steadily(runs)]


# ── beside another commit ─────────────────────────────────────────────────────────────────────


def commit_of_digests() -> str:
    """The last commit that wrote digests."""
    return _git("log", "-1", "--format=%H", "--", str(FILE)).strip()


def explained(run: Run, beside: str) -> list[str]:
    """Each line in which a run's story is another one than at a commit, which is checked out for that."""
    before, broken = _story_at(run, beside)
    told: Told = next(stories([run]))
    lines = all_differences(before, told)
    lines += [f"  at {beside[:12]} a rule was broken: {broken}"] if broken else []
    lines += [f"  a rule is broken: {told.broken}"] if told.broken else []
    known = kept_digests().get(run)
    if known is not None and known != digest(before):
        lines.append(f"  the digest that is kept is not that of {beside[:12]}: --beside names another commit")
    return lines


def _story_at(run: Run, commit: str) -> tuple[list[str], str]:
    """A run's story at a commit, and the rule that it broke."""
    with TemporaryDirectory(prefix="stories-") as folder:
        place = Path(folder) / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(place), commit)
        try:
            words = [sys.executable, "-m", "sim.stories", "--show", run[0], str(run[1])]
            environment = {**os.environ, "PYTHONPATH": str(place)}
            done = subprocess.run(
                words, cwd=place, env=environment, capture_output=True, text=True, check=False
            )
        finally:
            _git("worktree", "remove", "--force", str(place))
    lines = done.stdout.splitlines()
    if not lines:
        raise SystemExit(f"no story of {run[0]}, seed {run[1]}, at {commit[:12]}: {done.stderr[-300:]}")
    if done.returncode and lines[-1].startswith(BROKEN):
        return lines[:-1], lines[-1].removeprefix(BROKEN)
    return lines, ""


BROKEN = "a rule was broken: "
"""The end of what `--show` prints where one was."""


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


# ── choosing and renewing ─────────────────────────────────────────────────────────────────────

SEEDS: Mapping[int, int] = {0: 10, 1_000: 10, 2_000: 14, 3_000: 8}
"""Candidates of each workload: the first seed of each way (`sim/stories/ways.py`), and how many."""


def candidates(workloads: Iterable[str]) -> list[Run]:
    """A seed of each workload, then another of each: an early end leaves some of all."""
    some = list(workloads)
    most = max(SEEDS.values())
    return [
        (workload, first + at)
        for at in range(most)
        for first, count in SEEDS.items()
        if at < count
        for workload in some
    ]
