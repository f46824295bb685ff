"""Forks over the app-server: a thread begins with the turns of another one, up to the place that is named."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.birth import Birth, ForkedFrom
from orchestrator.core.ids import AgentId, TreeId, new_session_id
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.door_ports import Born, NewThread
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.client import Client
from orchestrator.gateways.principals import Principal
from tests.doors.peer import Peer, connected, served
from tests.doors.test_app_server_threads import read, talked
from tests.doors.test_app_server_turns import HELLO, begun, ports_of, said, working
from tests.runtime.connections import Gate
from tests.runtime.harness import POOL, Harness

pytestmark = pytest.mark.realredis


def forks(harness: Harness) -> Callable[[Client, Principal, ForkedFrom, NewThread], Awaitable[Born]]:
    """The maker of forks of a gateway, without settings of its own."""

    async def fork(client: Client, principal: Principal, source: ForkedFrom, wish: NewThread) -> Born:
        now_ms = int(time.time() * 1000)
        session = new_session_id(now_ms, 1, secrets.randbits(62))
        facts = SessionFacts(session, TreeId(session), AgentId(0), POOL)
        settings = TurnSettings("/tmp", "never", {"mode": "danger-full-access"}, "gpt-5")
        await client.create(replace(Birth(facts, settings, "0", now_ms), source=source))
        head = await harness.broker.logs.head(session)
        assert head is not None
        return Born(head, settings)

    return fork


@pytest.fixture
async def server(harness: Harness) -> AsyncIterator[AppServer]:
    ports = ports_of(harness, fork=forks(harness))
    async with served(ports, notifications) as server, working(harness):
        yield server


@pytest.fixture
async def peer(server: AppServer) -> AsyncIterator[Peer]:
    async with connected(server) as peer:
        await peer.greet(experimentalApi=True)
        yield peer


async def turns_of(peer: Peer, thread: str) -> list[str]:
    """The ids of a thread's turns, oldest first."""
    found = await peer.call("thread/turns/list", {"threadId": thread, "sortDirection": "asc"})
    return [turn["id"] for turn in found["data"]]


async def test_fork_begins_with_the_turns_up_to_the_one_that_is_named(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one", "banana", "three")
    first, second, third = await turns_of(peer, thread)
    for where, kept in (
        ({"lastTurnId": first}, [first]),
        ({"beforeTurnId": third}, [first, second]),
        ({}, [first, second, third]),
    ):
        fork = await read(peer, "thread/fork", "ThreadForkResponse", threadId=thread, **where)
        assert fork["thread"]["forkedFromId"] == thread
        assert [turn["id"] for turn in fork["thread"]["turns"]] == kept
        assert await turns_of(peer, fork["thread"]["id"]) == kept
    assert await turns_of(peer, thread) == [first, second, third]


async def test_fork_goes_on_by_itself_and_is_heard_by_who_made_it(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one", "banana")
    first, _ = await turns_of(peer, thread)
    fork = await peer.call("thread/fork", {"threadId": thread, "lastTurnId": first, "excludeTurns": True})
    own: str = fork["thread"]["id"]
    assert fork["thread"]["turns"] == []
    assert (await peer.until("thread/started"))["thread"]["id"] == own
    harness.models.will(HELLO)
    turn = await said(peer, own, "other")
    assert (await peer.until("turn/completed"))["threadId"] == own
    assert "banana" not in str(harness.models.prompts[-1].input)
    assert await turns_of(peer, own) == [first, turn]
    again = await read(peer, "thread/fork", "ThreadForkResponse", threadId=own, lastTurnId=first)
    assert [one["id"] for one in again["thread"]["turns"]] == [first]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"lastTurnId": "nowhere"}, "turn not found: nowhere"),
        ({"lastTurnId": "a", "beforeTurnId": "b"}, "give one of them"),
    ],
)
async def test_place_that_there_is_not_is_refused(
    peer: Peer, harness: Harness, where: dict[str, Any], words: str
) -> None:
    thread = await talked(peer, harness, "one")
    _, text = await peer.refused("thread/fork", {"threadId": thread, **where})
    assert words in text
    (first,) = await turns_of(peer, thread)
    _, text = await peer.refused("thread/fork", {"threadId": thread, "beforeTurnId": first})
    assert "nothing comes before" in text


async def test_turn_that_runs_is_no_place_to_fork_at(peer: Peer, harness: Harness) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([gate, *HELLO])
    turn = await said(peer, thread)
    await peer.until("turn/started")
    code, text = await peer.refused("thread/fork", {"threadId": thread, "lastTurnId": turn})
    assert (code, "has not ended" in text) == (Code.REFUSED, True)
    gate.open()
    await peer.until("turn/completed")


async def test_thread_is_listed_and_forked_as_it_was_at_an_entry_of_its_tree_s_log(
    peer: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    for number, words in enumerate(("banana", "three"), 1):
        asked = {"treeId": thread, "requestId": f"r{number}", "add": {"slots": number}}
        await peer.call("budget/add", asked)
        harness.models.will(HELLO)
        await said(peer, thread, words)
        await peer.until("turn/completed")
    turns = await turns_of(peer, thread)
    for at, kept in ((1, turns[:1]), (2, turns[:2])):
        listed = await peer.call("thread/turns/list", {"threadId": thread, "at": at, "sortDirection": "asc"})
        assert [turn["id"] for turn in listed["data"]] == kept
        assert listed["data"][-1]["status"] == "completed"
        first = await peer.call("thread/items/list", {"threadId": thread, "at": at, "limit": 1})
        where = {"threadId": thread, "at": at, "cursor": first["nextCursor"]}
        items = first["data"] + (await peer.call("thread/items/list", where))["data"]
        assert list(dict.fromkeys(item["turnId"] for item in items)) == kept
        fork = await read(peer, "thread/fork", "ThreadForkResponse", threadId=thread, at=at)
        assert [turn["id"] for turn in fork["thread"]["turns"]] == kept
        assert fork["thread"]["forkedFromId"] == thread


async def test_fork_at_an_entry_within_a_turn_goes_on_behind_the_turn_before(
    peer: Peer, harness: Harness
) -> None:
    thread, gate = await begun(peer), Gate()
    await peer.call("budget/add", {"treeId": thread, "requestId": "r0", "add": {"slots": 1}})
    harness.models.will(HELLO)
    await said(peer, thread, "one")
    await peer.until("turn/completed")
    harness.models.will([gate, *HELLO])
    await said(peer, thread, "two")
    await peer.until("turn/started")
    await peer.call("budget/add", {"treeId": thread, "requestId": "r1", "add": {"slots": 1}})
    gate.open()
    await peer.until("turn/completed")
    first, second = await turns_of(peer, thread)
    fork = await peer.call("thread/fork", {"threadId": thread, "at": 2})
    assert [turn["id"] for turn in fork["thread"]["turns"]] == [first]
    (_, then) = (await peer.call("thread/turns/list", {"threadId": thread, "at": 2, "sortDirection": "asc"}))[
        "data"
    ]
    assert (then["id"], then["status"]) == (second, "inProgress")
    for wrong, words in (({"at": 1}, "had ended at entry 1"), ({"at": 3}, "no entry 3"), ({"at": 0}, "at")):
        assert words in (await peer.refused("thread/fork", {"threadId": thread, **wrong}))[1]
    for method in ("thread/items/list", "thread/turns/list"):
        assert "no entry 3" in (await peer.refused(method, {"threadId": thread, "at": 3}))[1]
    _, text = await peer.refused("thread/fork", {"threadId": thread, "at": 2, "lastTurnId": first})
    assert "give one of them" in text
