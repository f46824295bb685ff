"""Requests of agents to people: settled once, wherever answered, and reported wherever asked."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.policy import ReviewDecision
from tests.runtime.players import calls, message
from tests.tree.harness import TreeHarness, asks

pytestmark = pytest.mark.realredis


@pytest.fixture
async def child(trees: TreeHarness) -> SessionId:
    """An agent that waits for permission, below a root that waits for it."""
    trees.models.will("root", [asks("a", "spawn", prompt="[a] ask")], [asks("w", "await")], [message("ok")])
    trees.models.will("a", [calls("c1", ask=True)], [message("asked")])
    await trees.plant(policy="untrusted")
    trees.start()
    await trees.harness.until(trees.root, "exec_approval_request")
    return await trees.session_of(1)


async def answers(trees: TreeHarness, session: SessionId, who: str, decision: str, **whom: Any) -> str:
    trees.harness.client.who = who
    op = ops.ExecApproval(id="c1", decision=decision, **whom)  # type: ignore[arg-type]
    return await trees.harness.submit(session, op)


async def told(trees: TreeHarness, session: SessionId) -> dict[str, Any]:
    return (await trees.harness.until(session, "request_resolved"))[-1].msg


async def refusal(trees: TreeHarness, session: SessionId) -> tuple[str, str]:
    event = (await trees.harness.until(session, "error"))[-1]
    return event.id, event.msg["message"]


@pytest.mark.parametrize("at_root", [True, False])
async def test_root_is_told_who_decided_wherever_that_was(
    trees: TreeHarness, child: SessionId, at_root: bool
) -> None:
    await answers(trees, trees.root if at_root else child, "ann", "denied")
    message = await told(trees, trees.root)
    assert (message["call_id"], message["decision"], message["who"]) == ("c1", "denied", "ann")
    assert (message["agent_id"], message["agent_path"], message["session_id"]) == (1, "0/1", child)
    assert (await told(trees, child))["who"] == "ann", "so is whoever sits beside the agent"
    assert await trees.harness.broker.requests.approvals() == ()


async def test_second_of_two_answers_at_the_root_is_told_of_the_first(
    trees: TreeHarness, child: SessionId
) -> None:
    await answers(trees, trees.root, "ann", "approved")
    second = await answers(trees, trees.root, "bob", "denied")
    said = "c1 of agent 1 was already decided: approved, by ann"
    assert await refusal(trees, trees.root) == (second, said)
    await trees.harness.until(trees.root, "task_complete")
    assert trees.tools.started == {"c1": 1}


async def test_second_answer_at_the_agent_is_told_of_the_first_at_the_root(
    trees: TreeHarness, child: SessionId
) -> None:
    await answers(trees, trees.root, "ann", "approved")
    await told(trees, child)
    second = await answers(trees, child, "bob", "denied")
    assert await refusal(trees, child) == (second, "c1 was already decided: approved, by ann")


@pytest.mark.parametrize("named", [{}, {"agent_id": 1}])
async def test_second_answer_at_the_root_is_told_of_the_first_at_the_agent(
    trees: TreeHarness, child: SessionId, named: dict[str, int]
) -> None:
    await answers(trees, child, "ann", "denied")
    await told(trees, trees.root)
    await answers(trees, trees.root, "bob", "denied", **named)
    third = await answers(trees, trees.root, "bob", "approved", **named)
    said = "c1 of agent 1 was already decided: denied, by ann"
    assert await refusal(trees, trees.root) == (third, said), "the same decision again is no trouble"


async def test_second_answer_that_names_its_agent_is_held_against_that_agents_decision(
    trees: TreeHarness,
) -> None:
    """Models of two agents gave their calls one id, and the requests were decided differently."""
    for agent in ("a", "b"):
        trees.models.will(agent, [calls("c1", ask=True)], [message("asked")])
    first = [asks("a", "spawn", prompt="[a] ask"), asks("b", "spawn", prompt="[b] ask")]
    trees.models.will("root", first, [asks("w", "await")], [message("ok")])
    await trees.plant(policy="untrusted")
    trees.start()
    for _ in range(2):
        await trees.harness.until(trees.root, "exec_approval_request")
    for agent_id, decision in ((1, "approved"), (2, "denied")):
        await answers(trees, trees.root, "ann", decision, agent_id=agent_id)
        await told(trees, trees.root)
    await answers(trees, trees.root, "bob", "approved", agent_id=1)
    late = await answers(trees, trees.root, "bob", "approved", agent_id=2)
    said = "c1 of agent 2 was already decided: denied, by ann"
    assert await refusal(trees, trees.root) == (late, said), "what was decided of agent 1 is another matter"


async def test_late_answer_that_names_no_agent_is_held_against_the_last_decision_under_its_id(
    trees: TreeHarness,
) -> None:
    """Models of three agents gave their calls one id."""
    agents = ("a", "b", "d")
    for agent in agents:
        trees.models.will(agent, [calls("c1", ask=True)], [message("asked")])
    first = [asks(agent, "spawn", prompt=f"[{agent}] ask") for agent in agents]
    trees.models.will("root", first, [asks("w", "await")], [message("ok")])
    await trees.plant(policy="untrusted")
    trees.start()
    for _ in agents:
        await trees.harness.until(trees.root, "exec_approval_request")
    for agent_id, decision in ((2, "approved"), (1, "denied"), (3, "denied")):
        await answers(trees, trees.root, f"person {agent_id}", decision, agent_id=agent_id)
        await told(trees, trees.root)
    await answers(trees, trees.root, "bob", "denied")
    late = await answers(trees, trees.root, "bob", "approved")
    said = "c1 of agent 3 was already decided: denied, by person 3"
    assert await refusal(trees, trees.root) == (late, said), "the decision of before it is no matter"


async def test_late_answer_by_the_turn_is_told_of_the_agent_whose_call_was_decided_though_that_asks_again(
    trees: TreeHarness,
) -> None:
    """The turn waits for words by then, which the late answer's op does not give."""
    trees.models.will("root", [asks("a", "spawn", prompt="[a] ask")], [asks("w", "await")], [message("ok")])
    question = {"id": "where", "header": "Where", "question": "Where?"}
    trees.models.will(
        "a",
        [calls("c1", ask=True)],
        [calls("q1", "request_user_input", questions=[question])],
        [message("asked")],
    )
    await trees.plant(policy="untrusted")
    trees.start()
    asked = (await trees.harness.until(trees.root, "exec_approval_request"))[-1]
    turn = asked.id
    await answers(trees, trees.root, "ann", "approved")
    await trees.harness.until(trees.root, "request_user_input")
    trees.harness.client.who = "bob"
    late = await trees.harness.submit(trees.root, ops.ExecApproval(id=turn, decision=ReviewDecision.DENIED))
    said = "c1 of agent 1 was already decided: approved, by ann"
    assert await refusal(trees, trees.root) == (late, said)


async def test_request_leaves_the_root_with_the_turn_that_asked(trees: TreeHarness, child: SessionId) -> None:
    await trees.harness.submit(child, ops.Interrupt())
    assert (await told(trees, trees.root))["decision"] == "withdrawn"
    late = await answers(trees, trees.root, "ann", "approved")
    said = "c1 of agent 1 is not asked any more: its turn has ended"
    assert await refusal(trees, trees.root) == (late, said)


async def test_abort_at_the_root_ends_the_agents_turn_in_a_name(trees: TreeHarness, child: SessionId) -> None:
    await answers(trees, trees.root, "ann", "abort")
    message = await told(trees, trees.root)
    assert (message["decision"], message["who"]) == ("abort", "ann")
    await trees.harness.until(child, "turn_aborted")
    told_of = [fact for fact in await trees.log() if fact.message["type"] == "request_resolved"]
    assert len(told_of) == 1
    await trees.check()
