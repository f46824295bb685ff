"""The demo, as `make demo` runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.machine import Machine, dendro
from tests.cli.parked_tree import repository

pytestmark = pytest.mark.realredis

OWN_FOLDERS = {
    "on machine south": "both workers are on this machine: ",
    "what 2 agents wrote in folders of their own was merged": "all agents work in one folder: ",
    " −0 in 3 files": "all agents work in one folder: ",
}
"""Claims, each with what the demo says where this computer cannot show it."""


def _said_to_be_missing(claim: str, shown: str) -> bool:
    return claim in OWN_FOLDERS and OWN_FOLDERS[claim] in shown


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
        *OWN_FOLDERS,
    ):
        assert claim in done.stdout or _said_to_be_missing(claim, done.stdout)
    assert not (machine.folder / "REPORT.md").exists(), "it works in a clone"
