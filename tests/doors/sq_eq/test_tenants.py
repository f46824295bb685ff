"""Tenants and crowds at one gateway: nobody sees another's sessions, nobody holds up another."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.core.entries import decode_entry
from orchestrator.gateways.client import Client
from orchestrator.gateways.principals import Principal, Scope
from tests.doors.sq_eq import client as clients
from tests.doors.sq_eq.client import connect, gateway, opened
from tests.doors.test_app_server_turns import ports_of, working
from tests.runtime.harness import Harness


async def test_session_of_another_namespace_answers_as_one_that_does_not_exist(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clients.TOKENS, "acme", Principal("acme/ci", "acme", Scope.ADMIN, "acme"))

    def client(principal: Principal, via: str) -> Client:
        return Client(harness.client._ports, f"of-{principal.name}", principal.name, principal.namespace)

    async with gateway(ports_of(harness, client=client)) as address:
        session = str(await harness.session())
        said = []
        for wanted in (session, "0199a2b4-0000-7000-8000-000000000000"):
            stranger = await connect(address)
            op = {"type": "configure_session", "session_id": wanted}
            stranger.send("1", op, auth="acme", last_event=0)
            (refused,) = await stranger.rest()
            said.append(refused["msg"]["message"].replace(wanted, "X"))
            stranger.cut()
        assert said[0] == said[1]
        owner = await opened(address, session)
        owner.cut()


async def test_log_says_who_sent_what_by_the_door_and_not_by_what_the_client_says_of_itself(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        clients.TOKENS, "ci", Principal("ci", "", Scope.APPROVE, "ab12", subject="https://i|ci")
    )
    forged = {"who": "root@elsewhere", "namespace": "", "scope": "admin", "via": "cli", "token": "machine"}
    async with working(harness), gateway(ports_of(harness)) as address:
        client = await opened(address, auth="ci", by=forged)
        client.send(
            "u1", {"type": "user_input", "items": [{"type": "text", "text": "go"}], "by": forged}, by=forged
        )
        await client.until("task_complete")
        client.cut()
    session = next(event["msg"]["session_id"] for event in client.heard if "session_id" in event["msg"])
    entries = [decode_entry(each.payload) for each in await harness.broker.logs.read_rollout(session)]
    told = [entry.payload["by"] for entry in entries if entry.payload.get("kind") == "task"]
    assert told == [
        {
            "who": "ci",
            "namespace": "",
            "scope": "approve",
            "via": "sq-eq",
            "token": "ab12",
            "subject": "https://i|ci",
        }
    ]


async def test_hundreds_of_silent_connections_hold_up_nobody(harness: Harness) -> None:
    async with working(harness), gateway(ports_of(harness)) as address:
        crowd = await asyncio.gather(*(connect(address) for _ in range(300)))
        client = await opened(address)
        for number in range(200):
            client.send(f"never-{number}", {"type": "exec_approval", "id": "none", "decision": "approved"})
        client.say("u1")
        await client.until("task_complete")
        for each in (*crowd, client):
            each.cut()
