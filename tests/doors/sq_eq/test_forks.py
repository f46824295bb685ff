"""Forks over lines: a connection opens a session that goes on where another stands, or where a turn ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.gateways.client import Client
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.wires.addresses import Address
from tests.doors.sq_eq import client as clients
from tests.doors.sq_eq.client import LineClient, connect, gateway, opened
from tests.doors.test_app_server_fork import forks
from tests.doors.test_app_server_turns import ports_of, working
from tests.runtime.harness import Harness
from tests.runtime.players import ends, message

pytestmark = pytest.mark.realredis


@pytest.fixture
async def address(harness: Harness) -> AsyncIterator[Address]:
    async with working(harness), gateway(ports_of(harness, fork=forks(harness))) as address:
        yield address


async def talked(harness: Harness, address: Address) -> str:
    """A session of two turns, whose responses are `resp-1` and `resp-2`."""
    harness.models.will((message("One."), ends("resp-1")), (message("Two."), ends("resp-2")))
    client = await opened(address)
    for id, text in (("u1", "apple"), ("u2", "banana")):
        client.say(id, text)
        await client.until("task_complete")
    client.cut()
    return str(client.heard[0]["msg"]["session_id"])


async def forked(address: Address, session: str, **more: Any) -> LineClient:
    return await opened(address, None, forked_from_id=session, **more)


def said(events: list[dict[str, Any]]) -> list[str]:
    return [event["message"] for event in events if event["type"] == "user_message"]


@pytest.mark.parametrize(
    ("more", "kept"),
    [({}, ["apple", "banana"]), ({"last_response_id": "resp-1"}, ["apple"])],
    ids=["where-it-stands", "at-a-turn"],
)
async def test_client_of_lines_goes_on_from_a_session_in_one_of_its_own(
    harness: Harness, address: Address, more: dict[str, str], kept: list[str]
) -> None:
    source = await talked(harness, address)
    client = await forked(address, source, **more)
    configured = client.heard[0]["msg"]
    assert configured["session_id"] != source
    assert configured["forked_from_id"] == source
    assert said(configured["initial_messages"]) == kept
    client.say("u3", "cherry")
    await client.until("task_complete")
    asked = [
        part["text"]
        for item in harness.models.prompts[-1].input
        for part in item.get("content", ())
        if item.get("role") == "user"
    ]
    assert [text for text in asked if text in ("apple", "banana", "cherry")] == [*kept, "cherry"]
    client.cut()


async def test_place_of_a_fork_is_come_back_to_without_a_gap_or_a_repeat(
    harness: Harness, address: Address
) -> None:
    client = await forked(address, await talked(harness, address))
    client.say("u3")
    await client.until("task_complete")
    back = await opened(address, client.heard[0]["msg"]["session_id"], last_event=client.heard[0]["seq"])
    await back.until("task_complete")
    assert back.heard[1:] == client.heard[1:]
    client.cut()
    back.cut()


@pytest.mark.parametrize(
    ("op", "more", "reason"),
    [
        ({}, {"last_response_id": "resp-1"}, "needs the forked_from_id"),
        ({}, {"forked_from_id": 7}, "forked_from_id: a text of 1 to 1024 characters"),
        ({}, {"forked_from_id": ""}, "forked_from_id: a text of 1 to 1024 characters"),
        ({}, {"last_response_id": "x" * 1025}, "last_response_id: a text of 1 to 1024 characters"),
        ({}, {"forked_from_id": "0199a2b4-0000-7000-8000-000000000000"}, "unknown session"),
        ({"session_id": "SOURCE"}, {"forked_from_id": "SOURCE"}, "leave session_id out"),
        ({"workspace": {"git": "https://example.com/x"}}, {"forked_from_id": "SOURCE"}, "where its source"),
        ({}, {"forked_from_id": "SOURCE", "last_response_id": "resp-9"}, "ended with response resp-9"),
    ],
)
async def test_fork_that_cannot_be_is_refused_with_the_reason(
    harness: Harness, address: Address, op: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    source = await talked(harness, address)
    client = await connect(address)
    named = [{key: source if value == "SOURCE" else value for key, value in d.items()} for d in (op, more)]
    client.send("1", {"type": "configure_session", **named[0]}, **named[1])
    (event,) = await client.rest()
    assert event["id"] == "1"
    assert event["msg"]["type"] == "error"
    assert reason in event["msg"]["message"]
    client.cut()


async def test_client_forks_neither_a_session_of_another_namespace_nor_with_a_readers_token(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clients.TOKENS, "acme", Principal("acme/ci", "acme", Scope.ADMIN, "acme"))

    def client(principal: Principal, via: str) -> Client:
        return Client(harness.client._ports, f"of-{principal.name}", principal.name, principal.namespace)

    async with gateway(ports_of(harness, client=client, fork=forks(harness))) as address:
        session = str(await harness.session())
        for token, reason in (("acme", "unknown session"), ("read", "needs the scope submit")):
            stranger = await connect(address)
            stranger.send("1", "configure_session", auth=token, forked_from_id=session)
            (refused,) = await stranger.rest()
            assert reason in refused["msg"]["message"]
            stranger.cut()
