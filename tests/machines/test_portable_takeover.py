"""A portable session whose machine is lost in a command goes on elsewhere, in a folder as its log says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL

import pytest

from tests.cli.machine import PATIENCE_S, Machine, dendro, says
from tests.machines.conftest import Fleet

pytestmark = [
    pytest.mark.realredis,
    pytest.mark.sandbox,
    pytest.mark.night,
]


SOON = [word for key in ("lease_s=2", "trust_s=1.5", "renew_s=0.5") for word in ("-c", f"worker.{key}")]
"""A lost machine's session is taken over soon."""


def shell(script: str) -> dict[str, object]:
    arguments = {"command": ["bash", "-c", script], "timeout_ms": 60_000}
    return {"items": [{"call": "shell", "args": arguments}]}


def test_session_goes_on_on_the_other_machine_in_the_folder_of_its_log(fleet: Fleet, tmp_path: Path) -> None:
    work = fleet.one.srv("work")
    (work / "kept").write_text("before\n")
    (work / ".gitignore").write_text("deps\n")
    # What a set-up installs is in no snapshot: each machine's is its own, and has run once.
    install = 'workspace.setup_script="mkdir deps && hostname > deps/host"'
    steps = (
        shell("echo 1 >> kept; echo made > new; cat deps/host"),
        # Half of a change, and never its end.
        shell("echo half >> kept; rm new; touch half; echo begun > /tmp/begun; sleep 60"),
        shell("cat kept; find . -type f | sort; ls /tmp; pwd; cat deps/host"),
        says("went on"),
    )
    (tmp_path / "model").mkdir()
    with Machine.at(tmp_path / "model").buried.playing(json.dumps(steps)) as stub:
        fleet = fleet.under(OPENAI_BASE_URL=stub.environ["OPENAI_BASE_URL"])
        one, two = fleet.one, fleet.two
        words = (*SOON, "-c", "approval_policy=never", "-c", install, "run", "--portable", "--json", "Go.")
        with one.user.start(dendro(*words), cwd=one.user.folder, env=one.user.environ, stdout=DEVNULL) as ran:
            begun = wait_for(lambda: next(iter(one.srv("home/workspaces/copies").glob("*/tmp/begun")), None))
            one.lose()
            assert ran.wait(PATIENCE_S) == -9
        session = begun.parents[1].name
        said = two.says(*SOON, "run", "--resume", session, "--json")
    events = [json.loads(line)["msg"] for line in said.splitlines()]
    ended = [event for event in events if event["type"] == "exec_command_end"]
    folder = f"/srv/home/workspaces/{session}/work"
    files = "./.gitignore\n./deps/host\n./kept\n./new\n"
    here, _, there = ended[-1]["stdout"].removeprefix("before\n1\n" + files).partition("\n")
    assert here == folder
    assert there.strip() == two.name
    assert (work / "kept").read_text() == "before\n"
    assert "the folder is as it was before this call" in two.says("logs", session, "--json")


def wait_for(look: Callable[[], Path | None]) -> Path:
    until = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return found
