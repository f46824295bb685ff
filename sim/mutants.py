"""Planted defects: what the simulator is worth is how soon it finds them.

`python -m sim.mutants` plants each in a process of its own, runs seeds until a rule is broken,
and writes their rows into `docs/planted-defects.md`, each with the commit that it was made at. Where no seed
is known to find a defect, its test is run instead. A defect that no longer fits the product's text fails
loudly: it must be planted anew, not passed over.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

import pytest

from sim.campaign import run_batch, stories
from sim.defects import DEFECTS
from sim.defects_beside import DEFECTS as DEFECTS_BESIDE
from sim.defects_of_agents import DEFECTS as DEFECTS_OF_AGENTS
from sim.defects_of_births import DEFECTS as DEFECTS_OF_BIRTHS
from sim.defects_of_burials import DEFECTS as DEFECTS_OF_BURIALS
from sim.defects_of_contents import DEFECTS as DEFECTS_OF_CONTENTS
from sim.defects_of_delivery import DEFECTS as DEFECTS_OF_DELIVERY
from sim.defects_of_deployments import DEFECTS as DEFECTS_OF_DEPLOYMENTS
from sim.defects_of_doors import DEFECTS as DEFECTS_OF_DOORS
from sim.defects_of_doors_more import DEFECTS as DEFECTS_OF_DOORS_MORE
from sim.defects_of_files import DEFECTS as DEFECTS_OF_FILES
from sim.defects_of_fleet import DEFECTS as DEFECTS_OF_FLEET
from sim.defects_of_folders import DEFECTS as DEFECTS_OF_FOLDERS
from sim.defects_of_jobs import DEFECTS as DEFECTS_OF_JOBS
from sim.defects_of_looks import DEFECTS as DEFECTS_OF_LOOKS
from sim.defects_of_odd_servers import DEFECTS as DEFECTS_OF_ODD_SERVERS
from sim.defects_of_plans import DEFECTS as DEFECTS_OF_PLANS
from sim.defects_of_processes import DEFECTS as DEFECTS_OF_PROCESSES
from sim.defects_of_readers import DEFECTS as DEFECTS_OF_READERS
from sim.defects_of_receipts import DEFECTS as DEFECTS_OF_RECEIPTS
from sim.defects_of_requests import DEFECTS as DEFECTS_OF_REQUESTS
from sim.defects_of_rules import DEFECTS as DEFECTS_OF_RULES
from sim.defects_of_trees import DEFECTS as DEFECTS_OF_TREES
from sim.defects_of_undecidable import DEFECTS as DEFECTS_OF_UNDECIDABLE
from sim.defects_of_upkeep import DEFECTS as DEFECTS_OF_UPKEEP
from sim.defects_of_views import DEFECTS as DEFECTS_OF_VIEWS
from sim.foreign.trial import ROOT, commit
from sim.mutant import Mutant
from sim.stories.kept import difference, kept_runs, kept_stories
from sim.stories.runs import stories as retell

PAGE = ROOT / "docs" / "planted-defects.md"
BEGIN, END = "<!-- planted defects: begin -->", "<!-- planted defects: end -->"
FEW_SEEDS, NEW_SEEDS = 30, 300
"""Seeds that each defect is given at least, and one that the page does not have yet."""
NOT_YET = "not counted yet"
BY_A_TEST = "a test"
PATIENCE = 3
"""A defect is not found when so many times the page's count were run in vain."""


MUTANTS = (
    *DEFECTS,
    *DEFECTS_OF_TREES,
    *DEFECTS_OF_AGENTS,
    *DEFECTS_OF_UPKEEP,
    *DEFECTS_OF_VIEWS,
    *DEFECTS_OF_FILES,
    *DEFECTS_OF_READERS,
    *DEFECTS_OF_RECEIPTS,
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
    *DEFECTS_OF_LOOKS,
    *DEFECTS_OF_DOORS,
    *DEFECTS_OF_DOORS_MORE,
    *DEFECTS_OF_ODD_SERVERS,
    *DEFECTS_OF_REQUESTS,
    *DEFECTS_OF_FLEET,
    *DEFECTS_OF_BURIALS,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page: how soon a defect was found when the row was made, and at which commit that was."""

    wrong: str
    seeds: int
    workload: str
    rule: str
    at: str


@dataclass(frozen=True, slots=True)
class Found:
    """How a defect was found: after how many seeds, and by which rule; or why it could not be looked for."""

    name: str
    seeds: int | None
    """0 for one that its test found."""
    rule: str = ""
    workload: str = ""
    ran: int = 0
    """Seeds that were run."""
    cpu_s: float = 0.0


def hunt(name: str, workload: str, seeds: Sequence[int]) -> Found:
    """Plants one defect in this process, for good, and looks for it in these seeds."""
    began = time.process_time()
    next(mutant for mutant in MUTANTS if mutant.name == name).plant()
    ran = 0
    for outcome in stories((workload or None, seed) for seed in seeds):
        ran += 1
        if outcome.violation:
            if "TypeError" in outcome.violation.seen:
                raise ValueError(f"{name!r} does not fit the product any more: {outcome.violation}")
            cpu_s = time.process_time() - began
            return Found(name, outcome.seed + 1, outcome.violation.rule, workload, ran, cpu_s)
    return Found(name, None, "", workload, ran, time.process_time() - began)


def tested(name: str, test: str) -> Found:
    """Plants one defect in this process, for good, and runs the test that is to find it."""
    began = time.process_time()
    next(mutant for mutant in MUTANTS if mutant.name == name).plant()
    with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: PTH123 - no file
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    code = pytest.main(["-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", test])
    seeds = 0 if code == pytest.ExitCode.TESTS_FAILED else None
    return Found(name, seeds, test, cpu_s=time.process_time() - began)


def retold(name: str) -> Found:
    """Plants one defect in this process, for good, and looks for it in the kept stories."""
    began = time.process_time()
    next(mutant for mutant in MUTANTS if mutant.name == name).plant()
    ran = 0
    for told in retell(kept_runs()):
        ran += 1
        kept = kept_stories(told.workload)[told.seed]
        if (seen := difference(kept, told)) is not None:
            cpu_s = time.process_time() - began
            return Found(name, told.seed + 1, f"story: {seen.who}", told.workload, ran, cpu_s)
    return Found(name, None, "", "", ran, time.process_time() - began)


def _in_stories(mutant: Mutant) -> Hunt:
    found: Found = yield partial(retold, mutant.name)
    return found


def holds(seed: int, workload: str) -> bool:
    """Whether every rule holds under a seed where nothing is planted."""
    return run_batch([seed], workload or None)[0][0].violation is None


Hunt = Generator[Callable[[], Any], Any, Found]
"""The search for one defect: yields what a process of its own is to do, and is sent what came of it."""


def hunted(mutant: Mutant, row: Row | None, most: int | None, *, checks: bool) -> Hunt:
    """Looks for a defect from seed 0 on; `checks`: first under the seed that the page has found it by.

    A seed that breaks a rule by itself says nothing of the defect: it is passed over.
    """
    name, workload = mutant.name, mutant.workload
    if mutant.test:
        by_test: Found = yield partial(tested, name, mutant.test)
        return by_test
    known = row if row is not None and row.workload == workload else None
    limit = most or (max(PATIENCE * known.seeds, FEW_SEEDS) if known is not None else NEW_SEEDS)
    first, ran, cpu_s = 0, 0, 0.0
    if checks and known is not None:
        soon: Found = yield partial(hunt, name, workload, [known.seeds - 1])
        if soon.seeds and (yield partial(holds, known.seeds - 1, workload)):
            return soon
        ran, cpu_s = soon.ran, soon.cpu_s
    while True:
        try:
            found: Found = yield partial(hunt, name, workload, range(first, limit))
        except ValueError as misfit:
            return Found(name, None, str(misfit), workload, ran, cpu_s)
        ran, cpu_s = ran + found.ran, cpu_s + found.cpu_s
        if found.seeds is None or (yield partial(holds, found.seeds - 1, workload)):
            return replace(found, ran=ran, cpu_s=cpu_s)
        first = found.seeds


def together(hunts: Iterable[Hunt], processes: int) -> Iterator[Found]:
    """Runs hunts side by side. A defect stays in its process: each look has a new one, forked from this."""
    context, waiting = get_context("fork"), iter(hunts)
    running: dict[Connection, tuple[Hunt, BaseProcess]] = {}

    def begins(hunting: Hunt, job: Callable[[], Any]) -> None:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_does, args=(job, there))
        process.start()
        there.close()
        running[here] = hunting, process

    for hunting in islice(waiting, processes):
        begins(hunting, next(hunting))
    while running:
        for ready in cast(list[Connection], wait(list(running))):
            hunting, process = running.pop(ready)
            try:
                came = ready.recv()
            except EOFError:
                came = ValueError("a process died before it had told what it found")
            process.join()
            try:
                begins(hunting, hunting.throw(came) if isinstance(came, Exception) else hunting.send(came))
            except StopIteration as over:
                yield cast(Found, over.value)
                for another in islice(waiting, 1):
                    begins(another, next(another))


def _does(job: Callable[[], Any], there: Connection) -> None:
    try:
        there.send(job())
    except Exception as error:
        there.send(ValueError(f"{type(error).__name__}: {error}"))


# ── the page ──────────────────────────────────────────────────────────────────────────────────


def rows(page: str) -> dict[str, Row]:
    """The page's rows, by the names of their defects."""
    told = page.partition(BEGIN)[2].partition(END)[0]
    lines = [line[2:-2].split(" | ") for line in told.splitlines() if line.startswith("| ")][1:]
    found = {}
    for name, wrong, seeds, rule, at in (line for line in lines if line[2] != NOT_YET):
        count, _, workload = seeds.replace(BY_A_TEST, "0").partition(" of ")
        found[name] = Row(wrong, int(count), workload.strip("`"), rule.strip("`"), at.strip("`"))
    return found


def table(known: Mapping[str, Row]) -> str:
    """The page's table: of all defects that were found, in their order."""
    lines = ["| defect | what is wrong | seeds | broken rule | at commit |", "|---|---|---|---|---|"]
    for mutant in MUTANTS:
        if (row := known.get(mutant.name)) is not None:
            seeds = f"{row.seeds} of `{row.workload}`" if row.workload else f"{row.seeds or BY_A_TEST}"
            lines.append(f"| {mutant.name} | {mutant.wrong} | {seeds} | `{row.rule}` | `{row.at}` |")
        else:
            lines.append(f"| {mutant.name} | {mutant.wrong} | {NOT_YET} | | |")
    return "\n".join(lines)


def _write(found: Sequence[Found]) -> None:
    page, at = PAGE.read_text(encoding="utf-8"), commit()
    known, wrong = rows(page), {mutant.name: mutant.wrong for mutant in MUTANTS}
    known |= {
        one.name: Row(wrong[one.name], one.seeds, one.workload, one.rule, at)
        for one in found
        if one.seeds is not None
    }
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(known)}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Exit code 1 if a defect was not found within its seeds."""
    given = _arguments()
    chosen = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    if unknown := {*given.names} - {mutant.name for mutant in chosen}:
        print(f"no such defect: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    known = rows(PAGE.read_text(encoding="utf-8"))
    # The long ones first: else they end behind all others, one core each.
    lengths = {
        mutant.name: known[mutant.name].seeds if mutant.name in known else NEW_SEEDS for mutant in chosen
    }
    ordered = sorted(chosen, key=lambda mutant: -lengths[mutant.name])
    found: list[Found] = []
    began = time.monotonic()
    if given.stories:
        return _tell_stories(ordered, given.processes)
    hunts = (hunted(one, known.get(one.name), given.seeds, checks=given.check) for one in ordered)
    for one in together(hunts, given.processes):
        found.append(one)
        told = "NOT FOUND" if one.seeds is None else one.seeds or BY_A_TEST
        print(f"{one.name}: {told} {one.rule} ({one.cpu_s:.1f} s)", flush=True)
    seeds, cpu_s = sum(one.ran for one in found), sum(one.cpu_s for one in found)
    print(f"{len(found)} defects, {seeds:,} seeds: {cpu_s:.0f} s of processor time, ", end="")
    print(f"{time.monotonic() - began:.0f} s by the clock")
    if not given.check:
        _write(found)
    lost = [one for one in found if one.seeds is None]
    for one in lost:
        print(f"not found within its seeds: {one.name} {one.rule}".rstrip())
    return 1 if lost else 0


def _tell_stories(mutants: Sequence[Mutant], processes: int) -> int:
    """Tells what the kept stories find alone: of defects that seeds find, and of those that a test does."""
    by_seeds, by_test = Counter[bool](), Counter[bool]()
    of_test = {mutant.name for mutant in mutants if mutant.test}
    for one in together((_in_stories(mutant) for mutant in mutants), processes):
        told = f"{one.rule} of `{one.workload}`, seed {(one.seeds or 0) - 1}" if one.seeds else "NOT FOUND"
        print(f"{one.name}: {told} ({one.ran} stories, {one.cpu_s:.1f} s)", flush=True)
        (by_test if one.name in of_test else by_seeds)[one.seeds is not None] += 1
    print(f"of {by_seeds.total()} that seeds find, stories find {by_seeds[True]}")
    print(f"of {by_test.total()} that a test finds, stories find {by_test[True]}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sim.mutants", description="Plants defects, looks for them and writes their rows."
    )
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, help="give up after so many; else by the page's counts")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--stories", action="store_true", help="what the kept stories find alone, and leave the page as it is"
    )
    parser.add_argument(
        "--check", action="store_true", help="begin with the seeds of the page, and leave the page as it is"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
