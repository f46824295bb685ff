"""Sealing and archiving: the log moves, and nothing that anybody reads of it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import SessionArchived, UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.core import entries as e
from orchestrator.core.entries import decode_entry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import digest
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.chain_check import audit_session
from orchestrator.rollouts.deletion import delete_everywhere
from orchestrator.rollouts.segments import BrokenArchive, Manifest, Segment
from orchestrator.runtime.loader import end_of, folded, referenced_blobs, restore_session
from tests.rollouts.test_file_format import grandchild
from tests.workers.actors import (
    DAY_MS,
    NOON_MS,
    Author,
    head_of,
    in_redis,
    is_told,
    log_of,
    some_entries,
    state_of,
)
from workers.upkeep_sealing import Moved, Mover, archive_session, due_to_seal, seal_session

pytestmark = pytest.mark.realredis


async def _sealed(mover: Mover, entries: int = 300, tail: int = 20) -> Author:
    author = await Author(mover.storage).is_born()
    await author.writes(some_entries(entries))
    await author.snapshots()
    await author.writes(some_entries(tail))
    assert await seal_session(mover, author.session) is Moved.DONE
    return author


async def test_sealed_session_reads_and_resumes_as_before(mover: Mover, storage: Storage) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(300))).snapshots()
    await author.writes(some_entries(20))
    log, state = await log_of(storage, author.session), await state_of(storage, author.session)
    assert await seal_session(mover, author.session) is Moved.DONE
    assert await in_redis(storage, author.session) == list(range(301, 321))
    assert await log_of(storage, author.session) == log
    assert await state_of(storage, author.session) == state == digest(author.position.state)
    await author.writes(some_entries(5))
    assert len(await log_of(storage, author.session)) == 325


async def test_job_that_finds_the_log_moved_by_another_leaves_it(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(300))).snapshots()
    before, look = await storage.broker.logs.head(author.session), storage.broker.logs.head
    assert await seal_session(mover, author.session) is Moved.DONE
    sealed = await head_of(storage, author.session)
    stale = iter([before])

    async def late(session: SessionId) -> SessionHead | None:
        return next(stale, None) or await look(session)

    monkeypatch.setattr(storage.broker.logs, "head", late)
    assert await seal_session(mover, author.session) is Moved.BUSY
    assert await head_of(storage, author.session) == sealed


async def test_living_session_is_sealed_again_and_again(mover: Mover, storage: Storage) -> None:
    author = await _sealed(mover)
    for _ in range(3):
        await (await author.writes(some_entries(30))).snapshots()
        assert await seal_session(mover, author.session) is Moved.DONE
    manifest = Manifest.decode((await head_of(storage, author.session)).manifest)
    assert (manifest.segments[0].first, manifest.segments[0].last) == (1, 300)
    assert manifest.last == author.position.seq
    assert [entry.seq for entry in await log_of(storage, author.session)] == list(range(1, manifest.last + 1))


async def test_nothing_is_sealed_before_a_snapshot_covers_it(mover: Mover, storage: Storage) -> None:
    author = await Author(storage).is_born()
    await author.writes(some_entries(300))
    assert await seal_session(mover, author.session) is Moved.NOT_DUE
    assert len(await in_redis(storage, author.session)) == 300


async def test_long_log_is_sealed_in_few_stretches(mover: Mover, storage: Storage) -> None:
    author = await _sealed(mover)
    head = await head_of(storage, author.session)
    assert not due_to_seal(head, 10)
    grown = replace(head, sealed_seq=160_000, snapshot_seq=169_999)
    assert not due_to_seal(grown, 10)
    assert due_to_seal(replace(grown, snapshot_seq=170_000), 10)


async def test_session_that_somebody_holds_or_waits_for_is_left_alone(mover: Mover, storage: Storage) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(50))).snapshots()
    await is_told(storage, author.session)
    assert await seal_session(mover, author.session) is Moved.NOT_DUE
    held = await storage.broker.claims.claim_session(author.session, "w1", "c1")
    assert held is not None
    assert held.claims_without_progress == 1
    assert await seal_session(mover, author.session) is Moved.NOT_DUE


async def test_session_that_is_given_something_during_the_move_goes_to_a_worker(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(50))).snapshots()
    written = storage.archive.write_segment

    async def and_somebody_submits(*args: object) -> object:
        await is_told(storage, author.session)
        return await written(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(storage.archive, "write_segment", and_somebody_submits)
    assert await seal_session(mover, author.session) is Moved.BUSY
    assert (await head_of(storage, author.session)).sealed_seq == 0
    taken = await storage.broker.claims.claim(
        "default", "w1", "c1", storage.broker.keys.shard_of(author.session)
    )
    assert taken is not None
    assert [entry.submission for entry in taken.first] == ["s1"]


async def test_upkeep_never_parks_what_is_owed(mover: Mover, storage: Storage) -> None:
    """A session can be due with nothing in its queue: a worker yielded it half-way."""
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(50))).snapshots()
    held = await storage.broker.claims.claim_session(author.session, "w1", "c1", parked=True)
    assert held is not None
    await storage.broker.claims.release(held.claim)
    assert await seal_session(mover, author.session) is Moved.BUSY
    shard = storage.broker.keys.shard_of(author.session)
    assert await storage.broker.claims.claim("default", "w1", "c1", shard) is not None


async def test_ended_session_is_archived_after_its_time_and_comes_back(
    mover: Mover, storage: Storage
) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(300))).closes()
    log, state = await log_of(storage, author.session), await state_of(storage, author.session)
    assert await archive_session(mover, author.session, NOON_MS + DAY_MS - 1) is Moved.NOT_DUE
    assert await archive_session(mover, author.session, NOON_MS + DAY_MS) is Moved.DONE
    head = await head_of(storage, author.session)
    assert head.archived
    assert await in_redis(storage, author.session) == []
    assert await log_of(storage, author.session) == log
    with pytest.raises(SessionArchived):
        await is_told(storage, author.session)
    assert await restore_session(storage, author.session)
    assert not await restore_session(storage, author.session)
    await is_told(storage, author.session)
    assert await state_of(storage, author.session) == state
    await author.writes(some_entries(5))
    assert [entry.seq for entry in await log_of(storage, author.session)] == list(range(1, 307))


@pytest.mark.parametrize("moves", ["sealed", "archived"])
@pytest.mark.parametrize("how", ["deleted", "lost", "made again and lost"])
async def test_session_that_goes_while_it_is_moved_ends_no_job_and_a_deleted_one_leaves_no_segment(
    mover: Mover,
    storage: Storage,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    moves: str,
) -> None:
    author = await Author(storage).is_born()
    await (await (await author.writes(some_entries(30))).closes()).snapshots()
    members, written = (
        await storage.broker.trees.members(TreeId(author.session)),
        storage.archive.write_segment,
    )

    async def and_it_goes(*args: object) -> object:
        if how == "deleted":
            await delete_everywhere(storage, members)
        else:
            # Of one that was made again Redis knows that it was deleted before.
            before = (members[-1].created_ms - 1, author.session) if "again" in how else (1, "another")
            shard = storage.broker.keys.shard_of(author.session)
            await connection.command("ZADD", storage.broker.keys.deleted(shard), *before)
            await connection.command("DEL", storage.broker.keys.session(author.session))
        return await written(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(storage.archive, "write_segment", and_it_goes)
    if moves == "sealed":
        assert await seal_session(mover, author.session) is Moved.NOT_DUE
    else:
        assert await archive_session(mover, author.session, NOON_MS + DAY_MS) is Moved.NOT_DUE
    left = await storage.archive.segments(TreeId(author.session), author.session)
    assert len(left) == (how != "deleted"), "what Redis has only lost may have its last copy there"


@pytest.mark.parametrize("reads", [0, 1])
async def test_session_that_is_deleted_while_it_is_restored_is_unknown_and_not_damaged(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(30))).closes()
    assert await archive_session(mover, author.session, NOON_MS + DAY_MS) is Moved.DONE
    read, left = storage.archive.read_segment, iter(range(reads))

    async def and_retention_comes(segment: Segment) -> object:
        if next(left, None) is None:
            await storage.broker.trees.delete_session(author.session)
            await storage.archive.delete_tree(TreeId(author.session), 0)
        return await read(segment)

    monkeypatch.setattr(storage.archive, "read_segment", and_retention_comes)
    with pytest.raises(UnknownSession):
        await restore_session(storage, author.session)


async def test_restored_session_can_be_archived_again(mover: Mover, storage: Storage) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(30))).closes()
    for _ in range(2):
        assert await archive_session(mover, author.session, NOON_MS + DAY_MS) is Moved.DONE
        assert await restore_session(storage, author.session)
    await author.writes(some_entries(30))
    await author.closes()
    assert await archive_session(mover, author.session, NOON_MS + DAY_MS) is Moved.DONE
    assert len(await log_of(storage, author.session)) == 62


async def test_large_texts_come_back_with_their_session(
    mover: Mover, storage: Storage, connection: Connection
) -> None:
    large = "x" * 100_000
    author = await Author(storage).is_born()
    output = {"type": "function_call_output", "call_id": "c", "output": large}
    await (await author.writes([e.item(output)])).closes()
    assert await archive_session(mover, author.session, NOON_MS + DAY_MS) is Moved.DONE
    tree = (await head_of(storage, author.session)).tree
    keys = storage.broker.keys
    digests = [d.decode() for d in await connection.command("SMEMBERS", keys.blobs(tree))]
    assert len(digests) == 1
    await connection.command("DEL", keys.blob(tree, digests[0]), keys.blobs(tree))
    assert await storage.blobs.get(tree, digests[0]) is None
    assert await storage.archive.read_blob(tree, digests[0]) == large.encode()
    await restore_session(storage, author.session)
    assert await storage.blobs.get(tree, digests[0]) == large.encode()


async def test_broken_log_is_not_sealed(mover: Mover, storage: Storage, connection: Connection) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(50))).snapshots()
    await connection.command("XDEL", storage.broker.keys.rollout(author.session), "7-0")
    with pytest.raises(BrokenArchive):
        await seal_session(mover, author.session)
    assert len(await in_redis(storage, author.session)) == 49


async def test_unusable_snapshot_is_made_good_from_the_archive(
    mover: Mover, storage: Storage, connection: Connection
) -> None:
    author = await _sealed(mover)
    before = await state_of(storage, author.session)
    for damage in (b"not a snapshot", b'{"core":0,"seq":300,"head":""}\n{}'):
        await connection.command("SET", storage.broker.keys.snapshot(author.session), damage)
        assert await state_of(storage, author.session) == before


async def test_session_of_ten_thousand_entries_loads_from_snapshot_and_tail_alone(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await _sealed(mover, entries=10_000, tail=100)
    read: list[tuple[int, int]] = []
    read_rollout = storage.broker.logs.read_rollout

    async def counted(session: object, after_seq: int = 0, count: int = 1_000) -> object:
        page = await read_rollout(author.session, after_seq, count)
        read.append((after_seq, len(page)))
        return page

    async def never(*args: object) -> object:
        raise AssertionError("the archive was read")

    monkeypatch.setattr(storage.broker.logs, "read_rollout", counted)
    monkeypatch.setattr(storage.archive, "read_segment", never)
    position = await folded(storage, end_of(await head_of(storage, author.session)))
    assert digest(position.state) == digest(author.position.state)
    assert read == [(10_000, 100)]


async def test_texts_of_a_long_log_are_looked_for_500_entries_at_a_time(storage: Storage) -> None:
    author = await (await Author(storage).is_born()).writes(some_entries(1_300))
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)

    assert await referenced_blobs(replace(storage, sleep=noted), author.session) == set()
    assert pauses == [0, 0], "others run in between"


async def test_audit_of_a_long_log_lets_others_run_in_between(storage: Storage) -> None:
    author = await (await Author(storage).is_born()).writes(some_entries(1_300))
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)

    head = await storage.broker.logs.head(author.session)
    assert head is not None
    audit = await audit_session(replace(storage, sleep=noted), head)
    assert audit.findings == []
    assert len(pauses) >= 2


async def test_audit_finds_each_lost_text_of_a_fork_of_a_fork(
    storage: Storage, connection: Connection
) -> None:
    """The fork refers to what it inherited, that to what its source had inherited, and that to an output."""
    log, texts, _ = grandchild("begin" * 3_000, "go on" * 3_000)
    author = await Author(storage).is_born()
    for text in texts.values():
        await storage.blobs.put(TreeId(author.session), text.encode())
    await author.writes([decode_entry(log[1].payload)])
    head = await storage.broker.logs.head(author.session)
    assert head is not None
    assert (await audit_session(storage, head)).findings == []
    for digest_of_text in sorted(texts):
        key = storage.broker.keys.blob(TreeId(author.session), digest_of_text)
        kept = await connection.command("GET", key)
        await connection.command("DEL", key)
        [found] = (await audit_session(storage, head)).findings
        assert digest_of_text[:16] in found.reason
        await connection.command("SET", key, kept)
