"""Requests of agents to people: settled once, wherever answered, and reported wherever asked."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from tests.runtime.players import calls, message
from tests.tree.forest import Forest, asks

pytestmark = pytest.mark.realredis


@pytest.fixture
async def child(forest: Forest) -> SessionId:
    """An agent that waits for permission, below a root that waits for it."""
    forest.minds.will("root", [asks("a", "spawn", prompt="[a] ask")], [asks("w", "await")], [message("ok")])
    forest.minds.will("a", [calls("c1", ask=True)], [message("asked")])
    await forest.plant(policy="untrusted")
    forest.start()
    await forest.stage.until(forest.root, "exec_approval_request")
    return await forest.session_of(1)


async def answers(forest: Forest, session: SessionId, who: str, decision: str, **whom: Any) -> str:
    forest.stage.client.who = who
    op = ops.ExecApproval(id="c1", decision=decision, **whom)  # type: ignore[arg-type]
    return await forest.stage.submit(session, op)


async def told(forest: Forest, session: SessionId) -> dict[str, Any]:
    return (await forest.stage.until(session, "request_resolved"))[-1].msg


async def refusal(forest: Forest, session: SessionId) -> tuple[str, str]:
    event = (await forest.stage.until(session, "error"))[-1]
    return event.id, event.msg["message"]


@pytest.mark.parametrize("at_root", [True, False])
async def test_root_is_told_who_decided_wherever_that_was(
    forest: Forest, child: SessionId, at_root: bool
) -> None:
    await answers(forest, forest.root if at_root else child, "ann", "denied")
    message = await told(forest, forest.root)
    assert (message["call_id"], message["decision"], message["who"]) == ("c1", "denied", "ann")
    assert (message["agent_id"], message["agent_path"], message["session_id"]) == (1, "0/1", child)
    assert (await told(forest, child))["who"] == "ann", "so is whoever sits beside the agent"
    assert await forest.stage.broker.approvals() == ()


async def test_second_of_two_answers_at_the_root_is_told_of_the_first(
    forest: Forest, child: SessionId
) -> None:
    await answers(forest, forest.root, "ann", "approved")
    second = await answers(forest, forest.root, "bob", "denied")
    said = "c1 of agent 1 was already decided: approved, by ann"
    assert await refusal(forest, forest.root) == (second, said)
    await forest.stage.until(forest.root, "task_complete")
    assert forest.tools.started == {"c1": 1}


async def test_second_answer_at_the_agent_is_told_of_the_first_at_the_root(
    forest: Forest, child: SessionId
) -> None:
    await answers(forest, forest.root, "ann", "approved")
    await told(forest, child)
    second = await answers(forest, child, "bob", "denied")
    assert await refusal(forest, child) == (second, "c1 was already decided: approved, by ann")


@pytest.mark.parametrize("named", [{}, {"agent_id": 1}])
async def test_second_answer_at_the_root_is_told_of_the_first_at_the_agent(
    forest: Forest, child: SessionId, named: dict[str, int]
) -> None:
    await answers(forest, child, "ann", "denied")
    await told(forest, forest.root)
    await answers(forest, forest.root, "bob", "denied", **named)
    third = await answers(forest, forest.root, "bob", "approved", **named)
    said = "c1 of agent 1 was already decided: denied, by ann"
    assert await refusal(forest, forest.root) == (third, said), "the same decision again is no trouble"


async def test_request_leaves_the_root_with_the_turn_that_asked(forest: Forest, child: SessionId) -> None:
    await forest.stage.submit(child, ops.Interrupt())
    assert (await told(forest, forest.root))["decision"] == "withdrawn"
    late = await answers(forest, forest.root, "ann", "approved")
    said = "c1 of agent 1 is not asked any more: its turn has ended"
    assert await refusal(forest, forest.root) == (late, said)


async def test_abort_at_the_root_ends_the_agents_turn_in_a_name(forest: Forest, child: SessionId) -> None:
    await answers(forest, forest.root, "ann", "abort")
    message = await told(forest, forest.root)
    assert (message["decision"], message["who"]) == ("abort", "ann")
    await forest.stage.until(child, "turn_aborted")
    told_of = [fact for fact in await forest.log() if fact.message["type"] == "request_resolved"]
    assert len(told_of) == 1
    await forest.check()
