"""Submitting: acknowledged once, queued in order, bounded, and waking only who sleeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import (
    CommitTooLarge,
    Misconfigured,
    QueueFull,
    SubmissionConflict,
    UnknownSession,
)
from orchestrator.broker.records import BrokerConfig, Committed, NewTree, Refused, Submit
from orchestrator.core.chain import ChainKey
from orchestrator.core.commit_parts import NewEntry, NewSession, NewSubmission, OutboundMessage
from orchestrator.core.ids import AgentId
from tests.broker.actors import (
    POOL,
    Backend,
    claimed,
    created,
    new_session,
    session_id,
    step,
    submitted,
    working,
)


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
