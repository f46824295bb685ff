"""Traces that are kept tell a change of behaviour from one that leaves all as it was."""

from __future__ import annotations

import json
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


def _compared(kept: Path, ends_with: int) -> str:
    words = [sys.executable, "-m", "sim.traces", str(kept), "--seeds", "3", "--processes", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == ends_with, done.stderr
    return done.stdout
