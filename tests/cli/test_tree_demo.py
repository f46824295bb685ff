"""The demo, as `make demo` runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.machine import Machine, dendro
from tests.cli.parked_tree import repository

pytestmark = pytest.mark.realredis


def test_demo_shows_everything_that_it_claims(tmp_path: Path) -> None:
    machine = Machine.at(tmp_path)
    repository(machine.folder)
    done = subprocess.run(
        dendro("demo"), capture_output=True, text=True, cwd=machine.folder, env=machine.environ, timeout=90
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "✗  " not in done.stdout
    for claim in (
        "7 agents worked, 2 generations of them, 1 by a fork",
        "killed with SIGKILL",
        "took over agent",
        "at the root",
        "live fold  equal",
    ):
        assert claim in done.stdout
    assert not (machine.folder / "REPORT.md").exists(), "it works in a clone"
