"""Processes that `dendro` starts of itself run its own code, whatever lies in the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.invocation import DENDRO
from tests.cli.machine import TOUCH, Machine, says

MODULES = (
    "orchestrator/__init__.py",
    "typer.py",
    "json.py",
    "sitecustomize.py",
    "uvloop.py",
    "tree_sitter.py",
)


def leave_modules(workspace: Path, ran: Path, *names: str) -> None:
    """Files that write down that they were imported."""
    for name in names:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"open({str(ran)!r}, 'w')\n")


@pytest.mark.parametrize("name", MODULES[:4])
def test_module_of_the_current_folder_is_not_imported(name: str, tmp_path: Path) -> None:
    workspace, ran = tmp_path / "workspace", tmp_path / "ran"
    leave_modules(workspace, ran, name)
    command = [*DENDRO, "--help"]
    done = subprocess.run(command, cwd=workspace, capture_output=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


@pytest.mark.always
def test_person_runs_the_installed_command_in_a_folder_whose_modules_have_names_of_its_own(
    machine: Machine,
) -> None:
    """A new Python, as a person starts it: the command, and the worker that it forks."""
    ran = machine.folder.parent / "ran"
    leave_modules(machine.folder, ran, *MODULES)
    command = [str(Path(sys.executable).parent / "dendro"), "run", "touch it", "-c", "approval_policy=never"]
    with machine.model(TOUCH, says("done")) as user:
        done = subprocess.run(
            [*command, "-c", "sandbox_mode=danger-full-access"],
            cwd=user.folder,
            env=user.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    assert done.returncode == 0, done.stderr
    assert (user.folder / "made.txt").exists()
    assert not ran.exists()
