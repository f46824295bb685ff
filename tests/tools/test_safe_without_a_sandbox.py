"""Commands that only read, where nothing holds them: those that obey their folder are asked about."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls import Call, Exec
from orchestrator.core.calls.approval_policy import Ask, Run, Verdict
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

CONFIG = ToolConfig(SandboxSupport("/usr/bin/bwrap", 0, ()), {"PATH": "/usr/bin:/bin"})


async def verdict(folder: Path, *command: str, mode: str = "danger-full-access", path: str = "") -> Verdict:
    config = replace(CONFIG, environ={"PATH": path}) if path else CONFIG
    given = TurnSettings(str(folder), "untrusted", {"mode": mode}, "gpt-5")
    arguments = orjson.dumps({"command": command}).decode()
    item = {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": "c1"}
    site = CallSite("c", State(task=Task(SubmissionId("u1"), "user", given)), lambda _: None)
    found = await Toolbox(built_in(config, cast(Any, None))).assess(Call(CallId("c1"), "shell", item), site)
    assert isinstance(found, Exec)
    return found.judged(given, frozenset())


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A bare repository below the session's folder, whose monitor leaves a file behind when git asks it."""
    bare = tmp_path / "docs"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    monitor.chmod(0o755)
    for name, value in (
        ("core.fsmonitor", str(monitor)),
        ("core.bare", "false"),
        ("core.worktree", str(bare)),
    ):
        subprocess.run(["git", "-C", str(bare), "config", name, value], check=True)
    return bare


async def test_person_is_asked_before_git_looks_at_a_planted_repository(planted: Path) -> None:
    subprocess.run(["git", "status"], cwd=planted, check=True, capture_output=True, env={"PATH": os.defpath})
    assert (planted.parent / "ran").exists(), "git does run it"
    assert isinstance(await verdict(planted, "git", "status"), Ask)


@pytest.mark.parametrize(
    "words",
    [
        ["git", "status"],
        ["git", "--no-pager", "log"],
        ["/usr/bin/git", "diff"],
        ["cargo", "check"],
        ["bash", "-lc", "ls && git show"],
        ["bash", "-c", "git branch | cat"],
    ],
)
async def test_person_is_asked_about_what_a_folder_may_steer_without_a_sandbox(
    words: list[str], tmp_path: Path
) -> None:
    assert isinstance(await verdict(tmp_path, *words), Ask)
    assert await verdict(tmp_path, *words, mode="workspace-write") == Run(sandboxed=True)


async def test_person_is_not_asked_about_what_reads_and_no_more(tmp_path: Path) -> None:
    assert await verdict(tmp_path, "ls", "-l") == Run(sandboxed=False)
    assert await verdict(tmp_path, "bash", "-lc", "cat a | head") == Run(sandboxed=False)


@pytest.mark.parametrize("path", [".:/usr/bin", "/usr/bin:", "bin:/usr/bin", "/usr/bin::/bin"])
async def test_person_is_asked_where_a_program_may_be_a_file_of_the_folder(path: str, tmp_path: Path) -> None:
    assert isinstance(await verdict(tmp_path, "ls", path=path), Ask)


async def test_program_in_an_environment_of_a_project_is_asked_about_where_nothing_holds_it(
    tmp_path: Path,
) -> None:
    """An earlier session, in its sandbox, may have written the `ls` of an activated environment."""
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    path = f"{bin}:/usr/bin:/bin"
    assert isinstance(await verdict(tmp_path, "ls", path=path), Run)
    (bin / "ls").write_text("#!/bin/sh\n")
    (bin / "ls").chmod(0o755)
    assert isinstance(await verdict(tmp_path, "ls", path=path), Ask)
    assert isinstance(await verdict(tmp_path, "bash", "-lc", "pwd && ls", path=path), Ask)
    assert isinstance(await verdict(tmp_path, "/bin/ls", path=path), Run)
