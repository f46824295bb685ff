"""The trial of a foreign defect: read from its patch, planted in a copy of the tree, and looked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
SOME_FAILED = 1
"""The exit code of pytest when tests failed, and of the simulator when a rule was broken."""
PLAIN = ("-n", "0", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")
_SEEDS = re.compile(r"seeds (\d+)-(\d+) of (\w+)")


class Unfit(Exception):
    """The defect cannot be tried: its patch, its sentence or its test is not the product's any more."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A foreign defect, as its patch has it."""

    name: str
    wrong: str
    page: str
    sentence: str
    """The words of the page that the defect breaks."""
    finders: tuple[str, ...]
    """Ids of tests, or `seeds 0-99 of tree`."""
    patch: str

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(one for one in self.finders if "::" in one)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finder that noticed the defect, or nothing."""

    by: str | None
    seconds: float


def read(path: Path) -> Defect:
    """Reads a patch and its head; raises `Unfit` if the head lacks something."""
    head, begin, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
    told = [line.partition(": ")[::2] for line in head.splitlines() if line]
    known = dict(told)
    page, _, sentence = known.get("breaks", "").partition(": ")
    finders = tuple(value for key, value in told if key == "found-by")
    if not (begin and known.get("wrong") and sentence and finders) or known.keys() > _KEYS:
        raise Unfit(f"{path.name}: its head is `wrong: …`, `breaks: docs/PAGE: SENTENCE`, `found-by: …`")
    return Defect(path.stem, known["wrong"], page, sentence, finders, f"{begin.lstrip()}{diff}")


_KEYS = {"wrong", "breaks", "found-by"}


def defects(names: Sequence[str] = ()) -> list[Defect]:
    """Those of these names, or all; raises `Unfit` for a name that there is not."""
    there = {path.stem: path for path in sorted(FOLDER.glob("*.patch"))}
    if unknown := [name for name in names if name not in there]:
        raise Unfit(f"no such defect: {', '.join(unknown)}; there are: {', '.join(there)}")
    return [read(there[name]) for name in names or there]


def simulated(defect: Defect) -> Defect:
    """The defect, to be found by seeds alone: without any it survives."""
    return replace(defect, finders=tuple(one for one in defect.finders if "::" not in one))


def promised(name: str, page: str, sentence: str) -> None:
    """Raises `Unfit` if the page does not say what the defect of this name breaks."""
    if " ".join(sentence.split()) not in _said(ROOT / page):
        raise Unfit(f"{name}: {page} does not say {sentence!r}")


@cache
def _said(file: Path) -> str:
    return " ".join(file.read_text(encoding="utf-8").split()) if file.is_file() else ""


def commit() -> str:
    """The commit that the tree stands on, as pages carry it."""
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree as it is, with what is not committed; without what git leaves out."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with TemporaryDirectory(prefix="dendro-foreign-") as made:
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (Path(made) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(made) / name)
        yield Path(made)


def plant(defect: Defect, tree: Path) -> None:
    """Applies the patch to a copy of the tree; raises `Unfit` if it does not apply."""
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(
        command, cwd=tree, env=outside, input=defect.patch, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Unfit(f"{defect.name} does not apply any more, plant it anew: {done.stderr.strip()}")


def tried(defect: Defect) -> Verdict:
    """Plants the defect in a copy and runs its finders, one after the other, until one finds it."""
    promised(defect.name, defect.page, defect.sentence)
    with copied() as tree:
        plant(defect, tree)
        began = time.monotonic()
        by = next((found for finder in defect.finders if (found := _found(finder, tree))), None)
        return Verdict(by, time.monotonic() - began)


def sound(tests: Sequence[str]) -> None:
    """Raises `Unfit` if one of the tests fails, or is not run, where nothing is planted."""
    with copied() as tree:
        done = _run(["pytest", *PLAIN, *tests], tree)
    if done.returncode != 0 or " skipped" in done.stdout.splitlines()[-1]:
        raise Unfit(f"without a defect these tests do not all run and pass:\n{done.stdout}{done.stderr}")


def _found(finder: str, tree: Path) -> str | None:
    """Runs a finder; answers the test or the seed that failed."""
    if seeds := _SEEDS.fullmatch(finder):
        first, last, workload = int(seeds[1]), int(seeds[2]), seeds[3]
        counts = ["--first", str(first), "--seeds", str(last - first + 1), "--processes", "1"]
        done = _run(["sim", *counts, "--workload", workload], tree)
        named = re.search(r"^seed (\d+) \(\w+\): (\w+)", done.stdout, re.MULTILINE)
        shown = f"`{named[2]}`, seed {named[1]} of `{workload}`" if named else None
    else:
        done = _run(["pytest", *PLAIN, finder], tree)
        path, _, name = finder.partition("::")
        shown = f"{Path(path).stem}: {name}" if f"FAILED {finder}" in done.stdout else None
    if done.returncode not in (0, SOME_FAILED):
        raise Unfit(f"{finder} cannot be run:\n{done.stdout}{done.stderr}")
    return shown if done.returncode == SOME_FAILED else None


def _run(words: Sequence[str], tree: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
