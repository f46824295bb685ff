"""Sessions that wait for long: their logs leave Redis to the end, and nothing that anybody reads changes."""

from __future__ import annotations

import hashlib
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.broker.follow import BEGINNING, CaughtUp, EqCursor, Replayed, follow
from orchestrator.broker.records import RedactedEntry, Refused, SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core import snapshot
from orchestrator.core.entries import fact
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import digest
from orchestrator.recent import Recent
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.chain_check import audit_session
from orchestrator.rollouts.imports import IMPORTING
from orchestrator.rollouts.segments import BrokenArchive, Manifest
from orchestrator.wiring.open_deployment import SealedLogs
from tests.broker.doubles import FakeClock
from tests.workers.actors import (
    NOON_MS,
    Author,
    head_of,
    in_redis,
    is_told,
    log_of,
    some_entries,
    state_of,
)
from workers import upkeep_sealing
from workers.upkeep_sealing import Moved, Mover, due_to_seal_whole, seal_session

pytestmark = pytest.mark.realredis

HOUR_MS = 3_600_000


@pytest.fixture
def mover(mover: Mover) -> Mover:
    return replace(mover, seal_idle_ms=HOUR_MS)


async def _asked(storage: Storage, entries: int = 30) -> Author:
    """A session that waits for a person."""
    author = await Author(storage).is_born()
    return await author.writes(some_entries(entries), status="awaiting_approval")


async def test_session_that_waits_is_sealed_to_its_end_and_goes_on(mover: Mover, storage: Storage) -> None:
    author = await _asked(storage)
    log, state = await log_of(storage, author.session), await state_of(storage, author.session)
    assert await seal_session(mover, author.session) is Moved.DONE
    assert await in_redis(storage, author.session) == []
    assert await storage.broker.logs.snapshot_of(author.session) is None
    assert await log_of(storage, author.session) == log
    assert await state_of(storage, author.session) == state == digest(author.position.state)
    head = await head_of(storage, author.session)
    assert (head.status, head.holder, head.sealed_seq, head.snapshot_seq) == (
        "awaiting_approval",
        None,
        30,
        0,
    )
    assert await seal_session(mover, author.session) is Moved.NOT_DUE
    await author.writes(some_entries(5))
    assert await in_redis(storage, author.session) == [31, 32, 33, 34, 35]
    assert not (await audit_session(storage, await head_of(storage, author.session))).findings


async def test_session_that_rests_again_and_again_has_one_segment(mover: Mover, storage: Storage) -> None:
    author = await _asked(storage)
    for _ in range(4):
        assert await seal_session(mover, author.session) is Moved.DONE
        await author.writes(some_entries(3))
    log = await log_of(storage, author.session)
    assert await seal_session(mover, author.session) is Moved.DONE
    (segment,) = Manifest.decode((await head_of(storage, author.session)).manifest).segments
    assert (segment.first, segment.last) == (1, 42)
    assert await log_of(storage, author.session) == log


async def test_long_log_keeps_its_snapshot_and_is_sealed_in_stretches(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_sealing, "FOLDED_AT_MOST", 20)
    author = await _asked(storage, 320)
    monkeypatch.setattr(snapshot, "_PARTS", snapshot._Parts())
    assert await seal_session(mover, author.session) is Moved.DONE
    assert not snapshot._PARTS._kept, "a state that is encoded once leaves nothing behind"
    head = await head_of(storage, author.session)
    assert (head.sealed_seq, head.snapshot_seq) == (320, 320)
    assert await state_of(storage, author.session) == digest(author.position.state)
    await author.writes(some_entries(19))
    assert await seal_session(mover, author.session) is Moved.NOT_DUE
    await author.writes(some_entries(1))
    assert await seal_session(mover, author.session) is Moved.DONE
    assert len(Manifest.decode((await head_of(storage, author.session)).manifest).segments) == 2


async def test_session_that_has_not_waited_for_long_stays_in_redis(mover: Mover, storage: Storage) -> None:
    author = await _asked(storage)
    head = await head_of(storage, author.session)
    assert not due_to_seal_whole(mover, head, NOON_MS + HOUR_MS - 1)
    assert due_to_seal_whole(mover, head, NOON_MS + HOUR_MS)
    assert not due_to_seal_whole(replace(mover, seal_idle_ms=None), head, NOON_MS + HOUR_MS)
    assert not due_to_seal_whole(mover, replace(head, status=IMPORTING), NOON_MS + HOUR_MS)
    assert not due_to_seal_whole(mover, replace(head, holder="w1"), NOON_MS + HOUR_MS)
    await is_told(storage, author.session)
    assert await seal_session(mover, author.session) is Moved.NOT_DUE


async def test_session_that_is_given_something_while_its_segment_is_written_goes_on(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await _asked(storage)
    written = storage.archive.write_segment

    async def meanwhile(*args: object) -> object:
        segment = await written(*args)  # type: ignore[arg-type]
        await author.writes([fact(f.Closed())], status="closed")
        return segment

    monkeypatch.setattr(storage.archive, "write_segment", meanwhile)
    assert await seal_session(mover, author.session) is Moved.BUSY
    assert await in_redis(storage, author.session) == list(range(1, 32))


async def test_log_that_ends_elsewhere_is_not_sealed_whole(storage: Storage) -> None:
    author = await _asked(storage)
    claim = await author._take()
    assert isinstance(await storage.broker.commits.seal(claim, 29, b"m", whole=True), Refused)
    assert isinstance(await storage.broker.commits.seal(claim, 31, b"m", whole=True), Refused)


async def test_job_that_finds_the_log_sealed_anew_by_another_leaves_it(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await _asked(storage)
    before, look = await storage.broker.logs.head(author.session), storage.broker.logs.head
    assert await seal_session(mover, author.session) is Moved.DONE
    sealed = await head_of(storage, author.session)
    stale = iter([before])

    async def late(session: SessionId) -> SessionHead | None:
        return next(stale, None) or await look(session)

    monkeypatch.setattr(storage.broker.logs, "head", late)
    assert await seal_session(mover, author.session) is Moved.BUSY
    head = await head_of(storage, author.session)
    assert head == replace(sealed, epoch=head.epoch)


@pytest.mark.parametrize("sealed", [True, False])
async def test_entries_that_have_left_redis_are_not_sealed_and_told_only_where_nobody_sealed_them(
    mover: Mover, storage: Storage, sealed: bool
) -> None:
    author = await _asked(storage)
    seen = await head_of(storage, author.session)
    if sealed:
        assert await seal_session(mover, author.session) is Moved.DONE
        assert await upkeep_sealing._sealed_through(storage, seen, 30) is None
        return
    log = storage.broker.keys.rollout(author.session)
    await storage.broker.command("XTRIM", log, "MAXLEN", "20")
    with pytest.raises(BrokenArchive, match=f"session {author.session}"):
        await upkeep_sealing._sealed_through(storage, seen, 30)
    await storage.broker.command("DEL", log)
    with pytest.raises(BrokenArchive, match="entry 1 is missing in Redis"):
        await upkeep_sealing._sealed_through(storage, seen, 30)


async def test_archive_that_lost_the_segment_is_told(mover: Mover, storage: Storage) -> None:
    author = await _asked(storage)
    assert await seal_session(mover, author.session) is Moved.DONE
    (segment,) = Manifest.decode((await head_of(storage, author.session)).manifest).segments
    await storage.archive.remove_segment(segment.name)
    await _asked_beside(mover, storage)
    with pytest.raises(BrokenArchive, match="is missing"):
        await log_of(storage, author.session)


async def _asked_beside(mover: Mover, storage: Storage) -> None:
    """Another session in the archive: one that holds nothing counts as away."""
    assert await seal_session(mover, (await _asked(storage)).session) is Moved.DONE


# ── who reads it ──────────────────────────────────────────────────────────────────────────────────


async def _replayed(storage: Storage, session: SessionId, count: int) -> list[int]:
    """The entries that a follower from the beginning is told of, when the events are gone."""
    await storage.broker.command("DEL", storage.broker.keys.eq(session))
    seen: list[int] = []
    async with aclosing(follow(storage.broker.logs, session, EqCursor(1, 0, BEGINNING.hash8))) as items:
        async for item in items:
            if isinstance(item, CaughtUp):
                break
            seen += [item.entry.seq] if isinstance(item, Replayed) else []
    return seen[:count]


async def test_doors_read_a_log_that_was_sealed_to_its_end_as_before(mover: Mover, storage: Storage) -> None:
    author, logs = await _asked(storage), storage.broker.logs
    whole, asks = await logs.read_rollout(author.session), [(author.session, 10, 5), (author.session, 28, 5)]
    several = await logs.read_rollouts(asks)
    assert await seal_session(mover, author.session) is Moved.DONE
    assert await logs.read_rollouts(asks) == [(), ()]
    logs.sealed = SealedLogs(lambda: storage.archive).read
    assert await logs.read_rollout(author.session) == whole
    assert await logs.read_rollouts(asks) == several
    await author.writes(some_entries(3))
    assert [entry.seq for entry in await logs.read_rollout(author.session, 25)] == list(range(26, 34))
    assert [entry.seq for entry in await logs.read_rollout(author.session, 27, 4)] == [28, 29, 30, 31]
    assert await _replayed(storage, author.session, 40) == list(range(1, 34))


async def test_doors_read_a_redacted_log_without_its_words(mover: Mover, storage: Storage) -> None:
    author, logs = await _asked(storage), storage.broker.logs
    assert await seal_session(mover, author.session) is Moved.DONE
    entry = (await log_of(storage, author.session))[6]
    gone = RedactedEntry(7, entry.epoch, hashlib.sha256(b"").digest(), entry.chain, b"{}")
    await author.writes([], redacted=(gone,), redacting=("",))
    logs.sealed = SealedLogs(lambda: storage.archive).read
    assert (await logs.read_rollout(author.session, 6, 1))[0].payload == b"{}"


async def test_doors_read_each_entry_once_of_a_log_that_is_sealed_further_meanwhile(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author, logs = await _asked(storage), storage.broker.logs
    assert await seal_session(mover, author.session) is Moved.DONE
    await author.writes(some_entries(3))
    with_redacted = logs._with_redacted

    async def meanwhile(*args: Any) -> tuple[StoredEntry, ...]:
        monkeypatch.setattr(logs, "_with_redacted", with_redacted)
        assert await seal_session(mover, author.session) is Moved.DONE
        return await with_redacted(*args)

    logs.sealed = SealedLogs(lambda: storage.archive).read
    monkeypatch.setattr(logs, "_with_redacted", meanwhile)
    assert [entry.seq for entry in await logs.read_rollout(author.session)] == list(range(1, 34))


async def test_long_log_is_not_read_out_of_the_archive_by_the_way(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author, logs = await _asked(storage), storage.broker.logs
    assert await seal_session(mover, author.session) is Moved.DONE
    logs.sealed = SealedLogs(lambda: storage.archive).read
    monkeypatch.setattr("orchestrator.broker.logs.SHORT", 29)
    assert await logs.read_rollout(author.session) == ()


async def test_doors_do_without_an_archive_that_is_away(mover: Mover, storage: Storage) -> None:
    author, logs = await _asked(storage), storage.broker.logs
    assert await seal_session(mover, author.session) is Moved.DONE
    await author.writes(some_entries(2))
    await storage.archive.delete_tree(TreeId(author.session), 0)
    logs.sealed = SealedLogs(lambda: storage.archive).read
    assert [entry.seq for entry in await logs.read_rollout(author.session)] == [31, 32]


async def test_doors_keep_segments_within_a_bound(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    authors = [await _asked(storage) for _ in range(3)]
    for author in authors:
        assert await seal_session(mover, author.session) is Moved.DONE
    kept = _kept_by_doors(storage)
    await storage.broker.logs.read_rollout(authors[0].session)
    size = kept.bytes
    for most_bytes, segments in ((2 * size + size // 2, 2), (size // 2, 0)):
        monkeypatch.setattr(SealedLogs, "MOST_BYTES", most_bytes)
        kept = _kept_by_doors(storage)
        for author in authors:
            assert len(await storage.broker.logs.read_rollout(author.session)) == 30
        assert (len(kept), kept.bytes) == (segments, segments * size)


def _kept_by_doors(storage: Storage) -> Recent[str, tuple[StoredEntry, ...]]:
    reader = SealedLogs(lambda: storage.archive)
    storage.broker.logs.sealed = reader.read
    return reader._kept


async def test_doors_drop_a_segment_that_nobody_reads_any_more(mover: Mover, storage: Storage) -> None:
    first, second = [await _asked(storage) for _ in range(2)]
    for author in (first, second):
        assert await seal_session(mover, author.session) is Moved.DONE
    clock = FakeClock()
    reader = SealedLogs(lambda: storage.archive, clock.monotonic)
    storage.broker.logs.sealed = reader.read
    kept = []
    for pause_s, author in ((0, first), (40, second), (21, second), (1, first), (60, first)):
        clock.advance(pause_s)
        assert len(await storage.broker.logs.read_rollout(author.session)) == 30
        kept.append(len(reader._kept))
    # At 61 s nobody has read the first since 0 s; it is read again at 62, and the second is dropped at 122.
    assert kept == [1, 2, 1, 2, 1]
