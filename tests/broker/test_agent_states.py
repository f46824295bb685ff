"""The states of a tree's agents, in the hash of its root: kept by the scripts that change it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.broker import trees
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import call
from orchestrator.broker.records import AgentStates, Claimed, Committed
from orchestrator.core.commit_parts import NewSession
from orchestrator.core.ids import AgentId, SessionId, TreeId
from tests.broker.actors import claimed, new_session, step, submitted, working


async def states(broker: Broker, root: SessionId) -> AgentStates:
    head = await broker.logs.head(root)
    assert head is not None
    return AgentStates.of(head.states)


def agent(held: Claimed, number: int) -> NewSession:
    return new_session(tree=held.claim.tree, agent_id=AgentId(number), parent=held.claim.session)


async def does(broker: Broker, at: Claimed | Committed, held: Claimed, id: str, **more: Any) -> Committed:
    done = await broker.commits.commit(step(at, held.claim, id, **more))
    assert isinstance(done, Committed)
    return done


async def test_agents_are_counted_as_they_are_born_and_come_to_a_status(broker: Broker) -> None:
    held = await working(broker)
    root = held.claim.session
    assert await states(broker, root) == AgentStates(((0, None, "idle"),), {"idle": 1})
    first, eleventh = agent(held, 1), agent(held, 11)
    at = await does(broker, held, held, "makes", children=(eleventh, first), status="running")
    await does(broker, at, held, "goes on", status="running")
    found = await states(broker, root)
    assert found.first == ((0, None, "running"), (11, 0, "idle"), (1, 0, "idle"))
    assert found.counts == {"running": 1, "idle": 2}
    await submitted(broker, first.session)
    own = await claimed(broker, first.session, "w1", "c2")
    below = agent(own, 12)
    await does(broker, own, own, "works", status="running", children=(below,))
    found = await states(broker, root)
    assert found.first == ((0, None, "running"), (11, 0, "idle"), (1, 0, "running"), (12, 1, "idle"))
    assert found.counts == {"running": 2, "idle": 2}


async def test_root_shows_its_first_agents_and_counts_all(broker: Broker) -> None:
    held = await working(broker)
    at: Claimed | Committed = held
    for start in range(1, 101, 25):
        made = tuple(agent(held, number) for number in range(start, start + 25))
        at = await does(broker, at, held, f"makes {start}", children=made)
    found = await states(broker, held.claim.session)
    assert (len(found.first), found.first[-1]) == (64, (63, 0, "idle"))
    assert found.counts == {"idle": 101}
    await does(broker, at, held, "works", status="running")
    assert (await states(broker, held.claim.session)).counts == {"idle": 100, "running": 1}


async def of_before(broker: Broker, root: SessionId) -> None:
    """The tree is as an earlier version would have made it."""
    await broker.command("HDEL", broker.keys.session(root), "states")


async def test_tree_of_an_earlier_version_is_counted_once_and_then_kept(broker: Broker) -> None:
    held = await working(broker)
    root, tree = held.claim.session, held.claim.tree
    child = agent(held, 1)
    at = await does(broker, held, held, "makes", children=(child,))
    await of_before(broker, root)
    at = await does(broker, at, held, "works", status="running")
    assert await states(broker, root) == AgentStates((), {})
    told = await broker.trees.recount(tree)
    wanted = AgentStates(((0, None, "running"), (1, 0, "idle")), {"running": 1, "idle": 1})
    assert await states(broker, root) == AgentStates.of(told or "") == wanted
    at = await does(broker, at, held, "makes more", children=(agent(held, 2),))
    kept = await states(broker, root)
    assert kept.counts == {"running": 1, "idle": 2}
    await broker.trees.recount(tree)
    assert await states(broker, root) == kept


async def test_tree_of_an_earlier_version_shows_its_first_agents_in_the_order_of_their_births(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    root, tree = held.claim.session, held.claim.tree
    await does(broker, held, held, "makes", children=tuple(agent(held, number) for number in range(1, 12)))
    kept = await states(broker, root)
    await of_before(broker, root)
    monkeypatch.setattr(trees, "MOST_RECOUNTED", 11)
    assert await broker.trees.recount(tree) is None, "too many, with the root"
    assert await states(broker, root) == AgentStates((), {})
    monkeypatch.setattr(trees, "MOST_RECOUNTED", 12)
    await broker.trees.recount(tree)
    assert await states(broker, root) == kept


async def test_tree_is_not_recounted_by_a_list_that_lacks_an_agent(broker: Broker) -> None:
    held = await working(broker)
    root, tree = held.claim.session, held.claim.tree
    await does(broker, held, held, "makes", children=(agent(held, 1),))
    await of_before(broker, root)
    keys = [broker.keys.session(root), broker.keys.agents(tree), broker.keys.session(root)]
    reply = await broker.trees._run(call("recount", keys, sessions=[root]), tree)
    assert reply.code == "UNLISTED"
    assert await states(broker, root) == AgentStates((), {})


async def test_tree_that_is_not_there_has_no_agents_to_count(broker: Broker) -> None:
    assert await broker.trees.recount(TreeId(new_session().session)) is None
