"""The page's own client of the app-server, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.machine import PATIENCE_S, Machine, dendro, says

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[3] / "docs/doors/app-server.md"


def test_client_of_the_page_runs_a_turn(machine: Machine) -> None:
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[-1]
    program = program.replace('["dendro", "app-server"]', repr(dendro("app-server")))
    with machine.model(says("A small project.")) as user:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=user.folder,
            env=user.environ,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A small project.\n"
