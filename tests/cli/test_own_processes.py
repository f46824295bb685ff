"""Processes that `dendro` starts of itself run its own code, whatever lies in the current folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.invocation import Invocation


@pytest.mark.parametrize("name", ["orchestrator/__init__.py", "typer.py", "json.py", "sitecustomize.py"])
def test_module_of_the_current_folder_is_not_imported(name: str, tmp_path: Path) -> None:
    workspace, ran = tmp_path / "workspace", tmp_path / "ran"
    (workspace / name).parent.mkdir(parents=True)
    (workspace / name).write_text(f"open({str(ran)!r}, 'w')\n")
    command = Invocation().command("--help")
    done = subprocess.run(command, cwd=workspace, capture_output=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    assert not ran.exists()
