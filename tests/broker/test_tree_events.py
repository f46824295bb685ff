"""Events of a tree: one order, in the log and at whoever is told, with depths that are true."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.follow import EqCursor, Followed, follow, hash8_of
from orchestrator.broker.records import InboxDepth, Refused
from orchestrator.core.commit_parts import Debit, NewEvent, NewSession, TreeEvent
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId, TreeId
from tests.broker.actors import POOL, Backend, RecordingConnection, created, session_id
from tests.broker.families import Agent, depths_event, letter, root_of


async def told(broker: Broker, session: SessionId) -> list[tuple[int, bytes]]:
    """The tree's events in a session's queue, by tree_seq."""
    return [(e.tree_seq, e.payload) for e in await broker.logs.read_eq(session) if e.tree_seq]


async def test_parent_and_root_are_told_of_a_grandchild_in_the_order_of_the_log(broker: Broker) -> None:
    root = await root_of(broker)
    parent = await root.spawns(1)
    child = await parent.spawns(2)
    both = (parent.session, root.session)
    await child.does(tree_events=(TreeEvent((b"running",), both), TreeEvent((b"header",), both)))
    await parent.does(tree_events=(TreeEvent((b"own",), both),))
    expected = [(1, b"running"), (2, b"header"), (3, b"own")]
    assert await told(broker, root.session) == expected
    assert await told(broker, parent.session) == expected
    log = await broker.logs.read_tree(root.tree)
    assert [(e.tree_seq, e.payload) for e in log] == expected
    assert [(e.session, e.seq, e.head) for e in log[:2]] == [(child.session, 1, child.at.head)] * 2


async def test_entries_of_a_trees_log_are_salted_each_for_itself_where_a_notary_is_named(
    broker: Broker,
) -> None:
    root = await root_of(broker)
    plain = broker.commits.config
    broker.commits.config = replace(plain, salted=True)
    await root.does(tree_events=(TreeEvent((b"one",)), TreeEvent((b"two",))))
    broker.commits.config = plain
    await root.does(tree_events=(TreeEvent((b"three",)),))
    one, two, three = await broker.logs.read_tree(TreeId(root.session))
    assert (len(one.salt), len(two.salt), three.salt) == (16, 16, b"")
    assert one.salt != two.salt


async def test_event_names_the_entry_that_its_target_had_last(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.does(tree_events=(TreeEvent((b"status",), (root.session,)),))
    event = (await broker.logs.read_eq(root.session))[-1]
    assert (event.seq, event.hash8) == (root.at.seq, hash8_of(root.at.head))
    await root.does()
    numbers = [e.n for e in await broker.logs.read_eq(root.session)]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_follower_of_the_root_sees_what_a_child_did(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    head = await broker.logs.head(root.session)
    assert head is not None
    async with aclosing(follow(broker.logs, root.session, EqCursor.at(head), idle_s=0.05)) as following:
        await child.does(tree_events=(TreeEvent((b"status",), (root.session,)),))
        item = await anext(following)
    assert isinstance(item, Followed)
    assert [event.payload for event in item.events] == [b"status"]


async def test_own_events_of_the_tree_stand_where_they_happened(broker: Broker) -> None:
    root = await root_of(broker)
    head = root.at.head
    events = tuple(NewEvent(name, 0, hash8_of(head)) for name in (b"first", b"second"))
    at = [(0, b"before"), (1, b"between"), (1, b"also"), (9, b"last")]
    tree_events = tuple(TreeEvent((name,), (root.session,), after=after) for after, name in at)
    done = await root.does(payloads=(), events=events, tree_events=tree_events)
    kept = await broker.logs.read_eq(root.session)
    assert [e.payload for e in kept] == [b"before", b"first", b"between", b"also", b"second", b"last"]
    assert done.eq_n == 6


async def test_own_event_of_the_tree_names_no_entry_that_is_told_behind_it(broker: Broker) -> None:
    root = await root_of(broker)
    before, head = root.at.seq, root.at.head
    events = tuple(NewEvent(b"entry", before + number, f"{number:08x}") for number in (1, 2))
    tree_events = tuple(TreeEvent((b"told",), (root.session,), after=after) for after in (0, 1, 2))
    await root.does(payloads=(b"1", b"2", b"3"), events=events, tree_events=tree_events)
    kept = [(e.payload, e.seq, e.hash8) for e in await broker.logs.read_eq(root.session)]
    assert kept == [
        (b"told", before, hash8_of(head)),
        (b"entry", before + 1, "00000001"),
        (b"told", before + 1, "00000001"),
        (b"entry", before + 2, "00000002"),
        (b"told", before + 3, hash8_of(root.at.head)),
    ]


async def test_event_without_targets_is_for_the_log_alone(broker: Broker) -> None:
    root = await root_of(broker)
    await root.does(tree_events=(TreeEvent((b"p",), about=b"for the fold"),))
    assert await told(broker, root.session) == []
    assert [(e.payload, e.about) for e in await broker.logs.read_tree(root.tree)] == [
        (b"p", b"for the fold"),
    ]


async def test_event_for_who_is_gone_is_still_logged(broker: Broker) -> None:
    root = await root_of(broker)
    await root.does(tree_events=(TreeEvent((b"p",), (session_id(),)),))
    assert [e.payload for e in await broker.logs.read_tree(root.tree)] == [b"p"]


async def test_event_for_another_tree_reaches_nobody(broker: Broker) -> None:
    root = await root_of(broker)
    stranger = await created(broker)
    await root.does(tree_events=(TreeEvent((b"p",), (stranger,)),))
    assert await broker.logs.read_eq(stranger) == ()


async def test_archived_session_is_told_nothing_and_written_to_by_nobody(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.is_archived()
    await root.does(tree_events=(TreeEvent((b"p",), (child.session,)),))
    assert await broker.logs.read_eq(child.session) == ()
    refused = await root.refused(outbox=(letter(child.session, "m"),))
    assert refused == Refused("archived_target", child.session)


async def test_queue_that_is_told_of_a_tree_expires_like_any_other(broker: Broker) -> None:
    root = await root_of(broker)
    await root.does(payloads=(), tree_events=(TreeEvent((b"p",), (root.session,)),))
    child = await root.spawns(1)
    await root.does(tree_events=(TreeEvent((b"p",), (child.session,)),))
    for session in (root.session, child.session):
        assert 0 < int(str(await broker.command("PTTL", broker.keys.eq(session)))) <= 3_600_000


async def test_event_wakes_nobody(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await root.parks()
    await child.does(tree_events=(TreeEvent((b"status",), (root.session,)),))
    assert await broker.claims.claim_session(root.session, "w2", "c2") is None


async def test_event_that_is_said_once_is_not_said_by_the_next(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    warning = TreeEvent((b"80 %",), (root.session,), once="tokens:80")
    await child.does(tree_events=(warning, warning))
    await root.does(tree_events=(warning, TreeEvent((b"other",), (root.session,))))
    assert await told(broker, root.session) == [(1, b"80 %"), (2, b"other")]


# ── depths ────────────────────────────────────────────────────────────────────────────────────


async def depths_in(broker: Broker, agent: Agent) -> tuple[int, int]:
    """As the registry has them; the session must say the same."""
    fields, number = await broker.trees.agents(agent.tree), agent.held.agent_id
    head = await broker.logs.head(agent.session)
    assert head is not None
    found = int(fields.get(f"m:{number}", 0)), int(fields.get(f"i:{number}", 0))
    assert found == (head.pending_messages, head.pending_interrupts)
    return found


async def test_depths_are_told_at_both_moments_and_are_true(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    event = depths_event(root.session, inbox=child.session)
    letters = (
        letter(child.session, "a"),
        letter(child.session, "b"),
        letter(child.session, "c", interrupt=True),
    )
    sent = await root.does(outbox=letters, tree_events=(event,))
    assert sent.depths == (InboxDepth(child.session, 2, 1),)
    assert await depths_in(broker, child) == (2, 1)
    took = await child.does(cursor="4-0", taken=(1, 1), tree_events=(event,))
    assert took.depths == (InboxDepth(child.session, 1, 0),)
    assert await depths_in(broker, child) == (1, 0)
    assert [payload for _, payload in await told(broker, root.session)] == [b"inbox 2+1", b"inbox 1+0"]
    log = await broker.logs.read_tree(root.tree)
    assert [e.depths for e in log] == [sent.depths, took.depths]


async def test_letter_that_is_obeyed_when_it_arrives_is_not_counted(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    done = await root.does(outbox=(letter(child.session, "cancel", counted=False),))
    assert done.depths == ()
    assert await depths_in(broker, child) == (0, 0)
    assert [e.submission for e in await broker.logs.read_sq(child.session)] == ["s0", "cancel"]


async def test_two_senders_are_both_counted(broker: Broker) -> None:
    root = await root_of(broker)
    one, two = await root.spawns(1), await root.spawns(2)
    for sender in (one, two):
        event = depths_event(root.session, inbox=root.session)
        await sender.does(outbox=(letter(root.session, f"from {sender.session}"),), tree_events=(event,))
    assert [payload for _, payload in await told(broker, root.session)] == [b"inbox 1+0", b"inbox 2+0"]


async def test_agent_that_writes_to_itself_is_told_its_own_depths(broker: Broker) -> None:
    root = await root_of(broker)
    event = depths_event(root.session, inbox=root.session)
    await root.does(outbox=(letter(root.session, "note"),), tree_events=(event,))
    assert [payload for _, payload in await told(broker, root.session)] == [b"inbox 1+0"]
    assert (await broker.logs.read_sq(root.session))[-1].submission == "note"


async def test_inbox_of_a_child_that_is_being_born_is_empty(broker: Broker) -> None:
    root = await root_of(broker)
    child = NewSession(session_id(), root.tree, POOL, AgentId(1), root.session)
    event = depths_event(root.session, inbox=child.session)
    await root.does(children=(child,), tree_events=(event,))
    assert [payload for _, payload in await told(broker, root.session)] == [b"inbox 0+0"]


async def test_event_in_parts_must_name_its_inbox(broker: Broker) -> None:
    root = await root_of(broker)
    with pytest.raises(ValueError, match="names no inbox"):
        await root.broker.commits.commit(root.request(tree_events=(TreeEvent((b"a", b"b")),)))


async def test_payload_between_the_depths_is_never_read(broker: Broker) -> None:
    root = await root_of(broker)
    parts = (b'{"a":[],"n":', b',"%d%s":1.0e5,"m":', b"}\x00\xff")
    await root.does(tree_events=(TreeEvent(parts, (root.session,), root.session),))
    assert [p for _, p in await told(broker, root.session)] == [b'{"a":[],"n":0,"%d%s":1.0e5,"m":0}\x00\xff']


# ── whole or not at all ───────────────────────────────────────────────────────────────────────


async def test_refused_step_tells_nobody(broker: Broker) -> None:
    root = await root_of(broker, limit_slots=b"1")
    child = await root.spawns(1)
    event = depths_event(root.session, child.session, inbox=child.session)
    refused = await root.refused(
        outbox=(letter(child.session, "m"),), tree_events=(event,), debits=(Debit("slots", 1, "limit:slots"),)
    )
    assert refused == Refused("slots", "1")
    assert await told(broker, root.session) == await told(broker, child.session) == []
    assert await depths_in(broker, child) == (0, 0)


async def test_step_sent_again_tells_once(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    event = depths_event(root.session, child.session, inbox=child.session)
    request = root.request(outbox=(letter(child.session, "m"),), tree_events=(event,))
    first, again = await broker.commits.commit(request), await broker.commits.commit(request)
    assert (type(first), type(again)) == (type(again), type(first))
    assert await told(broker, root.session) == await told(broker, child.session) == [(1, b"inbox 1+0")]
    assert await depths_in(broker, child) == (1, 0)


async def test_usual_step_looks_at_no_other_session(backend: Backend) -> None:
    connection = RecordingConnection(backend.connect())
    broker = backend.broker(connection=connection)
    root = await root_of(broker)
    await root.spawns(1)
    await root.does()
    assert len(connection.calls[-1].keys) == 22
    assert connection.calls[-1].args[-1] == 0
    await broker.aclose()


async def test_mail_reaches_an_agent_in_another_pool(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1, pool="host:elsewhere")
    await child.parks()
    event = depths_event(root.session, child.session, inbox=child.session)
    await root.does(outbox=(letter(child.session, "m"),), tree_events=(event,))
    woken = await broker.claims.claim("host:elsewhere", "w2", "c2", 3)
    assert woken is not None
    assert woken.claim.session == child.session


async def test_mail_reaches_an_agent_that_came_to_another_pool_meanwhile(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.parks()
    await broker.command("HSET", broker.keys.session(child.session), "pool", "host:elsewhere")
    await root.does(outbox=(letter(child.session, "m"),))
    woken = await broker.claims.claim("host:elsewhere", "w2", "c2", 3)
    assert woken is not None
    assert woken.claim.session == child.session


async def test_claims_of_a_tree_are_taken_though_an_agent_came_to_another_pool_meanwhile(
    broker: Broker,
) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.parks()
    await broker.command("HSET", broker.keys.session(child.session), "pool", "host:elsewhere")
    found = await broker.trees.revoke_tree(root.tree, [root.session, child.session])
    assert [state.state for state in found] == ["revoked", "free"]
