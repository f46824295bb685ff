"""Upkeep dies at each of its steps in turn, before and after the effect; nothing is lost by any of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from orchestrator.broker.connection import Connection
from orchestrator.core import entries as e
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.archive import NOTED_MS, Archive, Storage
from orchestrator.runtime.loader import restore_session
from tests.workers.actors import (
    DAY_MS,
    NOON_MS,
    Author,
    head_of,
    in_redis,
    log_of,
    mover_of,
    session_id,
    some_entries,
    state_of,
    storage_over,
)
from tests.workers.deaths import Countdown, Death, MortalConnection, MortalObjects
from workers.upkeep_retention import delete_tree, expired_trees, finish_deletions
from workers.upkeep_sealing import Moved, Mover, archive_session, seal_session

pytestmark = pytest.mark.realredis

LATER_MS = NOON_MS + DAY_MS


@pytest.fixture
def mortal(connection: Connection, tmp_path: Path) -> Callable[[int], Mover]:
    """A mover that dies at its n-th step. Its leases run out at once: nobody waits for the dead."""

    def born(dies_at: int) -> Mover:
        countdown = Countdown(dies_at)
        folder = tmp_path / "archive"
        storage = storage_over(MortalConnection(connection, countdown), folder, lease_s=0.0)
        archive = Archive(MortalObjects(folder.as_uri(), countdown))
        return mover_of(Storage(storage.broker, storage.blobs, archive))

    return born


async def _survives(act: Awaitable[object]) -> bool:
    try:
        await act
    except Death:
        return False
    return True


async def _worker_passes(storage: Storage, session: SessionId) -> None:
    """A worker finds the abandoned claim, sees that nothing is owed, and parks the session."""
    held = await storage.broker.claims.claim_session(session, "w1", "c1")
    if held is not None:
        await storage.broker.claims.release(held.claim, park_at=held)


async def test_death_while_sealing_loses_nothing(
    mortal: Callable[[int], Mover], mover: Mover, storage: Storage
) -> None:
    for dies_at in count(1):
        author = await Author(storage).is_born()
        await (await author.writes(some_entries(40))).snapshots()
        log, state = await log_of(storage, author.session), await state_of(storage, author.session)
        survived = await _survives(seal_session(mortal(dies_at), author.session))
        assert await log_of(storage, author.session) == log
        assert await state_of(storage, author.session) == state
        if survived:
            break
        await _worker_passes(storage, author.session)
        assert await seal_session(mover, author.session) in (Moved.DONE, Moved.NOT_DUE)
        assert await in_redis(storage, author.session) == []
        assert await log_of(storage, author.session) == log
    assert dies_at > 10


async def test_death_while_archiving_loses_nothing(
    mortal: Callable[[int], Mover], mover: Mover, storage: Storage
) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "x" * 20_000}
    for dies_at in count(1):
        author = await Author(storage).is_born()
        await (await author.writes([*some_entries(30), e.item(output)])).closes()
        log, state = await log_of(storage, author.session), await state_of(storage, author.session)
        survived = await _survives(archive_session(mortal(dies_at), author.session, LATER_MS))
        assert await log_of(storage, author.session) == log
        assert await state_of(storage, author.session) == state
        if survived:
            break
        await _worker_passes(storage, author.session)
        await archive_session(mover, author.session, LATER_MS)
        assert (await head_of(storage, author.session)).archived
        assert await restore_session(storage, author.session)
        assert await state_of(storage, author.session) == state
    assert dies_at > 20


async def test_death_while_restoring_leaves_it_to_be_restored(
    mortal: Callable[[int], Mover], mover: Mover, storage: Storage
) -> None:
    for dies_at in count(1):
        author = await Author(storage).is_born()
        await (await author.writes(some_entries(30))).closes()
        state = await state_of(storage, author.session)
        assert await archive_session(mover, author.session, LATER_MS) is Moved.DONE
        survived = await _survives(restore_session(mortal(dies_at).storage, author.session))
        await restore_session(storage, author.session)
        assert not (await head_of(storage, author.session)).archived
        assert await state_of(storage, author.session) == state
        if survived:
            break
    assert dies_at > 5


async def test_death_while_deleting_leaves_no_orphans(
    mortal: Callable[[int], Mover], mover: Mover, storage: Storage, tmp_path: Path
) -> None:
    for dies_at in count(1):
        root = await Author(storage).is_born()
        tree = TreeId(root.session)
        child = await Author(storage, session_id()).is_born(tree)
        for author in (root, child):
            await (await author.writes(some_entries(20))).closes()
        assert await archive_session(mover, child.session, LATER_MS) is Moved.DONE
        survived = await _survives(_retain(mortal(dies_at).storage))
        await _retain(storage)
        assert await storage.broker.logs.head(root.session) is None
        assert await storage.broker.logs.head(child.session) is None
        assert not (tmp_path / "archive" / tree).exists()
        await finish_deletions(storage, await storage.broker.server_ms() + NOTED_MS)
        assert await storage.archive.condemned() == ()
        if survived:
            break
    assert dies_at > 10


async def _retain(storage: Storage) -> None:
    now_ms = await storage.broker.server_ms()
    await finish_deletions(storage, now_ms)
    now_ms += DAY_MS
    async for members in expired_trees(storage, now_ms, DAY_MS):
        await delete_tree(storage, members)
