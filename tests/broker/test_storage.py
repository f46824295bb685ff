"""Snapshots, sealing, archive, blobs, retention: what may leave Redis, and when."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from orchestrator.broker.blobs import UNBORN_S, Blobs, digest_of
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Corrupt, SessionArchived, SessionHeld, UnknownSession
from orchestrator.broker.records import Claimed, Committed, NewTree, Refused, Stored, Unstored
from orchestrator.core.commit_parts import Approval, Timer
from orchestrator.core.ids import TreeId
from tests.broker.actors import (
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
from tests.broker.families import root_of


async def _three_entries(broker: Broker) -> tuple[Claimed, Committed]:
    held = await working(broker)
    done = await broker.commits.commit(step(held, held.claim, "k", [b"a", b"b", b"c"], cursor="1-0"))
    assert isinstance(done, Committed)
    return held, done


async def test_snapshot_is_neither_ahead_of_the_log_nor_goes_back(broker: Broker) -> None:
    held, _ = await _three_entries(broker)
    assert await broker.commits.snapshot(held.claim, 4, b"s4") == Refused("ahead", "")
    assert isinstance(await broker.commits.snapshot(held.claim, 2, b"s2"), Stored)
    assert await broker.commits.snapshot(held.claim, 1, b"s1") == Refused("older", "")
    assert await broker.logs.snapshot_of(held.claim.session) == b"s2"
    found = await broker.logs.head(held.claim.session)
    assert found is not None
    assert found.snapshot_seq == 2


async def test_log_is_sealed_only_behind_a_snapshot(broker: Broker) -> None:
    held, done = await _three_entries(broker)
    assert isinstance(await broker.commits.seal(held.claim, 1, b"m"), Refused)
    await broker.commits.snapshot(held.claim, 2, b"s2")
    assert isinstance(await broker.commits.seal(held.claim, 3, b"m"), Refused)
    assert isinstance(await broker.commits.seal(held.claim, 2, b"m"), Stored)
    assert isinstance(await broker.commits.seal(held.claim, 1, b"m"), Refused)
    assert [e.seq for e in await broker.logs.read_rollout(held.claim.session)] == [3]
    assert isinstance(await broker.commits.commit(step(done, held.claim, "k2")), Committed)
    found = await broker.logs.head(held.claim.session)
    assert found is not None
    assert (found.sealed_seq, found.manifest) == (2, b"m")


async def test_archived_session_asks_to_be_restored_and_goes_on(broker: Broker) -> None:
    held, done = await _three_entries(broker)
    session = held.claim.session
    assert isinstance(await broker.commits.archive(held.claim), Refused)
    await broker.commits.snapshot(held.claim, 3, b"s3")
    await broker.commits.seal(held.claim, 3, b"m")
    assert isinstance(await broker.commits.archive(held.claim), Stored)
    with pytest.raises(SessionArchived):
        await submitted(broker, session, "s2")
    assert (await submitted(broker, session, "s1")).duplicate
    assert isinstance(await broker.commits.restore(session, 2, b"s2"), Refused)
    assert isinstance(await broker.commits.restore(session, 3, b"s3"), Stored)
    await submitted(broker, session, "s2")
    again = await claimed(broker, session, "w2", "c2")
    assert (again.seq, again.head, again.snapshot_seq) == (3, done.head, 3)
    assert isinstance(
        await broker.commits.commit(step(again, again.claim, "k2", cursor=again.sq_tip)), Committed
    )


async def test_archived_session_is_held_by_nobody_and_offered_to_nobody(backend: Backend) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    held, _ = await _three_entries(broker)
    session, place = held.claim.session, await broker.logs.place(held.claim.session)
    await broker.commits.snapshot(held.claim, 3, b"s3")
    await broker.commits.seal(held.claim, 3, b"m")
    await broker.commits.archive(held.claim)
    assert await broker.claims.claim_session(session, "upkeep", "u1", parked=True) is None
    # As it was left by an upkeep that did hold one.
    shard = broker.keys.shard_of(session)
    await connection.command("ZADD", broker.keys.due(shard, place.pool), 1, session)
    assert await broker.claims.claim(place.pool, "w1", "c2", shard) is None
    assert await connection.command("ZCARD", broker.keys.due(shard, place.pool)) == 0
    await broker.aclose()


async def test_session_with_something_queued_is_not_archived(broker: Broker) -> None:
    held, _ = await _three_entries(broker)
    await broker.commits.snapshot(held.claim, 3, b"s3")
    await broker.commits.seal(held.claim, 3, b"m")
    await submitted(broker, held.claim.session, "s2")
    assert await broker.commits.archive(held.claim) == Refused("its queue is not read to the end", "")


async def test_agent_whose_closed_root_goes_on_again_is_not_archived(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.parks()
    await root.does(status="running")
    refused = await child.is_put_away(closed_root=root.session)
    assert refused == Refused("the root of its tree is not closed any more", "")
    head = await broker.logs.head(child.session)
    assert head is not None
    assert not head.archived


async def test_agent_and_then_its_closed_root_are_archived(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.parks()
    await root.parks(status="closed")
    for agent in (child, root):
        assert isinstance(await agent.is_put_away(closed_root=root.session), Stored)


async def test_blob_is_stored_once_and_proved_on_reading(backend: Backend) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    blobs = Blobs(connection, broker.keys)
    tree = (await working(broker)).claim.tree
    content = b"line\n" * 10_000
    digest = await blobs.put(tree, content)
    assert digest == await blobs.put(tree, content) == digest_of(content)
    assert await blobs.get(tree, digest) == content
    assert await blobs.get(tree, digest_of(b"never stored")) is None
    other = await blobs.put(tree, b"other")
    packed = await connection.command("GET", broker.keys.blob(tree, other))
    await connection.command("SET", broker.keys.blob(tree, digest), packed)
    with pytest.raises(Corrupt):
        await blobs.get(tree, digest)
    await broker.aclose()


async def test_commit_waits_for_the_texts_that_redis_lost(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        blobs, held = Blobs(connection, broker.keys), await working(broker)
        tree = held.claim.tree
        kept, lost = await blobs.put(tree, b"kept"), await blobs.put(tree, b"lost")
        request = step(held, held.claim, "k", texts=(lost, kept), secrets_dropped=("none",))
        await connection.command("DEL", broker.keys.blob(tree, lost))
        before = await everything(backend.look())
        assert await broker.commits.commit(request) == Unstored((lost,))
        assert await everything(backend.look()) == before
        await blobs.put(tree, b"lost")
        first = await broker.commits.commit(request)
        assert isinstance(first, Committed)
        await connection.command("DEL", broker.keys.blob(tree, lost))
        again = await broker.commits.commit(request)
        assert isinstance(again, Committed), "what stands is answered as the first time"
        assert (again.seq, again.head) == (first.seq, first.head)


async def test_text_for_a_session_that_is_never_made_is_kept_for_a_while_only(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        tree, blobs = TreeId(session_id()), Blobs(connection, broker.keys)
        digest = await blobs.put(tree, b"first words", unborn=True)
        for key in (broker.keys.blob(tree, digest), broker.keys.blobs(tree)):
            assert 0 < await connection.command("PTTL", key) <= UNBORN_S * 1000


async def test_birth_keeps_the_texts_that_it_names(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        born, blobs = new_session(), Blobs(connection, broker.keys)
        tree, keys = born.tree, broker.keys
        named, other = [await blobs.put(tree, words, unborn=True) for words in (b"named", b"other")]
        assert await broker.commits.create(NewTree(born, texts=(named,))) is True
        assert [
            await connection.command("PTTL", key) for key in (keys.blob(tree, named), keys.blobs(tree))
        ] == [
            -1,
            -1,
        ]
        assert await connection.command("PTTL", keys.blob(tree, other)) > 0
        await blobs.put(tree, b"other")
        assert await connection.command("PTTL", keys.blob(tree, other)) == -1, "its tree is there by now"
        await blobs.put(tree, b"named", unborn=True)
        assert await connection.command("PTTL", keys.blob(tree, named)) == -1, "a late copy ends nothing"
        for words in (b"named", b"late"):
            # The first was redacted, say; the other one nothing of the tree names.
            await connection.command("DEL", keys.blob(tree, digest_of(words)))
            await blobs.put(tree, words, unborn=True)
            assert await blobs.get(tree, digest_of(words)) is None, "and brings nothing back"


async def test_birth_keeps_each_of_the_texts_that_it_names(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        born, blobs = new_session(), Blobs(connection, broker.keys)
        digests = [await blobs.put(born.tree, b"text %d" % n, unborn=True) for n in range(4)]
        lost = (digest_of(b"lost"), *digests[1:], digest_of(b"lost, too"))
        assert await broker.commits.create(NewTree(born, texts=lost)) == Unstored((lost[0], lost[-1]))
        assert await broker.commits.create(NewTree(born, texts=tuple(digests[1:]))) is True
        left = [await connection.command("PTTL", broker.keys.blob(born.tree, one)) for one in digests]
        assert (left[0] > 0, left[1:]) == (True, [-1, -1, -1])


async def test_session_is_not_born_without_its_texts(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        born, blobs = new_session(), Blobs(connection, broker.keys)
        new = NewTree(born, texts=(await blobs.put(born.tree, b"kept", unborn=True), digest_of(b"lost")))
        before = await everything(backend.look())
        assert await broker.commits.create(new) == Unstored((digest_of(b"lost"),))
        assert await everything(backend.look()) == before
        await blobs.put(born.tree, b"lost", unborn=True)
        assert await broker.commits.create(new) is True
        await connection.command("DEL", broker.keys.blob(born.tree, digest_of(b"lost")))
        assert await broker.commits.create(new) is False, "what stands is answered as the first time"


async def test_session_is_not_brought_back_without_its_texts(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        held, _ = await _three_entries(broker)
        session, tree, blobs = held.claim.session, held.claim.tree, Blobs(connection, broker.keys)
        await broker.commits.snapshot(held.claim, 3, b"s3")
        await broker.commits.seal(held.claim, 3, b"m")
        await broker.commits.archive(held.claim)
        text, kept = digest_of(b"lost"), await blobs.put(tree, b"kept")
        lost = digest_of(b"lost, too")
        for texts in ((text, lost, kept), (kept, text, lost)):
            assert await broker.commits.restore(session, 3, b"s3", texts) == Unstored((text, lost))
        await blobs.put(tree, b"lost, too")
        assert await broker.commits.restore(session, 3, b"s3", [lost, text]) == Unstored((text,))
        assert (found := await broker.logs.head(session)) is not None
        assert found.archived
        await blobs.put(tree, b"lost")
        assert isinstance(await broker.commits.restore(session, 3, b"s3", [lost, kept, text]), Stored)


async def test_commit_whose_tree_can_keep_no_texts_is_told_of_the_damage(backend: Backend) -> None:
    connection = backend.connect()
    async with aclosing(backend.broker(connection=connection)) as broker:
        held = await working(broker)
        await connection.command("DEL", broker.keys.agents(held.claim.tree))
        with pytest.raises(Corrupt, match="it is gone"):
            await broker.commits.commit(step(held, held.claim, "k", texts=(digest_of(b"lost"),)))


async def test_deleted_tree_leaves_nothing_of_its_own(backend: Backend) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    held = await working(broker)
    session = held.claim.session
    with pytest.raises(SessionHeld):
        await broker.trees.delete_session(session)
    await Blobs(connection, broker.keys).put(held.claim.tree, b"content")
    await broker.commits.snapshot(held.claim, 0, b"state")
    parks = step(
        held,
        held.claim,
        "k",
        cursor="1-0",
        release="park",
        timers_set=(Timer("t", 1, 1 << 45),),
        approvals_open=(Approval("a", b"x"),),
    )
    await broker.commits.commit(parks)
    await broker.trees.delete_session(session)
    left = await everything(backend.look())
    # Machines read there for a while whose files they may remove.
    shard = broker.keys.shard_of(session)
    for key in (broker.keys.deleted(shard), broker.keys.deleted_by(shard)):
        assert session.encode() in repr(left.pop(key.encode())).encode()
    assert not [key for key in left if session.encode() in key]
    assert not [
        value for value in left.values() if session.encode() in repr(value).encode() and value[0] != b"stream"
    ]
    with pytest.raises(UnknownSession):
        await submitted(broker, session, "s9")
    await broker.aclose()


async def test_session_that_was_used_since_it_was_seen_is_not_deleted(broker: Broker) -> None:
    held, _ = await _three_entries(broker)
    session = held.claim.session
    await broker.claims.release(held.claim, park_at=None)
    seen = await claimed(broker, session, "w2", "c2")
    await broker.commits.commit(step(seen, seen.claim, "k2", cursor=seen.sq_tip, release="park"))
    await submitted(broker, session, "s2")
    used = await claimed(broker, session, "w2", "c3")
    await broker.commits.commit(step(used, used.claim, "k3", cursor=used.sq_tip, release="park"))
    with pytest.raises(SessionHeld):
        await broker.trees.delete_session(session, epoch=seen.claim.epoch)
    await broker.trees.delete_session(session, epoch=used.claim.epoch)
    assert await broker.logs.head(session) is None


async def test_session_that_was_given_something_is_not_deleted(broker: Broker) -> None:
    held, _ = await _three_entries(broker)
    await broker.claims.release(held.claim, park_at=None)
    with pytest.raises(SessionHeld):
        await broker.trees.delete_session(held.claim.session)
    again = await claimed(broker, held.claim.session, "w2", "c2")
    await broker.claims.release(again.claim, park_at=again)
    await submitted(broker, held.claim.session, "s2")
    with pytest.raises(SessionHeld):
        await broker.trees.delete_session(held.claim.session)
    assert [entry.submission for entry in await broker.logs.read_sq(held.claim.session, again.cursor)] == [
        "s2"
    ]


async def test_listing_shows_sessions_that_changed_last_first(broker: Broker) -> None:
    first = await created(broker)
    second = await created(broker, session=session_id(5))
    found = [head.session for head in await broker.logs.sessions()]
    assert set(found) == {first, second}
    assert await broker.logs.head(session_id()) is None


async def test_workers_are_listed_by_their_last_heartbeat(broker: Broker) -> None:
    await broker.claims.heartbeat("w1", b"one")
    await broker.claims.heartbeat("w1", b"two")
    await broker.claims.heartbeat("w2", b"x")
    assert {w.worker: w.state for w in await broker.claims.workers()} == {"w1": b"two", "w2": b"x"}


async def test_worker_that_is_to_drain_hears_so_until_it_has_left(broker: Broker) -> None:
    assert not await broker.claims.heartbeat("w1", b"state")
    assert await broker.claims.drain("w1")
    assert await broker.claims.heartbeat("w1", b"state")
    assert not await broker.claims.heartbeat("w2", b"state")
    assert await broker.claims.heartbeat("w1", b"state", left=True)
    assert [w.worker for w in await broker.claims.workers()] == ["w2"]
    assert not await broker.claims.drain("w1"), "nobody knows it any more"
    assert not await broker.claims.heartbeat("w1", b"state"), "the next worker of this name is not meant"
