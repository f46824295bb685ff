"""The simulator finds what is planted: a few defects of `sim.mutants`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.mutant import Mutant
from sim.mutants import MUTANTS

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
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
    words = [sys.executable, "-m", "sim.mutants", defect, "--seeds", "100", "--processes", "1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
