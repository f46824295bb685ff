"""A tree on two machines that share a folder, a Redis and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.machines.conftest import Fleet, model

pytestmark = pytest.mark.realredis

MAY_WRITE = ("-c", "sandbox_mode=workspace-write", "-c", "approval_policy=never")
MEET = 'echo "$(hostname)" > {label}; until [ -s {other} ]; do sleep 0.02; done; cat {other}'
"""A command that ends when another machine's has begun: each worker of the fleet runs one session."""


def _spawn(label: str) -> dict[str, Any]:
    return {"call": "subagent_spawn", "args": {"label": label, "prompt": f"Be {label}."}}


def _child(label: str, other: str) -> dict[str, Any]:
    command = ["bash", "-c", MEET.format(label=label, other=other)]
    return {
        "label": label,
        "steps": [{"items": [{"call": "shell", "args": {"command": command}}]}, {"items": [{"text": label}]}],
    }


def test_machines_have_names_and_folders_of_their_own(fleet: Fleet) -> None:
    ids = {one.shell("cat /etc/machine-id") for one in (fleet.one, fleet.two)}
    assert len(ids) == 2
    assert [one.shell("hostname").strip() for one in (fleet.one, fleet.two)] == ["one", "two"]
    fleet.one.shell("echo here > /srv/work/file")
    assert fleet.one.srv("work/file").read_text() == "here\n"
    assert fleet.two.shell("ls /srv/work") == ""


def test_a_machine_that_is_lost_keeps_its_folders_and_nothing_that_ran(fleet: Fleet) -> None:
    with fleet.one.worker() as worker:
        fleet.one.shell("echo kept > /srv/work/file")
        fleet.one.lose()
        assert worker.wait(20) == -9
    assert fleet.one.processes() == []
    assert fleet.one.shell("cat /srv/work/file") == "kept\n"


def test_agents_of_a_tree_run_on_both_machines_at_once(fleet: Fleet, tmp_path: Path) -> None:
    root = [{"items": [_spawn("left"), _spawn("right")]}, {"items": [{"call": "subagent_await", "args": {}}]}]
    root += [{"items": [{"call": "subagent_await", "args": {}}]}, {"items": [{"text": "both"}]}]
    agents = [_child("left", "right"), _child("right", "left")]
    work = fleet.common / "work"
    work.mkdir()
    with model(tmp_path, *root, agents=agents) as stub:
        fleet = fleet.under(OPENAI_BASE_URL=stub.environ["OPENAI_BASE_URL"])
        with fleet.one.worker("worker.concurrency=1"), fleet.two.worker("worker.concurrency=1"):
            said = fleet.one.says(*MAY_WRITE, "run", "--no-worker", "-C", str(work), "Meet.")
    assert "both" in said
    met = {(work / label).read_text().strip() for label in ("left", "right")}
    assert met == {"one", "two"}
