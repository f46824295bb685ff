"""Calls of a client's tools on a WebSocket, across the deaths of the gateway and of the worker."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.cli.machine import Machine, dendro, says
from tests.doors.clients.conftest import machine, redis_server
from tests.doors.test_requests_over_a_wire import Client, Message, client, ended, gateway
from tests.started import Started

__all__ = ["machine", "redis_server"]
pytestmark = [pytest.mark.realredis, pytest.mark.slow]

TOOL = {"type": "function", "name": "lookup", "description": "Looks.", "inputSchema": {"type": "object"}}
CALLS = [{"call": "lookup", "args": {"id": n}, "call_id": f"call_{n}"} for n in (1, 2)]


def asked(client: Client, count: int) -> dict[str, Message]:
    """The requests to call a tool, by their calls, as soon as there are so many."""
    found: dict[str, Message] = {}
    while len(found) < count:
        message = client.until(lambda message: message.get("method") == "item/tool/call")
        found[message["params"]["callId"]] = message
    return found


def worker(user: Machine) -> subprocess.Popen[bytes]:
    return Started(dendro("worker"), cwd=user.folder, env=user.environ)


def approvals(user: Machine, *words: str) -> str:
    done = user.run("approvals", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls_outlive_gateway_and_worker_and_end_by_their_client_or_by_a_person(machine: Machine) -> None:
    with machine.buried.playing(json.dumps([{"items": CALLS}, says("Done.")])) as user:
        with (
            worker(user) as first,
            gateway(user, "ws://127.0.0.1:0") as (door, address),
            client(address) as one,
        ):
            thread = one.call(1, "thread/start", dynamicTools=[TOOL])["thread"]["id"]
            one.call(2, "turn/start", threadId=thread, input=[{"type": "text", "text": "go"}])
            before = asked(one, 2)
            for process in (door, first):
                process.send_signal(signal.SIGKILL)
                process.wait()
        listed = json.loads(approvals(user, "--json"))
        assert [one["request"]["tool"] for one in listed] == ["lookup", "lookup"]
        assert "wait, or end it: mine is to do lookup" in approvals(user)
        with (
            worker(user) as second,
            gateway(user, address),
            client(address) as back,
        ):
            back.call(1, "thread/resume", threadId=thread)
            again = asked(back, 2)
            assert {id: one["params"] for id, one in again.items()} == {
                id: one["params"] for id, one in before.items()
            }
            assert "ended, and its agent told" in approvals(user, thread, "--deny", "0:call_1")
            found = {"success": True, "contentItems": [{"type": "inputText", "text": "found"}]}
            back.send(id=again["call_2"]["id"], result=found)
            done = back.until(ended(thread))
            items = back.call(2, "thread/items/list", threadId=thread)["data"]
            second.terminate()
    assert done["params"]["turn"]["status"] == "completed"
    calls = {one["item"]["id"]: one["item"] for one in items if one["item"]["type"] == "dynamicToolCall"}
    assert [calls[f"call_{n}"]["success"] for n in (1, 2)] == [False, True]
    assert "a person has ended the call" in calls["call_1"]["contentItems"][0]["text"]
