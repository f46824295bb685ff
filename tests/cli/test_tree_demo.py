"""The demo, as `make demo` runs it."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.cli.machine import Machine, dendro
from tests.cli.parked_tree import repository
from tests.started import Started

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
    machine = Machine.at(tmp_path).buried
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
    assert done.stdout.splitlines()[-1].endswith("dendro demo --window")


@pytest.mark.night
def test_demo_is_seen_and_answered_in_the_window(tmp_path: Path) -> None:
    machine = Machine.at(tmp_path).buried
    repository(machine.folder)
    words = dendro("demo", "--window")
    with (
        Started(words, stdout=subprocess.PIPE, text=True, cwd=machine.folder, env=machine.environ) as process,
        ExitStack() as stack,
    ):
        assert process.stdout is not None
        stack.callback(process.kill)
        lines: list[str] = []
        allowed: list[dict[str, object]] = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"window at (http://\S+)/#c=(\S+)", line):
                headers = {"Origin": found[1], "Sec-Fetch-Site": "same-origin"}
                window = stack.enter_context(httpx.Client(base_url=found[1], headers=headers, timeout=30.0))
                assert window.post("/api/login", json={"code": found[2]}).status_code == 200
            elif "asks to run" in line and not allowed:
                (asked,) = window.post("/api/approval/list", json={}).json()["data"]
                answer = {"threadId": asked["threadId"], "callId": asked["callId"]}
                allowed = [{**answer, "answer": {"decision": "accept"}}]
                assert window.post("/api/approval/answer", json={"requests": allowed}).status_code == 200
            elif "The window stays" in line:
                break
        told = "".join(lines)
        assert "was answered in the window" in told
        (tree,) = window.post("/api/fleet/list", json={}).json()["data"]
        assert f"/tree/{tree['treeId']}" in lines[-1]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, told
