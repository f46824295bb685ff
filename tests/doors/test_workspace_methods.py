"""Methods about the folder of a thread, over a real gateway, from a store that no worker serves any more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.sync.client import connect

from orchestrator.sandbox.probe import probe
from tests.cli.machine import Machine, says
from tests.doors.clients.conftest import machine, redis_server
from tests.doors.sq_eq.test_serve import serving
from tests.doors.test_requests_over_a_wire import Client

__all__ = ["machine", "redis_server"]
pytestmark = [
    pytest.mark.realredis,
    pytest.mark.slow,
    pytest.mark.sandbox,
    pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here"),
]


def shell(script: str) -> dict[str, Any]:
    return {"items": [{"call": "shell", "args": {"command": ["bash", "-c", script]}}]}


STEPS = [
    shell("printf 'one\\ntwo\\nthree\\n' > here.txt; echo a > made.txt"),
    shell("printf 'ONE\\ntwo\\nthree\\n' > here.txt; printf '\\0' > bin; head -c 1100000 /dev/zero > large"),
    says("Made."),
]


def refused(client: Client, id: int, method: str, **params: Any) -> dict[str, Any]:
    client.send(id=id, method=method, params=params)
    error: dict[str, Any] = client.until(lambda message: message.get("id") == id)["error"]
    return error


def test_client_sees_which_files_a_thread_changed_when_and_by_which_lines(machine: Machine) -> None:
    (machine.folder / "here.txt").write_text("one\ntwo\nthree\nfour\n")
    with machine.playing(json.dumps({"per_session": True, "steps": STEPS})) as user:
        user.run("run", "--portable", "go")
        user.run("run", "go", "-c", "sandbox_mode=danger-full-access", "-c", "approval_policy=never")
        rows = json.loads(user.run("sessions", "--json").stdout)
        (portable,) = [row["session_id"] for row in rows if row["cwd"] != str(user.folder)]
        (plain,) = [row["session_id"] for row in rows if row["session_id"] != portable]
        assert user.run("budget", portable, "--add", "tokens=1000000").returncode == 0
        with serving(user, "--listen", "ws://127.0.0.1:0") as (_, address), connect(address) as wire:
            client = Client(wire)
            told = client.call(1, "workspace/changes", threadId=portable)
            files = {file["path"]: file for file in told["files"]}
            assert {path: (file["kind"], file["added"], file["removed"]) for path, file in files.items()} == {
                "bin": ("add", 0, 0),
                "here.txt": ("update", 1, 2),
                "large": ("add", 0, 0),
                "made.txt": ("add", 1, 0),
            }
            assert (files["bin"]["binary"], files["bin"]["tooLarge"]) == (True, False)
            assert (files["large"]["binary"], files["large"]["tooLarge"]) == (False, True)
            assert (told["portable"], told["more"]) == (True, 0)
            begun, first, second = told["moments"]
            assert (begun["files"], first["files"], second["files"]) == (0, 2, 3)
            assert (told["from"], told["to"]) == (begun["seq"], second["seq"])

            then = client.call(2, "workspace/changes", threadId=portable, to=first["seq"])
            assert [file["path"] for file in then["files"]] == ["here.txt", "made.txt"]
            later = client.call(3, "workspace/changes", threadId=portable, **{"from": first["seq"]})
            assert [file["path"] for file in later["files"]] == ["bin", "here.txt", "large"]
            # The only entry of this tree's log: its limits, raised behind all that was done.
            at = client.call(4, "workspace/changes", threadId=portable, at=1)
            assert (at["from"], at["to"], len(at["files"])) == (begun["seq"], second["seq"], 4)

            hunk = client.call(5, "workspace/diff", threadId=portable, path="here.txt")
            assert hunk == {
                "hunks": [
                    {
                        "oldStart": 1,
                        "newStart": 1,
                        "lines": [["-", "one"], ["+", "ONE"], [" ", "two"], [" ", "three"], ["-", "four"]],
                    }
                ],
                "truncated": False,
            }
            assert client.call(6, "workspace/diff", threadId=portable, path="large")["hunks"] == []

            proof = client.call(16, "tree/verify", treeId=portable)
            (log,) = proof["sessions"]
            assert (proof["ok"], log["threadId"], log["verifiedTo"]) == (True, portable, log["of"])

            assert client.call(7, "workspace/changes", threadId=plain)["portable"] is False
            assert (
                "not in its log" in refused(client, 8, "workspace/diff", threadId=plain, path="a")["message"]
            )
            for id, words, said in (
                (9, {"path": "none"}, "no file that differs"),
                (10, {"path": "made.txt", "to": 99_999}, "has entries 1 to"),
                (11, {"path": "made.txt", "to": 0}, "greater than or equal to 1"),
                (12, {"path": "made.txt", "to": 2, "at": 2}, "one of them"),
                (13, {"path": "made.txt", "at": 99_999}, "no entry 99999"),
                (14, {"path": ""}, "at least 1 character"),
                (15, {}, "path"),
            ):
                error = refused(client, id, "workspace/diff", threadId=portable, **words)
                assert (error["code"], said in error["message"]) == (-32602, True), error


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"items": [{"call": name, "args": arguments}]}


def spawning(*labels: str, **more: Any) -> dict[str, Any]:
    calls = [{"call": "subagent_spawn", "args": {"label": it, "prompt": it, **more}} for it in labels]
    return {"items": calls}


AGENTS = [
    {"label": "left", "steps": [shell("sed -i s/one/LEFT/ here.txt; echo x > left.txt"), says("Left.")]},
    {"label": "right", "steps": [shell("sed -i s/one/RIGHT/ here.txt; rm gone.txt"), says("Right.")]},
    {"label": "low", "steps": [shell("sed -i s/four/LOW/ here.txt"), says("Low.")]},
    {
        "label": "high",
        "steps": [spawning("low"), call("subagent_await"), shell("echo y > high.txt"), says("High.")],
    },
    {
        "prompt": "whole",
        "steps": [
            spawning("left", "right", "high"),
            *[call("subagent_await")] * 3,
            call("subagent_merge", agent_id=1),
            shell("echo z > root.txt"),
            says("All."),
        ],
    },
    {
        "prompt": "copies",
        "steps": [
            spawning("left", "right", workspace="own"),
            *[call("subagent_await")] * 2,
            says("All."),
        ],
    },
]


def test_client_sees_what_all_agents_of_a_tree_changed_whose_it_is_and_what_is_at_odds(
    machine: Machine,
) -> None:
    (machine.folder / "here.txt").write_text("one\ntwo\nthree\nfour\n")
    (machine.folder / "gone.txt").write_text("gone\n")
    scenario = {"steps": [says("Nothing.")], "agents": AGENTS}
    with machine.playing(json.dumps(scenario)) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never", DENDRO_SANDBOX_MODE="workspace-write")
        user.run("run", "--portable", "whole")
        user.run("run", "copies")
        rows = json.loads(user.run("sessions", "--json").stdout)
        titles = {row["title"]: row["session_id"] for row in rows}
        tree, copies = titles["whole"], titles["copies"]
        with serving(user, "--listen", "ws://127.0.0.1:0") as (_, address), connect(address) as wire:
            client = Client(wire)
            told = client.call(1, "workspace/changes", threadId=tree, below=True)
            files = {file["path"]: file for file in told["files"]}
            owners = {path: [one["agentId"] for one in file["agents"]] for path, file in files.items()}
            low = max(agent["agentId"] for agent in told["agents"])
            assert owners == {
                "gone.txt": [2],
                "here.txt": [1, 2, low],
                "high.txt": [3],
                "left.txt": [1],
                "root.txt": [0],
            }
            assert {path: file["agentId"] for path, file in files.items() if file["of"] == 1} == {
                "gone.txt": 2,
                "high.txt": 3,
                "left.txt": 1,
                "root.txt": 0,
            }
            # Left's is merged, low's stands in other lines, right's cannot be merged with left's.
            here = files["here.txt"]
            assert here["conflict"] == {
                "agents": [0, 2],
                "reason": "the same lines changed on both sides",
            }
            assert (here["added"], here["removed"], here["of"], told["conflicts"]) == (2, 2, 3, 1)
            assert (told["portable"], told["more"], told["moreAgents"]) == (True, 0, 0)
            right = next(agent for agent in told["agents"] if agent["agentId"] == 2)
            line = client.call(
                2,
                "workspace/diff",
                threadId=right["threadId"],
                path="here.txt",
                **{"from": right["from"], "to": right["to"]},
            )
            assert ["+", "RIGHT"] in line["hunks"][0]["lines"]

            # Of an agent, what is below it; of an entry of the tree's log, what there was by then.
            high = next(agent["threadId"] for agent in told["agents"] if agent["agentId"] == 3)
            below = client.call(3, "workspace/changes", threadId=high, below=True)
            assert {file["path"]: file["agentId"] for file in below["files"]} == {
                "here.txt": low,
                "high.txt": 3,
            }
            then = client.call(4, "workspace/changes", threadId=tree, below=True, at=1)
            assert (then["portable"], then["files"], then["conflicts"]) == (True, [], 0)

            # A root without a portable folder: its agents' copies, against what they began with.
            told = client.call(5, "workspace/changes", threadId=copies, below=True)
            files = {file["path"]: [one["agentId"] for one in file["agents"]] for file in told["files"]}
            assert files == {"gone.txt": [2], "here.txt": [1, 2], "left.txt": [1]}
            assert next(file["conflict"]["agents"] for file in told["files"] if file["conflict"]) == [1, 2]
            for id, words, said in (
                (6, {"from": 1}, "entries of one log"),
                (7, {"to": 1}, "entries of one log"),
                (8, {"at": 99_999}, "no entry 99999"),
                (9, {"below": 2}, "below"),
            ):
                error = refused(client, id, "workspace/changes", **{"threadId": tree, "below": True, **words})
                assert (error["code"], said in error["message"]) == (-32602, True), error
