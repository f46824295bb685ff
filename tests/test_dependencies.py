"""What is imported is declared: a package that another one brings today may be gone tomorrow."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = frozenset({"orchestrator", "workers"})
TYPES_ONLY = frozenset({"_typeshed"})
"""Modules that type checkers alone know."""


def _declared() -> set[str]:
    """The distributions that users get, with those of extras, by their normalized names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for more in project["optional-dependencies"].values() for line in more),
    ]
    found = set()
    for line in lines:
        name, extras = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?", line).groups()  # type: ignore[union-attr]
        # `redis[hiredis]`: an extra that bears the name of what it brings.
        found.update({_normal(name), *(map(_normal, extras.split(",")) if extras else ())})
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(code: str) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    return found - OWN - TYPES_ONLY - sys.stdlib_module_names


def test_every_imported_package_is_declared() -> None:
    places, declared = packages_distributions(), _declared()
    files = [*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("workers/**/*.py")]
    imported = {module: file for file in files for module in _imported(file.read_text())}
    lacking = {
        module: str(file.relative_to(ROOT))
        for module, file in imported.items()
        if declared.isdisjoint(map(_normal, places.get(module, [module])))
    }
    assert lacking == {}
    assert {"httpx2", "yaml", "jwt"} <= set(imported)
