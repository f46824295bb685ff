"""Marks in the product's code: which runs come to which statements, for little of their time.

A process that calls `start` before it imports the product has a mark before each statement of each function:
one store into a row of bytes. A tracer of lines costs several times as much, and does the same for whole
test suites, whose processes import the product before anybody can mark it.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from sim.mutation.change import ROOT

PACKAGE = "orchestrator"
_NAME = "__marks__"
_BLOCKS = ("body", "orelse", "finalbody")


class Marks:
    """The marks of this process, and by which context each was passed."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._row = bytearray()
        self._places: list[tuple[str, int]] = []
        """Of each mark, its file and line."""
        self.texts: dict[str, str] = {}
        self._passed: dict[int, int] = defaultdict(int)
        """Of each mark, a bit for each context."""
        self._contexts: list[str] = []
        self._counts = False
        self.scripts: dict[str, set[str]] = defaultdict(set)
        self.took_s: dict[str, float] = {}
        self.failed: list[str] = []

    def start(self) -> None:
        """Marks whatever of the product is imported from here on."""
        assert PACKAGE not in sys.modules, "the product was imported already"
        setattr(builtins, _NAME, self._row)
        sys.meta_path.insert(0, _Finder(self))

    def context(self, name: str) -> None:
        """Counts for `name` all that is passed from here on."""
        self.pause()
        self._contexts.append(name)
        self._counts = True

    def pause(self) -> None:
        """Notes what was passed; what follows counts for nothing, up to the next context."""
        bit, at = 1 << max(len(self._contexts) - 1, 0), self._row.find(1)
        while at >= 0 and self._counts:
            self._passed[at] |= bit
            at = self._row.find(1, at + 1)
        self._row[:] = bytes(len(self._places))
        self._counts = False

    def marked(self, source: str, path: str) -> ast.Module:
        """The module with its marks."""
        self.texts[path] = source
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._mark(node.body, path, first=_is_text(node.body[0]))
        self._row.extend(bytes(len(self._places) - len(self._row)))
        return ast.fix_missing_locations(tree)

    def _mark(self, block: list[ast.stmt], path: str, *, first: bool = False) -> None:
        """Puts a mark before each statement, but for definitions, whose bodies have their own."""
        marked: list[ast.stmt] = [block.pop(0)] if first else []
        for statement in block:
            marked += [self._new(path, statement), statement]
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for name in _BLOCKS:
                if inner := getattr(statement, name, None):
                    self._mark(inner, path)
            for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                self._mark(part.body, path)
        block[:] = marked

    def _new(self, path: str, statement: ast.stmt) -> ast.stmt:
        self._places.append((path, statement.lineno))
        mark = ast.parse(f"{_NAME}[{len(self._places) - 1}] = 1").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, statement)
        return mark

    def note_scripts(self) -> None:
        """Of scripts there are no lines: every run of one is noted."""
        from orchestrator.broker.connection import Connection, ScriptCall

        run, run_all = Connection.run, Connection.run_all

        async def noted(wire: Connection, call: ScriptCall) -> list[Any]:
            self._ran(call)
            return await run(wire, call)

        async def all_noted(wire: Connection, calls: Sequence[ScriptCall]) -> list[list[Any]]:
            for call in calls:
                self._ran(call)
            return await run_all(wire, calls)

        vars_of: Any = Connection
        vars_of.run, vars_of.run_all = noted, all_noted

    def _ran(self, call: Any) -> None:
        if self._counts:
            self.scripts[call.script.name].add(self._contexts[-1])

    def save(self) -> None:
        """Writes a share of a map (`sim/mutation/maps.py`)."""
        self.pause()
        lines: dict[str, dict[int, int]] = {}
        for at, (path, line) in enumerate(self._places):
            of_file = lines.setdefault(path, {})
            of_file[line] = of_file.get(line, 0) | self._passed.get(at, 0)
        told = {
            "texts": self.texts,
            "contexts": self._contexts,
            "lines": {
                path: {line: f"{bits:x}" for line, bits in sorted(some.items())}
                for path, some in lines.items()
            },
            "scripts": {script: sorted(names) for script, names in self.scripts.items()},
            "took_s": self.took_s,
            "failed": self.failed,
        }
        self._out.write_text(json.dumps(told), encoding="utf-8")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, marks: Marks) -> None:
        super().__init__(name, path)
        self._marks = marks

    def get_code(self, fullname: str) -> CodeType | None:
        path = Path(self.path)
        source = path.read_text(encoding="utf-8")
        tree = self._marks.marked(source, path.relative_to(ROOT).as_posix())
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader) and spec.origin:
            spec.loader = _Loader(fullname, spec.origin, self._marks)
        return spec
