"""Traces that are kept tell a change of behaviour from one that leaves all as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slice
def test_same_version_has_the_same_traces_and_another_digest_is_told(tmp_path: Path) -> None:
    kept = tmp_path / "traces.json"
    assert "3 traces are kept" in _compared(kept, 0)
    assert "3 traces compared" in _compared(kept, 0)
    digests = json.loads(kept.read_text())
    kept.write_text(json.dumps({**digests, "1": "another"}))
    assert "1 differ\nseed 1:" in _compared(kept, 1)


@pytest.mark.slice
def test_nothing_of_the_machine_is_in_a_trace() -> None:
    """Salts of a redaction, and a machine's file of keys that logs name, are the seed's in each process."""
    assert _digests("1") == _digests("2")


def _digests(hash_seed: str) -> list[str]:
    words = [sys.executable, "-c", _RUNS]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    found = done.stdout.split()
    assert len(set(found)) == 4, done.stdout
    return found


_RUNS = """
from sim.campaign import stories
plan = [("redactions", 1), ("redactions", 2), ("folders", 112), ("contents", 227)]
for outcome in stories(plan, traced=True):
    print(outcome.digest)
"""


def _compared(kept: Path, ends_with: int) -> str:
    words = [sys.executable, "-m", "sim.traces", str(kept), "--seeds", "3", "--processes", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == ends_with, done.stderr
    return done.stdout
