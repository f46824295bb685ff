"""Agents in folders of their own, portable or copies of a checkout, and a root that takes their work over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.machine import Machine
from tests.cli.test_workspaces_page import repository

pytestmark = pytest.mark.realredis


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"items": [{"call": name, "args": arguments}]}


def shell(script: str) -> dict[str, Any]:
    return call("shell", command=["bash", "-c", script])


@pytest.mark.slow
def test_root_has_what_its_agents_did_in_their_own_folders_once_it_has_merged_them(machine: Machine) -> None:
    repository(machine)
    spawn = [{"call": "subagent_spawn", "args": {"label": one, "prompt": one}} for one in ("left", "right")]
    agents = [
        {"label": "left", "steps": [shell("echo left > left.txt; sed -i s/Small/Left/ README.md")]},
        {"label": "right", "steps": [shell("ls; echo right > right.txt; sed -i s/Small/Right/ README.md")]},
    ]
    for agent in agents:
        agent["steps"].append({"items": [{"text": "done"}]})  # type: ignore[attr-defined]
    steps = [
        shell("echo root > root.txt"),
        {"items": spawn},
        call("subagent_await"),
        call("subagent_await"),
        call("subagent_merge", agent_id=1),
        call("subagent_merge", agent_id=2),
        call("subagent_merge", agent_id=1),
        shell("head left.txt right.txt root.txt README.md"),
        {"items": [{"text": "done"}]},
    ]
    with machine.playing(json.dumps({"steps": steps, "agents": agents})) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never", DENDRO_SANDBOX_MODE="workspace-write")
        done = user.run("run", "--portable", "--json", "Have it done.")
    events = [json.loads(line)["msg"] for line in done.stdout.splitlines()]
    merges = [event for event in events if event["type"] == "patch_apply_end"]
    assert [event["success"] for event in merges] == [True, False], done.stdout + done.stderr
    assert "README.md" in merges[1]["stderr"], "both changed the same line"
    last = [event for event in events if event["type"] == "exec_command_end"][-1]
    assert "==> left.txt <==\nleft\n" in last["stdout"]
    assert "# Left" in last["stdout"]
    assert "right" not in last["stdout"].replace("right.txt", ""), "nothing of a refused merge is written"
    assert "==> root.txt <==\nroot\n" in last["stdout"]


@pytest.mark.slow
def test_agents_of_a_checkout_work_in_copies_and_their_work_comes_into_it(machine: Machine) -> None:
    checkout = repository(machine)
    (checkout / "notes.txt").write_text("not committed\n")
    spawn = [
        {"call": "subagent_spawn", "args": {"label": one, "prompt": one, "workspace": "own"}}
        for one in ("left", "right")
    ]
    agents = [
        {
            "label": "left",
            "steps": [
                shell(
                    "cat notes.txt; cp /tmp/prepared .; echo left > left.txt; sed -i s/Small/Left/ README.md"
                )
            ],
        },
        {"label": "right", "steps": [shell("echo right > right.txt; sed -i s/Small/Right/ README.md")]},
    ]
    for agent in agents:
        agent["steps"].append({"items": [{"text": "done"}]})  # type: ignore[attr-defined]
    steps = [
        {"items": spawn},
        call("subagent_await"),
        call("subagent_await"),
        shell("ls"),
        call("subagent_merge", agent_id=1),
        call("subagent_merge", agent_id=2),
        call("subagent_merge", agent_id=1),
        {"items": [{"text": "done"}]},
    ]
    with machine.playing(json.dumps({"steps": steps, "agents": agents})) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never", DENDRO_SANDBOX_MODE="workspace-write")
        user = user.under(DENDRO_WORKSPACE_SETUP_SCRIPT="echo by the set-up > /tmp/prepared")
        done = user.run("run", "--json", "Have it done.")
        events = [json.loads(line)["msg"] for line in done.stdout.splitlines()]
        session = next(event["session_id"] for event in events if event["type"] == "session_configured")
        drawn = user.run("tree", session, "--once").stdout
        diff = user.run("diff", session, "1").stdout
        verified = user.run("verify", session, "--workspaces")
    listed = [event for event in events if event["type"] == "exec_command_end"][-1]["stdout"]
    assert "left.txt" not in listed, "nothing of a copy is in the checkout before it is merged"
    merges = [event for event in events if event["type"] == "patch_apply_end"]
    assert [event["success"] for event in merges] == [True, False], done.stdout + done.stderr
    assert "README.md" in merges[1]["stderr"], "both changed the same line"
    assert (checkout / "left.txt").read_text() == "left\n"
    assert (checkout / "README.md").read_text() == "# Left\n"
    assert (checkout / "prepared").read_text() == "by the set-up\n"
    assert not (checkout / "right.txt").exists(), "nothing of a refused merge is written"
    assert (checkout / "notes.txt").read_text() == "not committed\n"
    assert "+3 −1 in 3 files" in drawn
    assert "+# Left" in diff
    assert verified.returncode == 0, verified.stdout + verified.stderr
