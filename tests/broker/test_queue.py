"""Submitting: acknowledged once, queued in order, bounded, and waking only who sleeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import (
    CommitTooLarge,
    Misconfigured,
    QueueFull,
    SubmissionConflict,
    UnknownSession,
)
from orchestrator.broker.records import BrokerConfig, Committed, Labels, NewTree, Refused, Submit
from orchestrator.core.chain import ChainKey
from orchestrator.core.commit_parts import (
    NewEntry,
    NewEvent,
    NewSession,
    NewSubmission,
    OutboundMessage,
    Timer,
)
from orchestrator.core.ids import AgentId
from tests.broker.actors import (
    POOL,
    Backend,
    claimed,
    created,
    everything,
    new_session,
    session_id,
    step,
    submitted,
    working,
)
from tests.broker.families import letter, root_of


async def test_client_that_submits_twice_gets_the_first_answer(broker: Broker) -> None:
    session = await created(broker)
    first = await submitted(broker, session, "s1")
    await submitted(broker, session, "s2")
    again = await submitted(broker, session, "s1")
    assert (again.sq_id, again.duplicate) == (first.sq_id, True)
    assert [entry.submission for entry in await broker.logs.read_sq(session)] == ["s1", "s2"]


async def test_client_that_reuses_an_id_for_another_op_is_told(broker: Broker) -> None:
    session = await created(broker)
    await submitted(broker, session, "s1", b"op")
    with pytest.raises(SubmissionConflict):
        await submitted(broker, session, "s1", b"another op")
    assert len(await broker.logs.read_sq(session)) == 1


async def test_two_clients_may_use_the_same_id(broker: Broker) -> None:
    session = await created(broker)
    await broker.commits.submit(Submit(session, "one", "s1", b"a"))
    await broker.commits.submit(Submit(session, "two", "s1", b"b"))
    assert [entry.payload for entry in await broker.logs.read_sq(session)] == [b"a", b"b"]


async def test_submission_is_remembered_after_it_was_consumed(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    again = await submitted(broker, held.claim.session)
    assert again.duplicate
    assert await broker.logs.read_sq(held.claim.session) == ()


async def test_submission_to_an_unknown_session_is_an_error(broker: Broker) -> None:
    with pytest.raises(UnknownSession):
        await submitted(broker, session_id())


async def test_payload_comes_out_as_it_went_in(broker: Broker) -> None:
    session = await created(broker)
    payload = bytes(range(256)) + b"\r\n:|"
    await submitted(broker, session, "s1", payload)
    found = await claimed(broker, session)
    assert found.first[0].payload == payload
    assert (found.first[0].client, found.first[0].submission, found.first[0].kind) == (
        "client",
        "s1",
        "submission",
    )


async def test_full_queue_refuses_and_keeps_what_it_has(backend: Backend) -> None:
    broker = backend.broker(BrokerConfig(sq_max_entries=3, lease_s=60.0))
    session = await created(broker)
    for number in range(3):
        await submitted(broker, session, f"s{number}")
    with pytest.raises(QueueFull) as refusal:
        await submitted(broker, session, "s3")
    assert refusal.value.entries == 3
    held = await claimed(broker, session)
    await broker.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    await submitted(broker, session, "s3")
    await broker.aclose()


async def test_queue_is_bounded_in_bytes_and_reading_frees_them(backend: Backend) -> None:
    broker = backend.broker(BrokerConfig(sq_max_bytes=250, lease_s=60.0))
    session = await created(broker)
    await submitted(broker, session, "s1", b"x" * 100)
    await submitted(broker, session, "s2", b"x" * 100)
    with pytest.raises(QueueFull):
        await submitted(broker, session, "s3", b"x" * 100)
    held = await claimed(broker, session)
    await broker.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    await submitted(broker, session, "s3", b"x" * 100)
    with pytest.raises(QueueFull):
        await submitted(broker, session, "s4", b"x" * 100)
    await broker.aclose()


async def test_full_queue_refuses_a_message_and_takes_the_end_of_an_agent(backend: Backend) -> None:
    broker = backend.broker(BrokerConfig(sq_max_entries=2, lease_s=60.0))
    held = await working(broker)
    child = NewSession(session_id(), held.claim.tree, POOL, AgentId(1), held.claim.session)
    born = await broker.commits.commit(step(held, held.claim, "spawn", cursor=held.sq_tip, children=(child,)))
    assert isinstance(born, Committed)
    for number in range(2):
        await submitted(broker, child.session, f"s{number}")
    message = OutboundMessage(child.session, "message", b"a word", "m1")
    refused = await broker.commits.commit(step(born, held.claim, "word", outbox=(message,)))
    assert refused == Refused("queue_full", child.session)
    end = OutboundMessage(child.session, "completion", b"the end", "m2")
    assert isinstance(await broker.commits.commit(step(born, held.claim, "end", outbox=(end,))), Committed)
    assert [entry.payload for entry in await broker.logs.read_sq(child.session)][-1] == b"the end"
    await broker.aclose()


@pytest.mark.parametrize(
    "config",
    [BrokerConfig(lease_s=60.0, sq_max_entries=3), BrokerConfig(lease_s=60.0, sq_max_bytes=300)],
    ids=["entries", "bytes"],
)
async def test_messages_of_one_commit_count_before_they_are_written(
    backend: Backend, config: BrokerConfig
) -> None:
    broker = backend.broker(config)
    held = await working(broker)
    child = NewSession(session_id(), held.claim.tree, POOL, AgentId(1), held.claim.session)
    born = await broker.commits.commit(step(held, held.claim, "spawn", cursor=held.sq_tip, children=(child,)))
    assert isinstance(born, Committed)
    await submitted(broker, child.session, "s0", b"x" * 100)
    letters = [OutboundMessage(child.session, "message", b"x" * 100, f"m{number}") for number in range(3)]
    refused = await broker.commits.commit(step(born, held.claim, "three", outbox=tuple(letters)))
    assert refused == Refused("queue_full", child.session)
    assert isinstance(
        await broker.commits.commit(step(born, held.claim, "two", outbox=tuple(letters[:2]))), Committed
    )
    await broker.aclose()


async def test_submission_past_eight_megabytes_is_not_sent(broker: Broker) -> None:
    session = await created(broker)
    with pytest.raises(CommitTooLarge):
        await submitted(broker, session, "s1", b"x" * ((8 << 20) + 1))


async def test_ids_are_forgotten_only_past_both_bounds(backend: Backend) -> None:
    young = backend.broker(BrokerConfig(seen_keep=4))
    session = await created(young)
    for number in range(8):
        await submitted(young, session, f"s{number}")
    assert (await submitted(young, session, "s0")).duplicate
    old = backend.broker(BrokerConfig(seen_keep=4, seen_keep_s=0.0))
    await submitted(old, session, "s8")
    assert (await submitted(young, session, "s5")).duplicate
    assert not (await submitted(young, session, "s0")).duplicate
    await young.aclose()
    await old.aclose()


async def test_submission_tells_who_holds_the_session_and_pokes_it(broker: Broker) -> None:
    held = await working(broker)
    session = held.claim.session
    cursors = (await broker.claims.wait_for_notices("default", "w1", {}, 0.01)).cursors
    told = await submitted(broker, session, "s2")
    assert told.holder == "w1"
    notices = await broker.claims.wait_for_notices("default", "w1", cursors, 5.0)
    assert notices.notified == (session,)


async def test_waiting_worker_hears_of_a_session_that_became_due(broker: Broker) -> None:
    session = await created(broker)
    cursors = (await broker.claims.wait_for_notices("default", "w1", {}, 0.01)).cursors
    await submitted(broker, session)
    notices = await broker.claims.wait_for_notices("default", "w1", cursors, 5.0)
    assert notices.shards == (broker.keys.shard_of(session),)
    assert notices.named == {broker.keys.shard_of(session): session}
    assert (await broker.claims.wait_for_notices("default", "w1", notices.cursors, 0.01)).shards == ()


async def test_creation_is_idempotent_and_conflicts_are_named(broker: Broker) -> None:
    born = new_session(submissions=(NewSubmission("client", "s1", b"op"),))
    assert await broker.commits.create(NewTree(born)) is True
    assert await broker.commits.create(NewTree(born)) is False
    assert len(await broker.logs.read_sq(born.session)) == 1
    with pytest.raises(SubmissionConflict):
        await broker.commits.create(NewTree(replace(born, meta=b"else")))
    assert (await submitted(broker, born.session, "s1", b"op")).duplicate


async def test_creation_that_a_client_seals_again_is_the_same_creation(broker: Broker) -> None:
    first = NewEntry(b"meta", b"a" * 16, b"1" * 32)
    born = new_session(entries=(first,))
    assert await broker.commits.create(NewTree(born)) is True
    again = replace(born, entries=(replace(first, salt=b"b" * 16, chain=b"2" * 32),))
    assert await broker.commits.create(NewTree(again)) is False
    other = replace(born, entries=(replace(first, payload=b"other"),))
    with pytest.raises(SubmissionConflict):
        await broker.commits.create(NewTree(other))


ENTRIES = (NewEntry(b"meta", b"a" * 16, b"1" * 32), NewEntry(b"more", b"b" * 16, b"2" * 32))
EVENTS = (NewEvent(b"one", 1, "0" * 8), NewEvent(b"two", 2, "0" * 8))
TWO_OPS = (NewSubmission("client", "s1", b"op"), NewSubmission("client", "s2", b"op"))
OTHER_BIRTHS: dict[str, dict[str, Any]] = {
    "another pool": {"pool": "gpu"},
    "another summary": {"meta": b"else"},
    "its last entry": {"entries": (ENTRIES[0], replace(ENTRIES[1], payload=b"else"))},
    "an entry less": {"entries": ENTRIES[:1]},
    "its last event": {"events": (EVENTS[0], replace(EVENTS[1], payload=b"else"))},
    "the last op": {"submissions": (TWO_OPS[0], replace(TWO_OPS[1], payload=b"else"))},
    "the last id": {"submissions": (TWO_OPS[0], replace(TWO_OPS[1], submission="s3"))},
    "another client": {"submissions": (TWO_OPS[0], replace(TWO_OPS[1], client="else"))},
}
LABELS = Labels("team", "cli", "ann")
OTHER_LABELS = {
    "namespace": replace(LABELS, namespace="else"),
    "source": replace(LABELS, source="exec"),
    "who": replace(LABELS, who="ben"),
    "ephemeral": replace(LABELS, ephemeral=True),
    "none": Labels(),
}


@pytest.mark.parametrize("other", [*OTHER_BIRTHS, *OTHER_LABELS])
async def test_each_other_session_under_the_id_of_one_is_a_conflict_and_changes_nothing(
    backend: Backend, other: str
) -> None:
    broker = backend.broker(BrokerConfig(lease_s=60.0))
    born = new_session(entries=ENTRIES, events=EVENTS, submissions=TWO_OPS, meta=b"meta")
    assert await broker.commits.create(NewTree(born, labels=LABELS)) is True
    before = await everything(backend.look())
    again = replace(born, **OTHER_BIRTHS.get(other, {}))
    with pytest.raises(SubmissionConflict):
        await broker.commits.create(NewTree(again, labels=OTHER_LABELS.get(other, LABELS)))
    assert await broker.commits.create(NewTree(born, labels=LABELS)) is False
    assert await everything(backend.look()) == before
    await broker.aclose()


@pytest.mark.parametrize("child", [False, True])
async def test_each_submission_that_a_session_is_born_with_is_queued_and_counts_once(
    broker: Broker, child: bool
) -> None:
    born = new_session(submissions=TWO_OPS)
    if child:
        held = await working(broker)
        born = replace(born, tree=held.claim.tree, parent=held.claim.session, agent_id=AgentId(1))
        done = await broker.commits.commit(step(held, held.claim, "spawn", children=(born,)))
        assert isinstance(done, Committed)
    else:
        await broker.commits.create(NewTree(born))
    for number, op in enumerate(TWO_OPS, 1):
        again = await submitted(broker, born.session, op.submission, op.payload)
        assert (again.duplicate, again.sq_id) == (True, f"{number}-0")
        with pytest.raises(SubmissionConflict):
            await submitted(broker, born.session, op.submission, b"else")
    assert (await submitted(broker, born.session, "s3")).sq_id == "3-0"
    found = await claimed(broker, born.session, "w1", "c2")
    assert [entry.submission for entry in found.first] == ["s1", "s2", "s3"]


async def test_queue_takes_what_just_fits_its_bytes_and_a_byte_more_is_refused(backend: Backend) -> None:
    broker = backend.broker(BrokerConfig(sq_max_bytes=250, lease_s=60.0))
    session = await created(broker)
    await submitted(broker, session, "s1", "ä".encode() * 62)
    with pytest.raises(QueueFull) as full:
        await submitted(broker, session, "s2", b"x" * 127)
    assert (full.value.entries, full.value.size) == (1, 124)
    await submitted(broker, session, "s2", b"x" * 126)
    with pytest.raises(QueueFull):
        await submitted(broker, session, "s3", b"x")
    assert (await submitted(broker, session, "s1", "ä".encode() * 62)).duplicate, "it is queued already"
    await broker.aclose()


async def test_each_call_that_goes_by_the_old_pool_of_a_session_finds_it_where_it_is_now(
    backend: Backend,
) -> None:
    old, new = [backend.broker(BrokerConfig(lease_s=60.0)) for _ in range(2)]
    root = await root_of(old)
    sessions = [(await root.spawns(number)) for number in (1, 2, 3, 4)]
    for agent in sessions:
        await agent.parks()
        await new.trees.delete_session(agent.session)
    again = [
        new_session(agent.session, tree=root.tree, parent=root.session, agent_id=AgentId(n), pool="gpu")
        for n, agent in enumerate(sessions, 11)
    ]
    spawn = root.request(children=tuple(again))
    done = await new.commits.commit(spawn)
    assert isinstance(done, Committed)
    root.at = done
    given, mailed, timed, revoked = (agent.session for agent in sessions)
    await submitted(new, timed, "s1")
    held = await claimed(new, timed, "w2", "sets")
    timer = (Timer("t", 1, 1_000),)
    parks = step(held, held.claim, "k", cursor=held.sq_tip, timers_set=timer, release="park")
    assert isinstance(await new.commits.commit(parks), Committed)
    assert not (await submitted(old, given, "s9")).duplicate
    await root.does(outbox=(letter(mailed, "m"),))
    assert [fired.session for fired in await old.claims.fire(old.keys.shard_of(timed))] == [timed]
    assert await old.trees.revoke(revoked) == 1
    shard = old.keys.shard_of(root.session)
    assert await old.claims.claim(POOL, "w9", "c9", shard) is None
    found = {}
    for number in range(3):
        one = await new.claims.claim("gpu", "w9", f"c{number}", shard)
        assert one is not None
        found[one.claim.session] = [entry.submission for entry in one.first]
    assert found == {given: ["s9"], mailed: ["m"], timed: ["t"]}
    await old.aclose()
    await new.aclose()


async def test_session_born_with_a_submission_is_due_and_one_without_is_parked(broker: Broker) -> None:
    await created(broker)
    assert await broker.claims.claim("default", "w1", "c1", 3) is None
    born = await created(broker, submissions=(NewSubmission("client", "s1", b"op"),))
    found = await broker.claims.claim("default", "w1", "c1", 3)
    assert found is not None
    assert found.claim.session == born


async def test_deployment_keeps_its_shard_count(backend: Backend) -> None:
    first = backend.broker(BrokerConfig(shards=16))
    await first.open()
    other = backend.broker(BrokerConfig(shards=32))
    with pytest.raises(Misconfigured, match="set it to 16"):
        await other.open()
    await first.aclose()
    await other.aclose()


async def test_processes_of_a_deployment_have_one_key_under_one_name(backend: Backend) -> None:
    first, other = backend.broker(BrokerConfig()), backend.broker(BrokerConfig())
    await first.hold_key(None)
    await first.hold_key(ChainKey("2026-01", b"a secret"))
    await other.hold_key(ChainKey("2026-01", b"a secret"))
    with pytest.raises(Misconfigured, match="of this deployment call '2026-01'"):
        await other.hold_key(ChainKey("2026-01", b"another"))
    with pytest.raises(Misconfigured, match="keyed by '2026-01', and no key is set here"):
        await other.hold_key(None)
    await other.hold_key(ChainKey("2026-02", b"another"))
    await first.hold_key(ChainKey("2026-01", b"a secret"))
    await first.aclose()
    await other.aclose()


async def test_process_that_only_reads_fixes_nothing_for_the_others(backend: Backend) -> None:
    reader, first = backend.broker(BrokerConfig(shards=32)), backend.broker(BrokerConfig(shards=16))
    key = ChainKey("2026-01", b"a secret")
    await reader.open(reads=True)
    await reader.hold_key(ChainKey("2026-01", b"another"), reads=True)
    await first.open()
    await first.hold_key(key)
    with pytest.raises(Misconfigured, match="set it to 16"):
        await reader.open(reads=True)
    with pytest.raises(Misconfigured, match="of this deployment call '2026-01'"):
        await reader.hold_key(ChainKey("2026-01", b"another"), reads=True)
    await reader.hold_key(key, reads=True)
    await reader.hold_key(ChainKey("2026-02", b"another"), reads=True)
    await first.hold_key(ChainKey("2026-02", b"of its own"))
    await first.aclose()
    await reader.aclose()
