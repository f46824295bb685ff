"""Agents' threads over the app-server: heard with their root, and asked for by the same client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.machine import Machine, dendro
from tests.cli.parked_tree import worker
from tests.started import Started

pytestmark = pytest.mark.realredis

ASK = {
    "command": ["bash", "-c", "echo made > made.txt"],
    "with_escalated_permissions": True,
    "justification": "It writes.",
}
SCENARIO = {
    "steps": [
        {"items": [{"call": "subagent_spawn", "args": {"label": "one", "prompt": "Do it."}}]},
        {"items": [{"call": "subagent_await", "args": {"agent_ids": [1]}}]},
        {"items": [{"text": "All done."}]},
    ],
    "agents": [
        {
            "label": "one",
            "steps": [{"items": [{"call": "shell", "args": ASK}]}, {"items": [{"text": "Child done."}]}],
        }
    ],
}


class Client:
    """A client on standard input and output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.heard: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.heard.append(json.loads(line))
            if wanted(self.heard[-1]):
                return self.heard[-1]
        raise AssertionError(f"the server has ended; it said {self.heard[-3:]}")

    def call(self, id: int, method: str, **params: Any) -> Any:
        self.send(id=id, method=method, params=params)
        return self.until(lambda message: message.get("id") == id)["result"]


@contextmanager
def served(user: Machine, *words: str) -> Iterator[Client]:
    """A client of a server of its own, which has greeted; the server is killed at the end."""
    command = dendro("app-server", "--config", "approval_policy=on-request", *words)
    with Started(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=user.folder,
        env=user.environ,
    ) as process:
        client = Client(process)
        client.call(1, "initialize", clientInfo={"name": "mine", "version": "1"})
        try:
            yield client
        finally:
            process.kill()


def is_asked(message: dict[str, Any]) -> bool:
    return str(message.get("method")).endswith("/requestApproval")


def test_client_that_comes_back_to_a_root_is_told_of_its_agents_and_asked_for_them(machine: Machine) -> None:
    with machine.playing(json.dumps(SCENARIO)) as user:
        with worker(user), served(user, "--no-worker") as first:
            root = first.call(2, "thread/start")["thread"]["id"]
            first.call(3, "turn/start", threadId=root, input=[{"type": "text", "text": "go"}])
            child = first.until(is_asked)["params"]["threadId"]
        with worker(user), served(user, "--no-worker") as back:
            back.call(2, "thread/resume", threadId=root)
            request = back.until(is_asked)
            assert request["params"]["threadId"] == child
            started = [m["params"]["thread"] for m in back.heard if m.get("method") == "thread/started"]
            assert [(one["id"], one["parentThreadId"]) for one in started] == [(child, root)]
            assert {root, child} <= set(back.call(4, "thread/loaded/list")["data"])
            back.send(id=request["id"], result={"decision": "accept"})
            back.until(lambda m: m.get("method") == "turn/completed" and m["params"]["threadId"] == root)
    assert (machine.folder / "made.txt").read_text() == "made\n"


def test_client_of_a_root_hears_its_agents_and_answers_what_they_ask(machine: Machine) -> None:
    with (
        machine.playing(json.dumps(SCENARIO)) as user,
        Started(
            dendro("app-server", "--config", "approval_policy=on-request"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=user.folder,
            env=user.environ,
        ) as process,
    ):
        client = Client(process)
        client.call(1, "initialize", clientInfo={"name": "mine", "version": "1"})
        root = client.call(2, "thread/start")["thread"]["id"]
        client.call(3, "turn/start", threadId=root, input=[{"type": "text", "text": "go"}])
        request = client.until(lambda message: str(message.get("method")).endswith("/requestApproval"))
        child = request["params"]["threadId"]
        client.send(id=request["id"], result={"decision": "accept"})
        done = client.until(
            lambda message: (
                message.get("method") == "turn/completed" and message["params"]["threadId"] == root
            )
        )
        read = client.call(4, "thread/read", threadId=child, includeTurns=True)["thread"]["turns"]
        listed = client.call(5, "thread/turns/list", threadId=child)["data"]
    live = [m["params"] for m in client.heard if m.get("method") in ("turn/started", "turn/completed")]
    of_child = [params["turn"] for params in live if params["threadId"] == child]
    root_turn = done["params"]["turn"]["id"]
    assert [turn["rootTurnId"] for turn in (*of_child, *read, *listed)] == [root_turn] * 4
    told = [message for message in client.heard if message.get("params", {}).get("threadId") == child]
    started = [m["params"]["thread"] for m in client.heard if m.get("method") == "thread/started"]
    assert [thread["id"] for thread in started] == [root, child]
    assert (started[1]["parentThreadId"], started[1]["agentNickname"]) == (root, "one")
    assert told[0]["method"] == "thread/status/changed"
    assert "serverRequest/resolved" in [message["method"] for message in told]
    assert done["params"]["turn"]["items"][0]["text"] == "All done."
    assert (machine.folder / "made.txt").read_text() == "made\n"


def test_client_that_reads_gets_a_message_that_is_longer_than_what_may_wait(machine: Machine) -> None:
    long = "All of this is said. " * 430_000
    scenario = {"steps": [{"items": [{"text": long}]}]}
    with machine.playing(json.dumps(scenario)) as user, worker(user), served(user, "--no-worker") as client:
        thread = client.call(2, "thread/start")["thread"]["id"]
        client.call(3, "turn/start", threadId=thread, input=[{"type": "text", "text": "go"}])
        done = client.until(lambda message: message.get("method") == "turn/completed")
        client.call(4, "thread/loaded/list")
    assert done["params"]["turn"]["items"][0]["text"] == long
    told = [m["params"]["delta"] for m in client.heard if m.get("method") == "item/agentMessage/delta"]
    assert "".join(told) == long
