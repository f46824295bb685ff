"""Compiles a new checkout once, and not in each process that runs tests.

Modules of tests are compiled by pytest, which rewrites their assertions, when they are imported: each process
begins with another part of them, and finds compiled what others have imported meanwhile.
"""

from __future__ import annotations

import compileall
import importlib
import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis.internal import charmap
from hypothesis.internal.constants_ast import constants_from_module

ROOT = Path(__file__).parents[1]
PLAIN = ("orchestrator", "workers", "sim", "bench", "tests")
PARSED = ("orchestrator", "workers", "sim", "proof")
_REWRITTEN = re.compile(r"/(test_\w+|conftest)\.py$")


def compile_all() -> None:
    """Compiles what pytest does not rewrite, on all cores."""
    for package in PLAIN:
        compileall.compile_dir(ROOT / package, quiet=2, rx=_REWRITTEN, workers=0)


def fill_cache_of_hypothesis() -> None:
    """Has hypothesis note all characters and the constants of the product, from which tests draw examples.

    Each process that runs tests wants both, and would parse all modules and encode all characters itself.
    """
    files = [file for package in PARSED for file in (ROOT / package).rglob("*.py")]
    with ProcessPoolExecutor() as pool:
        characters = pool.submit(_note_characters)
        for _ in pool.map(_note_constants, files, chunksize=64):
            pass
        characters.result()


def _note_characters() -> None:
    charmap.charmap()
    charmap.intervals_from_codec("utf-8")


def _note_constants(file: Path) -> None:
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    constants_from_module(module)


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
