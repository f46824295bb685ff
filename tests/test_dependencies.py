"""Each imported package is declared: a package that another one brings today may be gone tomorrow."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from sim.mutation.python_operators import statements

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
    for node in statements(ast.parse(code)):
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


def _locked(name: str) -> dict[str, str]:
    """The lines of a lock file, each by the name of its package."""
    lines = (ROOT / name).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    return {_normal(pin.partition("==")[0]): pin for pin in pins}


def _here(lock: dict[str, str]) -> set[str]:
    """The packages of a lock file for this Python, on this machine."""
    markers = {name: Requirement(pin).marker for name, pin in lock.items()}
    return {name for name, marker in markers.items() if marker is None or marker.evaluate()}


def _needed(line: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """A package, and all that it needs here, by the declarations of what is installed."""
    wanted = Requirement(line)
    for extra in ("", *wanted.extras):
        key = (_normal(wanted.name), extra)
        if key in seen:
            continue
        seen.add(key)
        yield key[0]
        for other in distribution(wanted.name).requires or ():
            marker = Requirement(other).marker
            if marker is None or marker.evaluate({"extra": extra}):
                yield from _needed(other, seen)


def test_lock_of_the_product_has_all_that_it_needs_and_nothing_that_only_tests_need() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    seen = set[tuple[str, str]]()
    markers = {line: Requirement(line).marker for line in lines}
    here = [line for line, marker in markers.items() if marker is None or marker.evaluate()]
    assert {name for line in here for name in _needed(line, seen)} == _here(_locked("requirements.lock"))


def test_lock_of_the_tests_has_the_packages_of_the_product_in_the_same_versions() -> None:
    product, tests = _locked("requirements.lock"), _locked("requirements-dev.lock")
    assert {name: tests.get(name) for name in product} == product
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    assert {_normal(Requirement(line).name) for line in declared} <= set(tests)
