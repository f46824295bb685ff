"""Costs of tests: long tests begin first, and a run names the files that grew most.

Long tests take turns: a commit runs one in `TURNS` of them, by its number, and the night runs all. No commit
leaves out all of a file whose shortest test is below `ALONE_S`, a test that is marked `always`, or what is
about the whole repository (files directly in `tests`).

The cost is CPU seconds, with those of the processes that a test waited for: they depend less on what else a
machine does than its clock. `costs.json` holds what files and tests cost when it was written last
(`make costs`), and the turn of each long test, which stays the same; an old table does no harm.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tests.commit_seed import NIGHT, commit_number, name_of_commit

_T = TypeVar("_T")
TABLE = Path(__file__).with_name("costs.json")
WRITE = "DENDRO_WRITE_COSTS"
"""Set, the table is written anew at the end of the run."""
LONG_S, LONG_CPU_S = 1.0, 0.3
"""Seconds on the clock, or of the processor, from which a test is long."""
KEPT_S, GREW_S = 0.5, 2.0
"""CPU seconds from which a file is kept, and is said to have grown."""
ALONE_S = 10.0
"""Seconds from which a test takes turns although nothing else of its file runs."""
WHOLE = 400
"""Files from which a run is one of the whole suite."""
NAMED, TURNS = 10, 6
"""How many files that grew are named; a long test runs with one commit in as many, and each night."""
TOGETHER = ("tests/window/browser/",)
"""Folders of which one process runs all tests: they share a browser and a deployment."""
LEFT = {
    "night": "`make nightly` (long tests that this commit does not draw, further servers and conversations)",
    "slice": "`make slices` (slices of the simulator, of crashes and of mutations)",
}


class Costs:
    """Counts in each process that runs tests; the one that a person started sums up."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        self._turns: list[dict[str, float]] = table.get("turns", [])
        self._long = {name: took for turn in self._turns for name, took in turn.items()}
        self._files: dict[str, float] = table.get("files", {})
        self._spent: dict[str, float] = defaultdict(float)
        self._waited: dict[str, float] = defaultdict(float)
        self._used: dict[str, float] = defaultdict(float)
        self._left: Counter[str] = Counter()
        self._stale: set[str] = set()
        """Names in the table that no test has any more: under another name it runs with each commit."""
        self._mark = _used()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        self._stale = no_tests(self._long, [item.nodeid for item in items])
        if not NIGHT and WRITE not in os.environ:
            for item in left_by(items, self._turns, commit_number()):
                item.add_marker(pytest.mark.night)
        yield
        costs = [self._long.get(item.nodeid, 0.0) for item in items]
        items[:] = longest_first(items, costs, [_group(item.nodeid) for item in items], self._workers)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._left.update(
            next((name for name in LEFT if item.get_closest_marker(name)), "") for item in items
        )

    def pytest_collection_finish(self) -> None:
        self._mark = _used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Any:
        report = yield
        now = _used()
        report.cost = (now - self._mark, call.duration)
        self._mark = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent, waited = cast("tuple[float, float]", getattr(report, "cost", (0.0, 0.0)))
        self._spent[_file(report.nodeid)] += spent
        self._used[report.nodeid] += spent
        self._waited[report.nodeid] += waited

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # Each process deselects the same.
        output = getattr(node, "workeroutput", {})
        self._left |= Counter(output.get("left", {}))
        self._stale |= set(output.get("stale", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left"], output["stale"] = dict(self._left), sorted(self._stale)
        elif WRITE in os.environ:
            files = {name: round(cost, 1) for name, cost in self._spent.items() if cost >= KEPT_S}
            # Another commit draws other servers: tests of those keep their turns.
            others = self._long.keys() - self._waited.keys() - self._stale
            tests = {name: self._long[name] for name in others}
            tests |= {name: round(took, 1) for name, took in self._waited.items() if self._is_long(name)}
            table = {"files": files, "turns": in_turns(tests, self._turns)}
            TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")

    def _is_long(self, name: str) -> bool:
        return self._waited[name] >= LONG_S or self._used[name] >= LONG_CPU_S

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name, where in LEFT.items():
            if self._left[name]:
                terminalreporter.write_line(f"{self._left[name]} tests are left for {where}")
        if self._left["night"] and self._turns:
            number = commit_number()
            counts = [len(self._turns[(number - back) % TURNS]) for back in range(TURNS)]
            others = [f"{counts[back]} with {name_of_commit(back)}" for back in range(1, TURNS)]
            terminalreporter.write_line(
                f"long tests take turns: {counts[0]} with this commit, before it {', '.join(others)}"
            )
        if self._stale:
            terminalreporter.write_line(
                f"{len(self._stale)} names in tests/costs.json are no tests any more, such as "
                f"{min(self._stale)}: `make costs` writes it anew"
            )
        grew = grown(self._spent, self._files)
        if grew and len(self._spent) > NAMED:
            terminalreporter.write_line("files that cost more CPU seconds than tests/costs.json says:")
            for name, before, now in grew:
                terminalreporter.write_line(f"  {now:6.1f} instead of {before:6.1f}  {name}")


def left_by(
    items: Sequence[pytest.Item], turns: Sequence[Mapping[str, float]], number: int
) -> list[pytest.Item]:
    """The long tests that the commit with this number leaves for others and for the night."""
    here = {name for turn, tests in enumerate(turns) if turn != number % len(turns) for name in tests}
    took = {name: seconds for tests in turns for name, seconds in tests.items()}
    files: dict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("night"):
            files[_file(item.nodeid), item.get_closest_marker("slice") is not None].append(item)
    left: list[pytest.Item] = []
    for (file, _), tests in files.items():
        if file.count("/") == 1:
            continue
        late = [it for it in tests if it.nodeid in here and not it.get_closest_marker("always")]
        shortest = min(tests, key=lambda it: took.get(it.nodeid, 0.0))
        if len(late) == len(tests) and took[shortest.nodeid] < ALONE_S:
            late.remove(shortest)
        left += late
    return left


def no_tests(names: Iterable[str], there: Sequence[str]) -> set[str]:
    """Those of the names that no test has; none where a person has named files or tests."""
    files = {_file(name) for name in there}
    return {*names} - {*there} if len(files) >= WHOLE else set()


def in_turns(tests: Mapping[str, float], before: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The turns of long tests: those of before, and for others the one that has fewest of their file."""
    turns: list[dict[str, float]] = [{} for _ in range(TURNS)]
    known = {name: turn for turn, names in enumerate(before[:TURNS]) for name in names}
    for name in sorted(tests, key=lambda name: (name not in known, -tests[name], name)):
        turn = known.get(name)
        if turn is None:
            of_file = [sum(_file(other) == _file(name) for other in it) for it in turns]
            turn = min(range(TURNS), key=lambda at: (of_file[at], sum(turns[at].values())))
        turns[turn][name] = tests[name]
    return turns


def longest_first(
    items: Sequence[_T], costs: Sequence[float], groups: Sequence[str], workers: int
) -> list[_T]:
    """The items, so that each of as many workers begins with groups that have long ones; the others keep
    their order.

    A group stays together, long ones first: what its tests share is made once, and not by each worker.
    `worksteal` gives each worker a part of the list that hangs together, and later what others have left.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        members[group].append(at)
    took = {group: sum(costs[at] for at in ats) for group, ats in members.items()}
    sizes = [(len(items) + worker) // workers for worker in range(workers)]
    parts: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for group in sorted(members, key=lambda group: -took[group]):
        if not took[group]:
            break
        ats = sorted(members.pop(group), key=lambda at: -costs[at])
        room = [at for at in range(workers) if len(parts[at]) + len(ats) <= sizes[at]] or list(range(workers))
        least = min(room, key=lambda at: (loads[at], len(parts[at])))
        parts[least] += ats
        loads[least] += took[group]
    rest = [at for at in range(len(items)) if groups[at] in members]
    order: list[int] = []
    for part, size in zip(parts, sizes, strict=True):
        more = max(size - len(part), 0)
        order += part + rest[:more]
        rest = rest[more:]
    return [items[at] for at in order]


def grown(now: Mapping[str, float], before: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """The files that cost more than the table says, those that grew most first."""
    found = [(name, before.get(name, 0.0), cost) for name, cost in now.items()]
    found = [(name, was, cost) for name, was, cost in found if cost - was > GREW_S]
    return sorted(found, key=lambda it: it[1] - it[2])[:NAMED]


def _group(name: str) -> str:
    """Tests that share something costly: those of a file, and of all files that one browser runs."""
    return next((folder for folder in TOGETHER if name.startswith(folder)), _file(name))


def _file(name: str) -> str:
    return name.partition("::")[0]


def _used() -> float:
    own, waited = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + waited.ru_utime + waited.ru_stime
