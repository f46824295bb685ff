"""A soak names each leak that is planted in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proof.soak_processes import LEAKS

ROOT = Path(__file__).parents[2]
NAMED = {
    "memory": "memory of upkeep grows",
    "descriptors": "descriptors of upkeep grows",
    "threads": "threads of upkeep grows",
    "processes": "zombies of upkeep grows",
    "keys": "keys leaked grows",
    "streams": "entries queue grows",
    "redis": "data of Redis grows",
    "files": "files in home grows",
    "temporary": "files in tmp grows",
    "disk": "disk of home grows",
    "latency": "the probe's median went from",
}
"""Findings by the leak that they are about."""


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.realredis
@pytest.mark.timeout(900)
def test_each_planted_leak_is_named() -> None:
    assert set(NAMED) == set(LEAKS)
    argv = [sys.executable, "-m", "proof.soak", "--minutes", "4", "--agents", "20", "--leak", "all"]
    run = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    findings = run.stdout.partition("## Findings")[2]
    assert run.returncode == 1, run.stdout + run.stderr
    assert [leak for leak, line in NAMED.items() if line not in findings] == [], run.stdout
    assert "keys of the kind leaked are left of deleted sessions" in findings
    assert "MiB more than at the begin" in findings
