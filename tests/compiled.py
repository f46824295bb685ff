"""Compiles a new checkout once, and not in each process that runs tests.

Modules of tests are compiled by pytest, which rewrites their assertions, when they are imported: each process
begins with another part of them, and finds compiled what others have imported meanwhile.
"""

from __future__ import annotations

import compileall
import importlib
import re
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLAIN = ("orchestrator", "workers", "sim", "bench", "tests")
_REWRITTEN = re.compile(r"/(test_\w+|conftest)\.py$")


def compile_all() -> None:
    """Compiles what pytest does not rewrite, on all cores."""
    for package in PLAIN:
        compileall.compile_dir(ROOT / package, quiet=2, rx=_REWRITTEN, workers=0)


def import_tests(config: pytest.Config) -> None:
    """Imports the tests of folders, in a process of several."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    files = sorted(file for place in config.args for file in Path(place).rglob("test_*.py"))
    first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
    for file in files[first:] + files[:first]:
        # What cannot be imported is told of when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.resolve().relative_to(ROOT).with_suffix("").parts))
