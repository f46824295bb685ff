"""The core is read from below: few files stand on one another."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import orchestrator.core as core

ROOT = Path(core.__file__).parent
MOST_FLOORS, MOST_LINES = 14, 900


def _module(path: Path) -> str:
    name = ".".join(("orchestrator.core", *path.relative_to(ROOT).with_suffix("").parts))
    return name.removesuffix(".__init__")


FILES = {_module(path): path for path in ROOT.rglob("*.py")}


@cache
def _floor(module: str) -> int:
    """1 for a file that imports no other of the core; a circle would never end."""
    below = set[str]()
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            named = {f"{node.module}.{name.name}" for name in node.names}
            below |= (
                (named | {node.module}) & FILES.keys() if not named & FILES.keys() else named & FILES.keys()
            )
    return 1 + max((_floor(other) for other in below - {module}), default=0)


def test_longest_chain_of_imports_within_the_core_has_at_most_14_files() -> None:
    floors = {module: _floor(module) for module in FILES}
    assert {module for module, floor in floors.items() if floor > MOST_FLOORS} == set()
    assert floors["orchestrator.core.frozen"] == 1
    assert floors["orchestrator.core.decide"] == MOST_FLOORS


def test_each_file_of_the_core_has_at_most_900_lines() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in FILES.items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES} == {}
