"""The examples, run as a person would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sandbox

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *words], capture_output=True, text=True, cwd=folder, timeout=90
    )


def test_program_embeds_a_worker_runs_a_turn_and_prints_its_answer(tmp_path: Path) -> None:
    done = run("embed.py", tmp_path, "count to two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "runs ['bash', '-c', 'echo 1 of 2']",
        "runs ['bash', '-c', 'echo 2 of 2']",
        "Ran 2 commands.",
    ]


def test_supervisor_allows_what_its_policy_names_and_denies_the_rest(tmp_path: Path) -> None:
    done = run("policy_supervisor.py", tmp_path, "--allow", "touch *")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0:call_1_0  touch notes.txt: allowed",
        "0:call_2_0  rm notes.txt: denied",
        "Done.",
    ]


def test_program_brings_a_tool_along_which_asks_and_runs(tmp_path: Path) -> None:
    done = run("custom_tool.py", tmp_path, "buy milk")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "asked: note notes 'buy milk'",
        "ended: 1 notes are kept",
        "It is noted.",
    ]
