"""A command that was started without a standard stream writes into no file of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from orchestrator.cli.main import open_missing
open_missing()
with open(sys.argv[1], "w") as kept:
    print("for people")
    sys.stdout.flush()
    os.write(1, b"for people")
    sys.stderr.write("for people")
    kept.write(f"{kept.fileno() > 2} {sys.stdin.read()!r}")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_written_for_people_goes_into_no_other_file(closed: str, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM, str(file)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0
    assert file.read_text() == "True ''"


def test_terminal_of_another_encoding_gets_an_escape_for_what_it_lacks(tmp_path: Path) -> None:
    here = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "orchestrator.cli.main", "doctor"]
    done = subprocess.run(words, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert r"\u2713  settings" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
