"""Plants a change and finds its verdict: by seeds of the simulator that come to it, then by tests
that do.

Each runs in a process of its own, at a low priority, and ends within its time: what never ends is found. A
seed or a test that fails without the change as well says nothing of it, and is passed over.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from sim.mutation import overlay
from sim.mutation.change import ROOT, Change
from sim.mutation.maps import Map
from sim.mutation.verdicts import Verdict
from sim.stories.digests import kept_digests
from sim.stories.kept import kept_runs

Seed = tuple[str, int]
BESIDE = {
    "broker": ("broker", "tree", "workers"),
    "core": ("core", "tree"),
    "folders": ("folders", "workspaces"),
    "gateways": ("gateways", "doors", "api"),
    "runtime": ("runtime", "tree", "workers"),
    "sandbox": ("sandbox", "tools"),
    "terminal": ("cli",),
    "tools": ("tools", "sandbox"),
    "views": ("views", "cli"),
    "workspaces": ("workspaces", "folders"),
}
"""Folders of tests whose processes run a package of the product; of others the one of its name."""
CROWDED = 20.0
"""How much longer by the clock than by the processor's time, where others work on the machine."""
NO_SUCH_TEST = 4
"""pytest's exit code for names that it does not find: the map was made before they went."""
_GONE = re.compile(r"^ERROR: not found: (\S+)", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\n]*?)?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a change is looked for."""

    seeds: int = 300
    tests_s: float = 120.0
    """Of tests' own time, as it was measured; the shortest first."""
    stories: int = 60
    """Of the kept ones that come to the change; 0: none."""
    slowness: float = 6.0
    """How much longer than measured anything may take before it counts as never ending."""


class Trials:
    """Tries changes; may be called from several threads."""

    def __init__(self, seeds: Map, tests: Map, bounds: Bounds, stories: Map | None = None) -> None:
        self._seeds, self._tests, self._bounds = seeds, tests, bounds
        self._stories = stories
        self._holds: dict[str, bool] = {}
        self._lock = Lock()

    def run(self, change: Change, before: Verdict | None = None) -> Verdict:
        """The verdict; what found the change before is tried first."""
        began = time.monotonic()
        story, runs = self._retold(change)
        verdict = self._hunted(change, before)
        if verdict is None and story:
            verdict = Verdict(change.id, "stories", story, seeds=len(self._planned(change)))
        verdict = verdict or self._tested(change, before)
        if not verdict.by:
            seeds, tests = self._planned(change), self._chosen(change)
            verdict = Verdict(change.id, "", seeds=len(seeds), tests=len(tests))
        took_s = round(time.monotonic() - began, 1)
        reached = bool(self._planned(change))
        return replace(verdict, took_s=took_s, reached=reached, story=story, storied=bool(runs))

    # ── kept stories ──────────────────────────────────────────────────────────────────────────

    def _retold(self, change: Change) -> tuple[str, list[Seed]]:
        """The first kept story or digest that is another one with the change; the runs that come there."""
        if not self._bounds.stories:
            return "", []
        runs = list[Seed](dict.fromkeys((*kept_runs(), *kept_digests())))
        if self._stories is not None and self._stories.all:
            there, took_s = set(self._stories.of(change)), self._stories.took_s
            runs = [run for run in runs if f"{run[0]}:{run[1]}" in there]
            runs = _one_of_each(sorted(runs, key=lambda run: took_s[f"{run[0]}:{run[1]}"]))
        some = runs[: self._bounds.stories]
        told = hunt(change, some, 60.0 + len(some) * 0.5 * self._bounds.slowness, stories=True)
        if not (some and told["rule"]):
            return "", runs
        who = told.get("who") or told["rule"]
        return f"{who} in {told.get('workload', '')}:{told.get('seed', -1)}", runs

    # ── the simulator ─────────────────────────────────────────────────────────────────────────

    def _planned(self, change: Change) -> list[Seed]:
        names = [name.rpartition(":") for name in self._seeds.of(change)]
        found = [(workload, int(seed)) for workload, _, seed in names]
        # Half of the mix and half of each workload alone, where there are enough of both.
        mixed, alone = [one for one in found if not one[0]], [one for one in found if one[0]]
        half = self._bounds.seeds // 2
        most_alone = max(half, self._bounds.seeds - len(mixed))
        return [*mixed[: max(half, self._bounds.seeds - len(alone))], *alone[:most_alone]][
            : self._bounds.seeds
        ]

    def _hunted(self, change: Change, before: Verdict | None) -> Verdict | None:
        plan = self._planned(change)
        if before is not None and before.by == "simulator" and (before.workload, before.seed) in plan:
            first = before.workload, before.seed
            plan = [first, *(seed for seed in plan if seed != first)]
        done = 0
        while plan:
            told = hunt(change, plan, 60.0 + len(plan) * 0.3 * self._bounds.slowness)
            done += told["run"]
            if not told["rule"]:
                return None
            workload, seed = told.get("workload", ""), told.get("seed", -1)
            if seed < 0 or self._seed_holds(workload, seed):
                return Verdict(
                    change.id, "simulator", told["rule"], told.get("seen", ""), workload, seed, done
                )
            plan = plan[plan.index((workload, seed)) + 1 :]
        return None

    def _seed_holds(self, workload: str, seed: int) -> bool:
        name = f"{workload}:{seed}"
        with self._lock:
            if name not in self._holds:
                self._holds[name] = not hunt(None, [(workload, seed)], 120.0)["rule"]
            return self._holds[name]

    # ── tests ─────────────────────────────────────────────────────────────────────────────────

    def _chosen(self, change: Change) -> list[str]:
        """First the tests whose file imports the changed one: all come to a constant, and few are of it.

        Last those beside the package that are not seen to come there: what they start may.
        """
        took_s, left_s = self._tests.took_s, self._bounds.tests_s
        chosen = []
        come = set(self._tests.of(change))
        beside = [name for name in self._tests.all if name.startswith(_beside(change)) and name not in come]
        for name in sorted(
            (*come, *beside), key=lambda name: (name not in come, not _imports(name, change), took_s[name])
        ):
            left_s -= took_s[name]
            if left_s < 0:
                break
            chosen.append(name)
        return chosen

    def _tested(self, change: Change, before: Verdict | None) -> Verdict:
        names = self._chosen(change)
        if before is not None and before.by == "tests" and before.what in names:
            names = [before.what, *(name for name in names if name != before.what)]
        for at in range(len(names) + 1):
            if not names[at:]:
                break
            expected_s = sum(self._tests.took_s[name] for name in names)
            failed = failing_test(change, names, 60.0 + expected_s * self._bounds.slowness)
            if failed is None:
                break
            if failed not in names or self._test_holds(failed):
                return Verdict(change.id, "tests", failed, tests=len(names))
            names.remove(failed)
        return Verdict(change.id, "")

    def _test_holds(self, name: str) -> bool:
        return failing_test(None, [name], 120.0) is None


def _one_of_each(runs: Sequence[Seed]) -> list[Seed]:
    """The first run of each workload, then the second of each, and so on."""
    seen = Counter[str]()
    placed = []
    for run in runs:
        placed.append((seen[run[0]], run))
        seen[run[0]] += 1
    return [run for _, run in sorted(placed, key=lambda one: one[0])]


def _imports(test: str, change: Change) -> bool:
    """Whether the test's own file names the changed module."""
    return bool(change.module) and change.module in _text_of(test.partition("::")[0])


def _beside(change: Change) -> tuple[str, ...]:
    """Folders of the tests of the change's package."""
    package = change.path.split("/")[1]
    return tuple(f"tests/{folder}/" for folder in BESIDE.get(package, (package,)))


@cache
def _text_of(file: str) -> str:
    return Path(ROOT, file).read_text(encoding="utf-8")


def _nice() -> None:
    os.nice(5)


def hunt(
    change: Change | None, plan: Sequence[Seed], within_s: float, *, stories: bool = False
) -> dict[str, Any]:
    """Runs seeds, or compares kept stories, until one shows the change."""
    asked: dict[str, Any] = {"stories": stories}
    asked |= {"module": "", "script": "", "source": "", "plan": list(plan), "cpu_s": within_s}
    if change is not None:
        asked |= {"module": change.module, "script": change.script, "source": change.text()}
    words = [sys.executable, "-m", "sim.mutation.hunt"]
    try:
        done = subprocess.run(
            words,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=within_s * CROWDED,
            preexec_fn=_nice,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"rule": "timeout", "seen": f"no end within {within_s * CROWDED:.0f} s", "run": 0}
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"rule": "timeout", "seen": f"no end within {within_s:.0f} s of processor time", "run": 0}
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"rule": "raises", "seen": f"exit code {done.returncode}: {done.stderr[-200:]}", "run": 0}
    return told


def failing_test(change: Change | None, names: Sequence[str], within_s: float) -> str | None:
    """The first of some tests that fails; None if all pass. A process that a signal ended is tried again."""
    found = _failing(change, names, within_s)
    return _failing(change, names, within_s) if found is not None and found.startswith("signal ") else found


def _failing(change: Change | None, names: Sequence[str], within_s: float) -> str | None:
    with TemporaryDirectory(prefix="mutation-") as folder:
        Path(folder, "names").write_text("\n".join(names), encoding="utf-8")
        environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        if change is not None:
            overlay.written(Path(folder), change.module, change.script, change.text())
            environment["PYTHONPATH"] = f"{folder}:{ROOT}"
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:randomly"]
        words += ["-p", "no:cacheprovider", "--tb=no", "-rfE", f"@{folder}/names"]
        done = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_nice,
        )
        try:
            told, _ = done.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, 9)
            done.communicate()
            return f"timeout: no end within {within_s:.0f} s"
    if done.returncode == 0:
        return None
    if done.returncode == NO_SUCH_TEST:
        there = _still_there(names, told)
        return _failing(change, there, within_s) if 0 < len(there) < len(names) else None
    if done.returncode < 0:
        return f"signal {-done.returncode}: {told[-200:]}"
    failed = _FAILED.search(told)
    return failed.group(1).strip() if failed else f"exit code {done.returncode}: {told[-200:]}"


def _still_there(names: Sequence[str], told: str) -> list[str]:
    """The tests but for those that pytest has not found."""
    gone = {found.removeprefix(f"{ROOT}/") for found in _GONE.findall(told)}
    return [name for name in names if name not in gone and name.partition("[")[0] not in gone]
