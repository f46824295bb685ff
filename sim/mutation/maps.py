"""Which seeds of the simulator, and which tests, come to which lines: a change is looked for where it
runs.

A map is made once (`python -m sim.mutation --map`): of seeds and kept runs with marks
(`sim/mutation/marks.py`), of tests with `coverage`, a context for each; of scripts by their names. It stays
useful when a file has changed: a line is looked up by where it was in the text that the map was made of, and
one that was not there by the lines around it. A line that runs
when a module is imported has no context, and all of them.

`python -m sim.mutation.maps OUT FIRST STEP` makes a share of the simulator's map, in a process of its own.
"""

from __future__ import annotations

import ast
import difflib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from sim.mutation.change import ROOT, Change
from sim.mutation.marks import Marks

PRODUCT = ("orchestrator",)
MIXED, OF_EACH = 500, 25
"""Seeds of all workloads, and of each workload alone."""


def seed_name(workload: str, seed: int) -> str:
    return f"{workload}:{seed}"


class Measuring:
    """Coverage of the product, from now on, under one context after the other."""

    def __init__(self, out: Path, *, branches: bool = False) -> None:
        import coverage

        self._out = out
        self._data = out.with_suffix(".coverage")
        self._data.unlink(missing_ok=True)
        self._coverage = coverage.Coverage(
            data_file=str(self._data), source_pkgs=list(PRODUCT), config_file=False, branch=branches
        )
        self.scripts: dict[str, set[str]] = defaultdict(set)
        self.took_s: dict[str, float] = {}
        self.failed: list[str] = []
        self._context = ""
        # As they are now: what runs is what is imported from here on.
        files = (file for name in PRODUCT for file in (ROOT / name.replace(".", "/")).rglob("*.py"))
        self._texts = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}

    def start(self) -> None:
        self._coverage.start()

    def context(self, name: str) -> None:
        self._context = name
        self._coverage.switch_context(name)

    def note_scripts(self) -> None:
        """Of scripts there are no lines: every run of one is noted."""
        from orchestrator.broker.connection import Connection, ScriptCall

        run, run_all = Connection.run, Connection.run_all

        async def noted(wire: Connection, call: ScriptCall) -> list[Any]:
            self.scripts[call.script.name].add(self._context)
            return await run(wire, call)

        async def all_noted(wire: Connection, calls: Sequence[ScriptCall]) -> list[list[Any]]:
            for call in calls:
                self.scripts[call.script.name].add(self._context)
            return await run_all(wire, calls)

        vars_of: Any = Connection
        vars_of.run, vars_of.run_all = noted, all_noted

    def save(self) -> None:
        import coverage

        self._coverage.stop()
        self._coverage.save()
        data = coverage.CoverageData(basename=str(self._data))
        data.read()
        paths = [Path(file).relative_to(ROOT).as_posix() for file in data.measured_files()]
        scripts = {script: sorted(names) for script, names in self.scripts.items()}
        told = {
            "texts": {path: self._texts[path] for path in paths},
            "scripts": scripts,
            "took_s": self.took_s,
            "failed": self.failed,
        }
        self._out.write_text(json.dumps(told), encoding="utf-8")


class Share:
    """A part of the map, as one process made it."""

    def __init__(self, file: Path) -> None:
        self._data = file.with_suffix(".coverage")
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._lock = Lock()
        told = json.loads(file.read_text(encoding="utf-8"))
        self.texts: dict[str, str] = told["texts"]
        """Of each file that was imported, as it was then."""
        self.scripts: dict[str, list[str]] = told["scripts"]
        self.took_s: dict[str, float] = told["took_s"]
        self.failed: list[str] = told["failed"]
        self._contexts: list[str] = told.get("contexts", [])
        self._marked: dict[str, dict[str, str]] | None = told.get("lines")
        """Of a share that marks made: by file and line, a bit for each context."""

    def lines(self, path: str) -> dict[int, list[str]]:
        """Seeds or tests by line, read when the file is first asked for: of all files they are gigabytes."""
        import coverage

        if self._marked is not None:
            return {int(line): self._named(bits) for line, bits in self._marked.get(path, {}).items()}
        with self._lock:
            if path not in self._lines:
                data = coverage.CoverageData(basename=str(self._data))
                data.read()
                by_line = data.contexts_by_lineno(str(ROOT / path))
                self._lines[path] = {line: [one for one in names if one] for line, names in by_line.items()}
                data.close()
            return self._lines[path]

    def _named(self, bits: str) -> list[str]:
        row = int(bits, 16)
        return [name for at, name in enumerate(self._contexts) if row >> at & 1]


@dataclass(frozen=True)
class Map:
    """The map, of all shares."""

    shares: Sequence[Share]

    @classmethod
    def read(cls, files: Iterable[Path]) -> Map:
        return cls([Share(file) for file in sorted(files)])

    @cached_property
    def took_s(self) -> dict[str, float]:
        return {name: took_s for share in self.shares for name, took_s in share.took_s.items()}

    @cached_property
    def _failed(self) -> frozenset[str]:
        return frozenset(name for share in self.shares for name in share.failed)

    @cached_property
    def all(self) -> list[str]:
        """Each seed or test that did not fail, in the order in which they were measured."""
        return [name for name in self.took_s if name not in self._failed]

    def of(self, change: Change) -> list[str]:
        """The contexts that come to the change, in the order in which they were measured."""
        if change.script:
            found = self._of_script(change)
        elif _at_import(change):
            return self.all
        else:
            found = self._of_lines(change)
        return [name for name in self.all if name in found]

    def _of_script(self, change: Change) -> set[str]:
        folder = (ROOT / change.path).parent
        names = {change.script}
        if change.script.startswith("_"):
            part = change.script.removeprefix("_")
            names = {file.stem for file in folder.glob("*.lua") if part in parts_of(file)}
        return {context for share in self.shares for name in names for context in share.scripts.get(name, ())}

    def _of_lines(self, change: Change) -> set[str]:
        text = (ROOT / change.path).read_text(encoding="utf-8")
        ends = text.count("\n", 0, change.end) + 1
        found, imported, body = set[str](), False, _body(text, change.line)
        # A share that never imported a file has no lines of it, and nobody who came to it.
        for share in (share for share in self.shares if change.path in share.texts):
            lines, was = share.lines(change.path), _were(share.texts[change.path], text)
            if change.line not in was:
                # New since the map was made: who comes to it is not known.
                found |= set(share.took_s)
                continue
            for line in range(change.line, ends + 1):
                near = _near(lines, was, line)
                imported = imported or (near == [] and not body)
                found |= set(near or ())
        # It runs when a module is imported, and at no other time.
        return set(self.all) if imported and not found else found


def parts_of(script: Path) -> set[str]:
    """The parts that a script is made of: those before its own text, and those behind it."""
    heads = [line.split() for line in script.read_text(encoding="utf-8").splitlines()]
    return {part for words in heads if words[:2] in (["--", "uses:"], ["--", "then:"]) for part in words[2:]}


def _at_import(change: Change) -> bool:
    """Whether the change is on a module's or a class's own level, or in a function's defaults."""
    return not change.function or change.function.split(".")[-1][:1].isupper()


def _body(text: str, line: int) -> bool:
    """Whether a line is in the body of a function: an import runs the line of its name, and its defaults."""
    return any(
        node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


_WERE: dict[tuple[int, int], dict[int, int]] = {}


def _were(old: str, new: str) -> dict[int, int]:
    """Where each line stood in the old text, of those that it has."""
    known = _WERE.get((hash(old), hash(new)))
    if known is None:
        before, after = old.splitlines(), new.splitlines()
        known = {}
        for block in difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
            known |= {block.b + at + 1: block.a + at + 1 for at in range(block.size)}
        _WERE[hash(old), hash(new)] = known
    return known


def _near(lines: dict[int, list[str]], was: dict[int, int], line: int) -> list[str] | None:
    """Seeds or tests that came to a line; for a new line, or no line of its own, to the last line before.

    None if nobody did, and nothing if an import alone did.
    """
    for at in range(line, max(line - 40, 0), -1):
        if at in was and was[at] in lines:
            return lines[was[at]]
    return None


# ── the simulator's share ─────────────────────────────────────────────────────────────────────


def _plan() -> list[tuple[str, int]]:
    from sim.workloads import WORKLOADS

    names = list(WORKLOADS)
    plan = [("", seed) for seed in range(MIXED)]
    # Turned by one from seed to seed, so that a share of every second has its part of each.
    return plan + [
        (names[(at + seed) % len(names)], seed) for seed in range(OF_EACH) for at in range(len(names))
    ]


def main() -> int:
    """Measures every `step`-th seed of the plan from the `first` on."""
    out, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    measuring = Marks(out)
    measuring.start()
    from sim.campaign import stories

    plan = _plan()[first::step]
    measuring.note_scripts()
    told = stories((workload or None, seed) for workload, seed in plan)
    for workload, seed in plan:
        name = seed_name(workload, seed)
        measuring.context(name)
        began = time.process_time()
        outcome = next(told)
        measuring.pause()
        measuring.took_s[name] = time.process_time() - began
        if outcome.violation is not None:
            measuring.failed.append(name)
    measuring.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
