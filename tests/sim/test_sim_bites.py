"""The simulator finds what is planted: a few defects of `sim.mutants`, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
