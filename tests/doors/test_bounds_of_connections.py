"""Requests and listeners of one connection: how many may wait, and that each that is taken is answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import client_connection
from orchestrator.gateways.app_server import door as door_module
from orchestrator.gateways.app_server.client_connection import WAITING_MOST
from orchestrator.gateways.app_server.messages import Code, RpcError
from orchestrator.gateways.app_server.method import Method, NoParams
from orchestrator.gateways.app_server.methods import METHODS, v1
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import Scope
from tests.doors.peer import Peer, connected, served
from tests.doors.ports import ports
from tests.doors.test_door_of_several_threads import OTHER, ROOT, Sent

WAITS = "thread/turns/list"
"""A method that waits, which a test has in its hand here."""


class Held:
    """The answers of a method, which come when a test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.go = asyncio.Event()
        method = Method(NoParams, self._answer, Scope.READ, waits=True)
        monkeypatch.setattr(client_connection, "METHODS", {**METHODS, WAITS: method})

    async def _answer(self, door: Any, params: Any) -> dict[str, Any]:
        self.begun += 1
        await self.go.wait()
        return {}


def asks(peer: Peer, count: int, first: int = 1_000) -> list[int]:
    ids = list(range(first, first + count))
    for id in ids:
        peer.send({"id": id, "method": WAITS, "params": {}})
    return ids


async def answered(peer: Peer, ids: list[int]) -> None:
    left = set(ids)
    while left:
        message = await peer.next()
        assert message["result"] == {}
        left.remove(message["id"])


async def test_request_too_many_of_those_that_wait_is_refused_at_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(monkeypatch)
    async with (
        served(ports(), notifications) as server,
        connected(server) as peer,
        connected(server) as other,
    ):
        for one in (peer, other):
            await one.greet()
        ids = asks(peer, WAITING_MOST)
        for _ in range(2):
            refused = await peer.refused(WAITS)
            assert refused == (Code.OVERLOADED, f"{WAITING_MOST} requests of this connection wait")
        others = asks(other, 2)
        await peer.call("account/rateLimits/read")
        assert (await other.refused("no/such"))[0] == Code.UNKNOWN_METHOD
        assert held.begun == WAITING_MOST + 2
        held.go.set()
        await answered(peer, ids)
        await answered(other, others)
        await answered(peer, asks(peer, WAITING_MOST, 2_000))


@pytest.mark.parametrize("waiting", [1, 2, WAITING_MOST])
async def test_client_that_ends_its_input_is_answered_all_that_it_has_asked(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with served(ports(), notifications) as server, connected(server) as peer:
        await peer.greet()
        ids = asks(peer, waiting)
        await peer.call("account/rateLimits/read")
        peer.leave()
        while peer.wire.incoming.qsize():
            await asyncio.sleep(0)
        # The server has read the end by now, and its tasks have had their turns.
        for _ in range(10):
            await asyncio.sleep(0)
        held.go.set()
        await answered(peer, ids)


@pytest.mark.parametrize("sessions", [(ROOT,), (ROOT, OTHER)])
async def test_listener_too_many_of_a_connection_is_refused_whatever_it_listens_to(
    sessions: tuple[SessionId, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conversation(door: Any, id: str) -> Any:
        return SimpleNamespace(session=SessionId(id))

    async def nothing(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(v1, "conversation", conversation)
    monkeypatch.setattr(door_module, "open_requests", nothing)
    monkeypatch.setattr(door_module, "MOST_LISTENERS", 4)
    full, other = Sent(), Sent()

    async def add(client: Sent, number: int) -> str:
        named = v1.OfConversation.model_validate({"conversationId": sessions[number % len(sessions)]})
        return str((await v1.add_listener(client.door, named))["subscriptionId"])

    ids = [await add(full, number) for number in range(4)]
    for number in range(2):
        with pytest.raises(RpcError) as refused:
            await add(full, number)
        assert refused.value.code == Code.OVERLOADED
        await add(other, number)
    await v1.remove_listener(full.door, v1.RemoveListener.model_validate({"subscriptionId": ids[2]}))
    await add(full, 0)
    with pytest.raises(RpcError):
        await add(full, 1)


async def test_name_that_a_client_gives_itself_is_that_of_all_that_its_connection_hands_in() -> None:
    names: dict[int, list[str]] = {}

    def client(principal: Any, via: str) -> Any:
        number = len(names)
        names[number] = []
        return SimpleNamespace(calling_itself=names[number].append)

    async with served(ports(client=client), notifications) as server, connected(server) as peer:
        before = len(names)
        await peer.greet()
        later = [peer.door.new_client(), peer.door.new_client()]
        assert len(names) == before + len(later)
    # The client of turns, the one of answers, and the one of version 1's answers.
    assert before >= 3
    assert list(names.values()) == [["golden"]] * len(names)
