"""A tree whose agents have folders of their own on two machines, merged as `git merge-file` merges."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine
from tests.machines.conftest import Fleet
from tests.machines.host import Host
from tests.machines.test_portable import portable, shell

__all__ = ["portable"]
pytestmark = [
    pytest.mark.realredis,
    pytest.mark.night,
]

BASE = "".join(f"line {number}\n" for number in range(60))
EDITS = (5, 15, 25, 35, 45, 5)
"""The line that each agent changes; the last one's is the first one's, too."""
ORDER = (3, 1, 6, 2, 5, 4)


def edit(number: int, line: int) -> dict[str, Any]:
    script = f"""
        sed -i "s/^line {line}$/line {line}, by {number} on $(hostname)/" shared.txt
        echo of {number} > only-{number}.txt
        sleep 0.5
    """
    return {"label": f"a{number}", "steps": [shell(script), {"items": [{"text": f"{number} is done"}]}]}


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"items": [{"call": name, "args": args}]}


def test_agents_on_two_machines_have_folders_of_their_own_and_are_merged(
    portable: Fleet, tmp_path: Path
) -> None:
    agents = [edit(number, line) for number, line in enumerate(EDITS, 1)]
    spawns = [
        {"call": "subagent_spawn", "args": {"label": agent["label"], "prompt": "Edit."}} for agent in agents
    ]
    steps = [
        {"items": spawns},
        *(call("subagent_await", agent_ids=[number]) for number in range(1, 7)),
        *(call("subagent_merge", agent_id=number) for number in ORDER),
        *(call("subagent_merge", agent_id=number) for number in ORDER[:1]),
        {"items": [{"text": "merged"}]},
    ]
    portable.two.srv("work/shared.txt").write_text(BASE)
    folder = tmp_path / "model"
    folder.mkdir()
    with Machine.at(folder).buried.playing(json.dumps({"steps": steps, "agents": agents})) as stub:
        fleet = portable.under(OPENAI_BASE_URL=stub.environ["OPENAI_BASE_URL"])
        with fleet.one.worker("worker.concurrency=1"), fleet.two.worker("worker.concurrency=1"):
            said = fleet.two.says("run", "--portable", "--no-worker", "Divide it.")
        assert "merged" in said
        root = next(row["tree_id"] for row in fleet.two.user.sessions())
        theirs = {number: checked_out(fleet.two, root, number) for number in range(1, 7)}
        found = checked_out(fleet.two, root, 0)
    expected, merged = merged_by_git(theirs, tmp_path)
    assert merged == [3, 1, 2, 5, 4], "six has changed the same line as one"
    assert (found / "shared.txt").read_text() == expected
    assert sorted(path.name for path in found.glob("only-*")) == [
        f"only-{number}.txt" for number in sorted(merged)
    ]
    hosts = {line.rpartition(" on ")[2] for line in expected.splitlines() if " on " in line}
    assert hosts == {"one", "two"}


def checked_out(host: Host, root: str, number: int) -> Path:
    host.says("checkout", root, str(number), f"/srv/of-{number}")
    return host.srv(f"of-{number}")


def merged_by_git(theirs: dict[int, Path], tmp_path: Path) -> tuple[str, list[int]]:
    """The file as git merges it in the same order, and those whose changes it took."""
    ours, base = tmp_path / "ours", tmp_path / "base"
    for file in (ours, base):
        file.write_text(BASE)
    taken = []
    for number in ORDER:
        sides = (ours, base, theirs[number] / "shared.txt")
        command = ["git", "merge-file", "-p", *map(str, sides)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            ours.write_text(done.stdout)
            taken.append(number)
    return ours.read_text(), taken
