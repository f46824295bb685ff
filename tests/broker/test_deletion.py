"""A tree is deleted as a whole, at one moment, and only as it was seen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import SessionHeld
from orchestrator.broker.records import BrokerConfig, Labels, NewTree, SessionHead
from orchestrator.core.commit_parts import Approval, NewSession, Timer
from orchestrator.core.ids import AgentId
from tests.broker.actors import (
    Backend,
    RecordingConnection,
    everything,
    holder_died,
    new_session,
    session_id,
    submitted,
)
from tests.broker.doubles import FakeClock, redis_time
from tests.broker.families import Agent, root_of
from tests.stated import StatedRedis

IN_HAND = {"timers_set": (Timer("t", 1, 1 << 45),), "approvals_open": (Approval("a", b"x"),)}
SHARED = (b":changed", b":ready:", b":clock:", b":asked", b":released", b":deleted")


async def _family(broker: Broker) -> list[Agent]:
    """A root and two agents, one of another pool, all parked, with a timer and an open approval each."""
    root = await root_of(broker)
    found = [root, await root.spawns(1), await root.spawns(2, "other")]
    for agent in found:
        await agent.parks(**IN_HAND)
    return found


async def _seen(broker: Broker, family: list[Agent]) -> tuple[SessionHead, ...]:
    """The root last, as a listing may have it."""
    return await broker.logs.heads([agent.session for agent in reversed(family)])


async def _is_given_something(agent: Agent) -> None:
    await submitted(agent.broker, agent.session, "late")


async def _is_at_work(agent: Agent) -> None:
    await _is_given_something(agent)
    await agent.claims_again()


async def _has_been_at_work(agent: Agent) -> None:
    await _is_at_work(agent)
    await agent.parks()


USES = (_is_given_something, _is_at_work, _has_been_at_work)


@pytest.mark.parametrize("uses", USES)
@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("owed", [False, True])
async def test_tree_of_which_one_session_is_used_keeps_every_session(
    backend: Backend, uses: Callable[[Agent], Awaitable[None]], who: int, owed: bool
) -> None:
    async with aclosing(backend.broker(BrokerConfig(lease_s=60.0))) as broker:
        family = await _family(broker)
        seen = await _seen(broker, family)
        await uses(family[who])
        before = await everything(backend.look())
        with pytest.raises(SessionHeld) as held:
            await broker.trees.delete_tree(seen, owed=owed)
        assert held.value.session == family[who].session
        assert await everything(backend.look()) == before


@pytest.mark.parametrize("who", [0, 1, 2])
async def test_tree_of_which_one_session_is_to_be_taken_stays_though_it_has_read_all(
    broker: Broker, who: int
) -> None:
    family = await _family(broker)
    agent = family[who]
    await _is_at_work(agent)
    await agent.does(cursor=agent.cursor)
    await holder_died(broker, agent.session)
    with pytest.raises(SessionHeld) as held:
        await broker.trees.delete_tree(await _seen(broker, family))
    assert held.value.session == agent.session
    await broker.trees.delete_tree(await _seen(broker, family), owed=True)
    assert await broker.logs.heads([each.session for each in family]) == ()


async def test_deleted_tree_takes_all_of_its_own_and_nothing_of_another(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(BrokerConfig(lease_s=60.0), connection)) as broker:
        other = await _family(broker)
        await Blobs(connection, broker.keys).put(other[0].tree, b"kept")
        before = await everything(backend.look())
        family = await _family(broker)
        for number in range(3):
            await Blobs(connection, broker.keys).put(family[0].tree, b"text %d" % number)
        await broker.trees.delete_tree(await _seen(broker, family))
        left = await everything(backend.look())
        assert len(left) > len(before), "that they were deleted is known"
        # Notices of who is due, and the clock of their turns, are the pool's; others are the shard's.
        shared = {key for key in left if any(part in key for part in SHARED)}
        assert {k: v for k, v in left.items() if k not in shared} == {
            k: v for k, v in before.items() if k not in shared
        }


async def test_every_session_of_a_tree_has_who_deleted_it_and_when(broker: Broker) -> None:
    family = await _family(broker)
    assert await broker.trees.deletion_of(family[1].session) is None
    before_ms = await broker.server_ms()
    await broker.trees.delete_tree(await _seen(broker, family), by="jo of the night\nshift " + "x" * 300)
    for agent in family:
        found = await broker.trees.deletion_of(agent.session)
        assert found is not None
        assert (found.namespace, found.who[:22], len(found.who)) == ("", "jo of the night\nshift ", 200)
        assert before_ms <= found.at_ms <= await broker.server_ms()


@pytest.mark.parametrize("letter", ["ä", "€", "😀"])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
async def test_long_name_of_who_deleted_a_tree_ends_with_a_whole_letter(
    broker: Broker, letter: str, before: int
) -> None:
    for count in ((200 - before) // len(letter.encode()), 150):
        family = await _family(broker)
        name = "j" * before + letter * count
        await broker.trees.delete_tree(await _seen(broker, family), by=name)
        found = await broker.trees.deletion_of(family[0].session)
        assert found is not None
        fits = (200 - before) // len(letter.encode())
        assert found.who == name[: before + fits]


async def test_a_tree_whose_time_was_over_was_deleted_by_nobody(broker: Broker) -> None:
    born = new_session(session_id(1))
    await broker.commits.create(NewTree(born, {}, Labels(namespace="team", who="jo")))
    await broker.trees.delete_session(born.session)
    found = await broker.trees.deletion_of(born.session)
    assert found is not None
    assert (found.namespace, found.who) == ("team", "")


async def test_who_deleted_is_forgotten_after_30_days() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        old, new, last = [await _family(broker) for _ in range(3)]
        await broker.trees.delete_tree(await _seen(broker, old), by="jo")
        clock.advance(20 * 86_400)
        await broker.trees.delete_tree(await _seen(broker, new), by="ana")
        clock.advance(11 * 86_400)
        assert await broker.trees.deletion_of(old[0].session) is not None, "until somebody deletes again"
        await broker.trees.delete_tree(await _seen(broker, last), by="ben")
        kept = [await broker.trees.deletion_of(each[0].session) for each in (old, new, last)]
        assert [one and one.who for one in kept] == [None, "ana", "ben"]
        clock.advance(31 * 86_400)
        assert await broker.trees.deletion_of(last[0].session) is None
        await broker.aclose()


async def test_what_had_been_given_goes_if_a_person_wants_it_and_what_came_later_stays(
    broker: Broker,
) -> None:
    family = await _family(broker)
    await submitted(broker, family[1].session, "early")
    seen = await _seen(broker, family)
    with pytest.raises(SessionHeld):
        await broker.trees.delete_tree(seen)
    await submitted(broker, family[1].session, "late")
    with pytest.raises(SessionHeld):
        await broker.trees.delete_tree(seen, owed=True)
    await broker.trees.delete_tree(await _seen(broker, family), owed=True)
    assert await broker.logs.count_sessions() == 0
    assert await broker.claims.claim("default", "w1", "c9", broker.keys.shard_of(family[0].session)) is None


async def test_agent_that_was_not_seen_keeps_its_tree(backend: Backend) -> None:
    async with aclosing(backend.broker(BrokerConfig(lease_s=60.0))) as broker:
        family = await _family(broker)
        before = await everything(backend.look())
        with pytest.raises(SessionHeld) as held:
            await broker.trees.delete_tree(await _seen(broker, family[:2]))
        assert held.value.session == family[2].session
        with pytest.raises(SessionHeld):
            await broker.trees.delete_session(family[0].session)
        assert await everything(backend.look()) == before


async def test_agent_that_an_earlier_version_deleted_does_not_keep_its_tree(broker: Broker) -> None:
    family = await _family(broker)
    await broker.trees.delete_session(family[1].session)
    await broker.trees.delete_tree(await _seen(broker, family))
    assert await broker.logs.count_sessions() == 0


async def test_text_that_is_stored_while_a_tree_is_deleted_goes_with_it(backend: Backend) -> None:
    connection = RecordingConnection(backend.connect())
    async with aclosing(backend.broker(BrokerConfig(lease_s=60.0), connection)) as broker:
        family = await _family(broker)
        tree, blobs = family[0].tree, Blobs(connection, broker.keys)
        await blobs.put(tree, b"early")
        seen, late = await _seen(broker, family), [b"late"]

        async def somebody_restores(call: ScriptCall) -> None:
            if call.script.name == "delete" and late:
                await blobs.put(tree, late.pop())

        connection.before = somebody_restores
        await broker.trees.delete_tree(seen)
        assert not [key for key in await everything(backend.look()) if b":blob" in key]


async def test_text_that_arrives_behind_its_trees_deletion_is_not_stored(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(BrokerConfig(lease_s=60.0), connection)) as broker:
        family = await _family(broker)
        await broker.trees.delete_tree(await _seen(broker, family))
        before = await everything(backend.look())
        stored = await Blobs(connection, broker.keys).put(family[0].tree, b"late")
        assert await Blobs(connection, broker.keys).get(family[0].tree, stored) is None
        assert await everything(backend.look()) == before


async def test_tree_that_is_gone_is_deleted_again_without_harm(broker: Broker) -> None:
    family = await _family(broker)
    seen = await _seen(broker, family)
    await broker.trees.delete_tree(seen)
    await broker.trees.delete_tree(seen)
    assert await broker.logs.count_sessions() == 0


async def test_wide_tree_with_many_texts_goes_in_one_call(backend: Backend) -> None:
    connection = RecordingConnection(backend.connect())
    async with aclosing(backend.broker(BrokerConfig(lease_s=60.0), connection)) as broker:
        root = await root_of(broker)
        ids = range(1, 1_001)
        born = [NewSession(session_id(), root.tree, "default", AgentId(i), root.session) for i in ids]
        for first in range(0, len(born), 100):
            await root.does(children=tuple(born[first : first + 100]))
        await root.parks()
        names = [f"{number:064x}" for number in range(9_000)]
        await connection.command("SADD", broker.keys.blobs(root.tree), *names)
        seen = await broker.logs.heads([root.session, *(child.session for child in born)])
        await broker.trees.delete_tree(seen)
        assert [call.script.name for call in connection.calls].count("delete") == 1
        assert await broker.logs.count_sessions() == 0
