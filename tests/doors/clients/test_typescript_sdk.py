"""Codex's TypeScript SDK, unchanged, with `dendro` in the place of the program that it starts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.machine import PATIENCE_S, Machine, dendro, says
from tests.doors.clients.packages import from_npm

pytestmark = [pytest.mark.realredis, pytest.mark.slow]

PAGE = Path(__file__).parents[3] / "docs/doors/exec.md"
ABORT = """
import { Codex } from "@openai/codex-sdk";
const thread = new Codex({ codexPathOverride: PATH }).startThread({ skipGitRepoCheck: true });
const stop = new AbortController();
const { events } = await thread.runStreamed("work", { signal: stop.signal });
try {
  for await (const event of events) if (event.type === "item.started") stop.abort();
} catch (error) { console.log(error.name, typeof thread.id); }
"""


@pytest.fixture
def modules() -> Path:
    return from_npm("@openai/codex-sdk", "0.163.0") / "node_modules"


def ran(user: Machine, modules: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the SDK's beside its modules."""
    folder = user.folder.parent
    started = folder / "dendro"
    started.write_text("#!/bin/sh\nexec " + " ".join(dendro()) + ' "$@"\n')
    started.chmod(0o755)
    (folder / "node_modules").symlink_to(modules)
    (folder / "program.mjs").write_text(program)
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not here")
    words = [node, str(folder / "program.mjs")]
    return subprocess.run(
        words, capture_output=True, text=True, cwd=user.folder, env=user.environ, timeout=2 * PATIENCE_S
    )


def test_program_of_the_page_runs_two_turns_of_a_thread(machine: Machine, modules: Path) -> None:
    (program,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = program.replace("/usr/local/bin/dendro", str(machine.folder.parent / "dendro"))
    subprocess.run(["git", "init", "-q"], cwd=machine.folder, check=True)
    with machine.model(says("A small project."), says("Un petit projet.")) as user:
        done = ran(user, modules, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A small project.\nUn petit projet. 200\n"


def test_program_that_gives_a_turn_up_has_ended_its_command(machine: Machine, modules: Path) -> None:
    command = {"call": "shell", "args": {"command": ["sleep", "77"], "timeout_ms": 90_000}}
    program = ABORT.replace("PATH", repr(str(machine.folder.parent / "dendro")))
    with machine.model({"items": [command]}) as user:
        done = ran(user, modules, program)
        assert done.stdout == "AbortError string\n", done.stderr
        while sleeps(machine):
            pass


def sleeps(machine: Machine) -> bool:
    """Whether the command of the turn still runs."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[:2] == [b"sleep", b"77"] and (process / "cwd").readlink() == machine.folder:
                return True
        except OSError:
            continue
    return False
