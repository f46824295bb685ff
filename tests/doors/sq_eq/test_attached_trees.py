"""A client that comes to a tree is told of it: each agent as it stands, and the mail that waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from tests.doors.sq_eq.client import LineClient, gateway, opened
from tests.doors.test_app_server_turns import ports_of
from tests.runtime.connections import Gate
from tests.runtime.players import calls, message
from tests.tree.conftest import redis_server, trees
from tests.tree.harness import TreeHarness, asks

__all__ = ["redis_server", "trees"]


@pytest.fixture
async def parked(trees: TreeHarness) -> AsyncIterator[TreeHarness]:
    """A root with a scout at work, for which a message waits, and below it one that is done."""
    gate = Gate()
    write = asks("c2", "send_message", agent_id=1, prompt="look again")
    spawn = asks("c1", "spawn", label="scout", prompt="[scout] go")
    trees.models.will("root", [spawn], [gate.reached, write])
    trees.models.will(
        "scout",
        [asks("c1", "spawn", label="below", prompt="[below] go")],
        [asks("c2", "await", agent_ids=[2])],
        [gate, message("ok")],
    )
    await trees.plant()
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    await gate.reached.wait()
    yield trees
    gate.open()


def agents_told(client: LineClient) -> list[dict[str, Any]]:
    return [event["msg"] for event in client.heard if event["msg"]["type"] == "subagent_lifecycle"]


async def attached(trees: TreeHarness, session: SessionId, **more: Any) -> LineClient:
    """A client that has heard all that was told before the answer to a wish of its own."""
    async with gateway(ports_of(trees.harness)) as address:
        client = await opened(address, session, **more)
        client.send("models", "list_models")
        await client.until("list_models_response")
        client.cut()
    return client


async def test_client_that_attaches_to_a_root_is_told_of_each_agent_and_of_waiting_mail(
    parked: TreeHarness,
) -> None:
    client = await attached(parked, parked.root)
    told = agents_told(client)
    assert [(each["event"], each["subagent"]["agent_id"]) for each in told] == [
        ("created", 1),
        ("created", 2),
    ]
    assert [each["subagent"]["status"] for each in told] == ["running", "idle"]
    assert [each["subagent"]["label"] for each in told] == ["scout", "below"]
    (inbox,) = [event["msg"] for event in client.heard if event["msg"]["type"] == "agent_inbox"]
    assert (inbox["agent_id"], inbox["pending_messages"], inbox["pending_interrupts"]) == (1, 1, 0)
    assert client.types[:4] == ["session_configured", *["subagent_lifecycle"] * 2, "agent_inbox"]
    assert {event["seq"] for event in client.heard[:4]} == {client.heard[0]["seq"]}


async def test_client_that_attaches_to_an_agent_is_told_of_its_children_and_of_its_own_mail(
    parked: TreeHarness,
) -> None:
    scout = await parked.session_of(1)
    client = await attached(parked, scout)
    assert [each["subagent"]["agent_id"] for each in agents_told(client)] == [2]
    (inbox,) = [event["msg"] for event in client.heard if event["msg"]["type"] == "agent_inbox"]
    assert (inbox["session_id"], inbox["pending_messages"]) == (scout, 1)


@pytest.mark.parametrize("kept", ["all", "the last", "nothing"])
async def test_client_of_a_root_is_sent_each_open_request_of_its_agents_once(
    trees: TreeHarness, kept: str
) -> None:
    for agent in ("a", "b"):
        trees.models.will(agent, [calls("c1", ask=True)], [message("asked")])
    spawns = [asks(agent, "spawn", prompt=f"[{agent}] ask") for agent in ("a", "b")]
    trees.models.will("root", spawns, [asks("w", "await")], [message("ok")])
    await trees.plant(policy="untrusted")
    trees.start()
    for _ in range(2):
        told = await trees.harness.until(trees.root, "exec_approval_request")
    queue, command = trees.harness.broker.keys.eq(trees.root), trees.harness.broker.command
    if kept == "nothing":
        await command("DEL", queue)
    elif kept == "the last":
        await command("XTRIM", queue, "MAXLEN", 1)
    client = await attached(trees, trees.root)
    asked = [event["msg"] for event in client.heard if event["msg"]["type"] == "exec_approval_request"]
    assert sorted(each["agent_id"] for each in asked) == [1, 2]
    assert {each["call_id"] for each in asked} == {"c1"}
    assert told[-1].msg in asked


async def test_client_that_comes_back_with_a_place_is_told_nothing_twice(parked: TreeHarness) -> None:
    first = await attached(parked, parked.root)
    again = await attached(parked, parked.root, last_event=first.heard[0]["seq"])
    assert agents_told(again) == []
