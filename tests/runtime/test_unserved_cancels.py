"""Which cancelled agents are taken from whom: by those who look after a tree, and by who cancels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass

import orjson
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import connect
from orchestrator.broker.records import BrokerConfig, Fenced
from orchestrator.config_keys import RedisSettings
from orchestrator.runtime.unserved_cancels import forsaken, taken_at_once, unended
from tests.broker.actors import lease_runs_out, submitted
from tests.broker.families import Agent, letter, root_of
from tests.servers import RedisServer

pytestmark = pytest.mark.realredis


@pytest.fixture
async def broker(redis_server: RedisServer) -> AsyncIterator[Broker]:
    """A broker whose leases do not run out by themselves."""
    with closing(redis_server.client()) as client:
        client.flushall()
    connection = connect(RedisSettings(url=redis_server.url))
    opened = Broker(connection, BrokerConfig(lease_s=60.0), lambda: 0.0)
    await opened.open()
    yield opened
    await opened.aclose()


@dataclass(frozen=True)
class Family:
    """A root that has cancelled all its agents but one."""

    root: Agent
    working: Agent
    """Is held, and has not ended."""
    unread: Agent
    """Is done, and has not read that it should end."""
    over: Agent
    """Is done, and has said so."""
    silent: Agent
    """Is done and held, and says nothing."""
    untouched: Agent


async def a_family(broker: Broker, at_work: str = "running") -> Family:
    root = await root_of(broker)
    children = [await root.spawns(number) for number in range(1, 6)]
    _, unread, over, silent, untouched = children
    marked = children[:4]
    statuses = dict.fromkeys(range(1, 6), "idle") | {1: at_work, 5: "running"}
    records = {
        f"a:{number}": orjson.dumps(
            {
                "agent_id": number,
                "session_id": child.session,
                "agent_path": f"0/{number}",
                "status": statuses[number],
                "turn": 0,
            }
        )
        for number, child in enumerate(children, 1)
    }
    marks = {f"cancel:{number}": b"1" for number in range(1, len(marked) + 1)}
    for child in (unread, over, untouched):
        await child.parks()
    await silent.does(cursor=silent.cursor)
    await root.parks(summary=records | marks, outbox=(letter(unread.session, "cancel", counted=False),))
    return Family(root, *children)


@pytest.mark.parametrize("at_work", ["queued", "running"])
async def test_agent_that_may_owe_word_of_its_end_is_looked_after(at_work: str, broker: Broker) -> None:
    family = await a_family(broker, at_work)
    found = await unended(broker, family.root.tree)
    assert found.active == (family.working.session,)
    assert found.owing == (family.unread.session, family.silent.session)
    below = await unended(broker, family.root.tree, under=2, known=[family.over.session])
    assert below.sessions == (), "who is parked and has read everything is over, whoever thinks of it"


@pytest.mark.parametrize("record", [None, "half a rec", "[]", '{"agent_id":4}'])
async def test_agent_that_cannot_be_read_keeps_no_other_from_being_ended(
    record: str | None, broker: Broker
) -> None:
    family = await a_family(broker)
    if record is None:
        await broker.command("HSET", broker.keys.session(family.silent.session), "seq", "many")
    else:
        await broker.command("HSET", broker.keys.agents(family.root.tree), "a:4", record)
    found = await forsaken(broker, family.root.tree)
    assert (found.left, found.lying) == (True, (family.unread.session,))


async def test_who_looks_after_a_tree_waits_until_a_holder_is_silent(broker: Broker) -> None:
    family = await a_family(broker)
    first = await forsaken(broker, family.root.tree)
    assert (first.left, first.lying) == (True, (family.unread.session,))
    await family.working.does()
    for agent in (family.working, family.silent):
        await lease_runs_out(broker, agent.session)
    then = await forsaken(broker, family.root.tree)
    assert set(then.lying) == {family.working.session, family.unread.session, family.silent.session}
    late = await broker.commits.commit(family.working.request())
    assert isinstance(late, Fenced)


async def test_who_cancels_takes_claims_at_once_and_ends_whom_nobody_held(broker: Broker) -> None:
    family = await a_family(broker)
    found = await taken_at_once(broker, family.root.tree, 0, ())
    assert (found.left, found.lying) == (True, (family.unread.session,))
    for agent in (family.working, family.silent):
        assert isinstance(await broker.commits.commit(agent.request()), Fenced), "taken from who renews"
    over = await broker.logs.head(family.over.session)
    assert over is not None
    assert over.epoch == family.over.held.claim.epoch, "nobody looks at it again"


async def test_root_that_nobody_serves_is_taken_with_its_agents_and_is_not_what_is_waited_for(
    broker: Broker,
) -> None:
    family = await a_family(broker)
    await submitted(broker, family.root.session)
    found = await forsaken(broker, family.root.tree)
    assert (found.left, set(found.lying)) == (True, {family.unread.session, family.root.session})
    for agent in (family.working, family.silent):
        await agent.parks(summary=ended(family.working))
    await family.unread.claims_again()
    await family.unread.parks()
    found = await forsaken(broker, family.root.tree)
    assert (found.left, found.lying) == (False, (family.root.session,))


async def test_who_cancels_waits_for_agents_at_work_and_not_for_word_of_those_that_are_done(
    broker: Broker,
) -> None:
    family = await a_family(broker)
    await family.working.parks(summary=ended(family.working))
    found = await taken_at_once(broker, family.root.tree, 0, ())
    assert (found.left, found.lying) == (False, (family.unread.session,))


def ended(agent: Agent) -> dict[str, bytes]:
    """The registry's record of the first agent, which has come to its end."""
    record = {
        "agent_id": 1,
        "session_id": agent.session,
        "agent_path": "0/1",
        "status": "canceled",
        "turn": 1,
    }
    return {"a:1": orjson.dumps(record)}


async def test_cancel_that_is_over_leaves_nobody(broker: Broker) -> None:
    family = await a_family(broker)
    await family.working.parks(summary=ended(family.working))
    await family.silent.parks()
    await family.unread.claims_again()
    await family.unread.parks()
    found = await forsaken(broker, family.root.tree)
    assert (found.left, found.lying) == (False, ())
