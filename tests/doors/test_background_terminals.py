"""Processes behind a thread over the app-server, and what its client hears of a call that is not served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.write_items import notifications
from tests.doors.peer import Peer, connected, served
from tests.doors.test_app_server_threads import read
from tests.doors.test_app_server_turns import begun, ports_of, said, working
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message

pytestmark = pytest.mark.realredis
LIST, CLEAN = "thread/backgroundTerminals/list", "thread/backgroundTerminals/clean"


@pytest.fixture
async def server(harness: Harness) -> AsyncIterator[AppServer]:
    async with served(ports_of(harness), notifications) as server, working(harness):
        yield server


@pytest.fixture
async def peer(server: AppServer) -> AsyncIterator[Peer]:
    async with connected(server) as peer:
        await peer.greet(experimentalApi=True)
        yield peer


async def left_behind(peer: Peer, harness: Harness) -> str:
    """A thread whose first turn has left a process."""
    harness.models.will([calls("c1", "exec_command"), ends()], [message("It runs."), ends()])
    thread = await begun(peer)
    await said(peer, thread, "start it")
    await peer.until("turn/completed")
    return thread


async def listed(peer: Peer, thread: str) -> list[tuple[str, str]]:
    found = await read(peer, LIST, "ThreadBackgroundTerminalsListResponse", threadId=thread)
    return [(one["itemId"], one["processId"]) for one in found["data"]]


async def test_processes_of_a_thread_at_rest_are_listed_and_ended(peer: Peer, harness: Harness) -> None:
    thread = await left_behind(peer, harness)
    assert await listed(peer, thread) == [("c1", "1")]
    assert await peer.call(CLEAN, {"threadId": thread}) == {}
    await harness.until(SessionId(thread), "exec_command_end")
    assert harness.tools.killed == ["process 1"]
    assert await listed(peer, thread) == []
    settings = {"sandbox_policy", "approval_policy", "model", "cwd"}
    first, second = await harness.logged_events(SessionId(thread), "session_configured")
    assert {key: first.get(key) for key in settings} == {key: second.get(key) for key in settings}
    assert await peer.call(CLEAN, {"threadId": thread}) == {}, "there is nothing to end"


async def test_processes_of_a_turn_at_work_are_left_to_its_interrupt(peer: Peer, harness: Harness) -> None:
    thread = await left_behind(peer, harness)
    gate = Gate()
    harness.models.will([gate, message("Done."), ends()])
    await said(peer, thread)
    await gate.reached.wait()
    assert await peer.call(CLEAN, {"threadId": thread}) == {}
    (told,) = [heard["params"] for heard in peer.heard if heard.get("method") == "warning"]
    assert told["threadId"] == thread
    assert told["message"].startswith("1 process of this thread still running: a turn is at work")
    assert await listed(peer, thread) == [("c1", "1")]
    gate.open()
    await peer.until("turn/completed")
    assert harness.tools.killed == []


@pytest.mark.parametrize("method", ["thread/goal/set", "thread/goal/clear", "thread/of/the/future"])
async def test_client_reads_in_the_thread_why_a_call_about_it_is_not_served(peer: Peer, method: str) -> None:
    thread = await begun(peer)
    code, why = await peer.refused(method, {"threadId": thread, "objective": "all of it"})
    assert code == Code.UNKNOWN_METHOD
    told = await peer.until("warning")
    assert told == {"threadId": thread, "message": why}


@pytest.mark.parametrize("params", [None, {}, [], {"threadId": 7}, {"threadId": "x" * 100_000}])
async def test_call_that_is_not_served_and_names_no_thread_that_is_heard_warns_nobody(
    peer: Peer, params: Any
) -> None:
    await begun(peer)
    await peer.refused("thread/goal/set", params)
    await peer.call(LIST, {"threadId": await begun(peer)})
    assert "warning" not in peer.methods()
