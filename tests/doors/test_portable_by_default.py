"""Clients that cannot choose their folder, at each door of a gateway that says where they work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult
from websockets.sync.client import connect

from orchestrator.sandbox.probe import probe
from tests.cli.machine import Machine, says
from tests.doors.clients.conftest import machine, redis_server
from tests.doors.sq_eq.test_serve import Client as LineClient
from tests.doors.sq_eq.test_serve import serving, working
from tests.doors.test_mcp_server_page import client_of
from tests.doors.test_requests_over_a_wire import Client, ended

__all__ = ["machine", "redis_server"]
pytestmark = [
    pytest.mark.realredis,
    pytest.mark.slow,
    pytest.mark.sandbox,
    pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here"),
]

COMMAND = {"command": ["bash", "-c", "ls; echo more >> made.txt"]}
GO = [{"type": "text", "text": "go"}]


@contextmanager
def at_work(machine: Machine) -> Iterator[Machine]:
    """The machine with a folder, and a model that writes a file in each session."""
    (machine.folder / "here.txt").write_text("here\n")
    steps = [{"items": [{"call": "shell", "args": COMMAND}]}, says("Made.")]
    with machine.playing(json.dumps({"per_session": True, "steps": steps})) as user:
        yield user
    assert [path.name for path in machine.folder.iterdir()] == ["here.txt"]


def seen(user: Machine, session: str) -> tuple[bool, bool]:
    """Whether the session saw the file of the folder, and whether it has made one of its own."""
    return "here.txt" in user.run("logs", session).stdout, "made.txt" in user.run("diff", session).stdout


def by_lines(socket: Path, **op: Any) -> dict[str, str]:
    """The sessions that a client of lines makes, and works in, without the word `workspace`."""
    client = LineClient(socket)
    client.send(json.dumps({"id": "1", "op": {"type": "configure_session", "model": "gpt-5", **op}}))
    session = client.until("session_configured")["msg"]["session_id"]
    client.send(json.dumps({"id": "2", "op": {"type": "user_input", "items": GO}}))
    client.until("task_complete")
    # The folder of the first line is not submitted once more, as one of the session's.
    assert "error" not in client.heard
    client.close()
    return {"lines": session}


def by_messages(address: str, cwd: Path, token: str) -> dict[str, str]:
    """The sessions that clients of both versions of the app-server make, and work in."""
    made = {}
    with connect(address, max_size=None) as wire:
        client = Client(wire)
        made["v2"] = client.call(1, "thread/start", cwd=str(cwd))["thread"]["id"]
        client.call(2, "turn/start", threadId=made["v2"], input=GO)
        client.until(ended(made["v2"]))
        made["v1"] = client.call(3, "newConversation")["conversationId"]
        client.call(4, "addConversationListener", conversationId=made["v1"])
        said = [{"type": "text", "data": {"text": "go"}}]
        sandbox = {"mode": "workspace-write"}
        turn: dict[str, Any] = {
            "cwd": ".",
            "approvalPolicy": "never",
            "sandboxPolicy": sandbox,
            "model": "gpt-5",
        }
        turn |= {"conversationId": made["v1"], "items": said, "summary": "auto"}
        client.call(5, "sendUserTurn", **turn)
        client.until(lambda message: message.get("method") == "codex/event/task_complete")
    with connect(address, max_size=None, additional_headers={"Authorization": f"Bearer {token}"}) as wire:
        made["host"] = Client(wire).call(1, "thread/start", cwd=str(cwd))["thread"]["id"]
    return made


def test_clients_of_every_protocol_work_in_copies_and_a_token_is_heard_first(machine: Machine) -> None:
    lines = machine.folder.parent / "lines.sock"
    words = ("-c", "gateway.workspace=portable", "--listen")
    user_words = ("token", "new", "ben", "--scope", "approve", "--workspace", "host")
    with at_work(machine) as user, working(user):
        token = user.run(*user_words).stdout.strip()
        with serving(user, *words, f"unix://{lines}"):
            made = by_lines(lines, cwd=str(user.folder))
        with serving(user, *words, "ws://127.0.0.1:0") as (_, address):
            made |= by_messages(address, user.folder, token)
        assert seen(user, made["lines"]) == (True, True)
        assert seen(user, made["v2"]) == (True, True)
        assert seen(user, made["v1"]) == (False, True)
        listed = json.loads(user.run("sessions", "--json", "--all").stdout)
        folders = {one["session_id"]: one["cwd"] for one in listed}
    assert folders[made["host"]] == str(machine.folder)
    root = Path(machine.environ["DENDRO_HOME"], "workspaces")
    for door, name in {"lines": "workspace", "v2": "workspace", "v1": "work"}.items():
        assert folders[made[door]] == str(root / made[door] / name)


async def test_tool_of_an_mcp_client_works_in_a_copy_of_the_servers_folder(machine: Machine) -> None:
    with at_work(machine) as user:
        async with client_of(user, "-c", "gateway.workspace=portable") as (client, _):
            done = await client.call_tool("run", {"prompt": "go", "sandbox": "read-only"})
            refused = await client.call_tool("run", {"prompt": "go", "config": {"gateway.workspace": "host"}})
        assert isinstance(done, CallToolResult)
        assert isinstance(refused, CallToolResult)
        assert done.structured_content is not None
        session = done.structured_content["threadId"]
        assert "here.txt" in user.run("logs", session).stdout
        assert user.run("diff", session).returncode == 0
    assert "only a person may set gateway.workspace" in str(refused.content)
