"""The simulator finds what is planted: a few defects of `sim.mutants`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sim.mutant import Mutant
from sim.mutants import MUTANTS, PAGE, Found, Row, hunted, rows, table, together

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "defect",
    [
        "release without recheck",
        "effects before the commit",
        "no idempotence of submit",
        "fields come in their order",
    ],
)
def test_planted_defect_is_found_within_a_hundred_seeds(defect: str) -> None:
    words = [sys.executable, "-m", "sim.mutants", defect, "--seeds", "100", "--processes", "1", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_has_a_row_of_every_planted_defect_and_no_other() -> None:
    page = PAGE.read_text(encoding="utf-8")
    told = {name: (row.wrong, row.workload) for name, row in rows(page).items()}
    known = {one.name: (one.wrong, "" if one.test else one.workload) for one in MUTANTS}
    assert told.items() <= known.items(), "make the rows of these anew: python -m sim.mutants NAME …"
    lacking = [name for name in known if f"\n| {name} | {known[name][0]} | " not in page]
    assert lacking == [], "make the rows of these: python -m sim.mutants NAME …"


def test_row_is_read_as_it_was_written() -> None:
    name = MUTANTS[0].name
    known = {name: Row(MUTANTS[0].wrong, 13, "tree", "epochs", "0123456789")}
    assert rows(f"<!-- planted defects: begin -->\n{table(known)}\n<!-- planted defects: end -->") == known


HARMLESS = Mutant("nothing", "nothing is wrong", lambda: None, "single")


def test_defect_is_given_three_times_the_seeds_of_its_row_and_no_more() -> None:
    looks = hunted(HARMLESS, Row("", 20, "single", "log", ""), None, checks=False)
    job = next(looks)
    assert job.args[2] == range(60)  # type: ignore[attr-defined]
    with pytest.raises(StopIteration) as over:
        looks.send(Found("nothing", None, ran=60))
    assert over.value.value == Found("nothing", None, "", "", 60)


def test_seed_that_breaks_a_rule_by_itself_finds_nothing() -> None:
    looks = hunted(HARMLESS, None, 10, checks=False)
    next(looks)
    looks.send(Found("nothing", 4, "log", "single", 4))
    job = looks.send(False)
    assert job.args[2] == range(4, 10)  # type: ignore[attr-defined]


def test_check_begins_with_the_seed_of_the_page() -> None:
    looks = hunted(HARMLESS, Row("", 20, "single", "log", ""), None, checks=True)
    job = next(looks)
    assert job.args[2] == [19]  # type: ignore[attr-defined]
    job = looks.send(Found("nothing", None, ran=1))
    assert job.args[2] == range(60)  # type: ignore[attr-defined]


def test_look_that_dies_ends_the_whole() -> None:
    def dies() -> Generator[Callable[[], Any], Any, Found]:
        yield partial(os._exit, 3)
        raise AssertionError

    with pytest.raises(ValueError, match="a process died before it had told what it found"):
        list(together([dies()], 1))


@pytest.mark.slice
@pytest.mark.always
def test_every_planted_defect_fits_the_product() -> None:
    """In a process each, for what is planted stays."""
    unfit = [mutant.name for mutant in MUTANTS if _exit_of(mutant) != 0]
    assert unfit == [], "plant these anew"


def _exit_of(mutant: Mutant) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mutant.plant()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
