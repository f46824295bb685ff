"""Retention: a tree goes as a whole, when its time has come and nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import SessionHeld
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import TreeId
from orchestrator.rollouts.archive import NOTED_MS, Storage
from orchestrator.rollouts.deletion import NotDeleted, delete_everywhere
from orchestrator.rollouts.imports import IMPORTING
from orchestrator.rollouts.object_store import ArchiveUnavailable
from tests.workers.actors import DAY_MS, NOON_MS, Author, is_told, session_id, some_entries
from workers.upkeep import Upkeep, retain
from workers.upkeep_checks import verify_session
from workers.upkeep_retention import delete_tree, end_imports, expired_trees, finish_deletions, old_imports
from workers.upkeep_sealing import Moved, Mover, archive_session

pytestmark = pytest.mark.realredis

LATER_MS = NOON_MS + DAY_MS


async def _retain(storage: Storage, after_ms: int = DAY_MS) -> list[bool]:
    """The trees that upkeep deletes so long after now."""
    now_ms = await storage.broker.server_ms() + after_ms
    return [await delete_tree(storage, found) async for found in expired_trees(storage, now_ms, DAY_MS)]


async def _expired(storage: Storage) -> tuple[SessionHead, ...]:
    """The sessions of the one tree that upkeep would delete tomorrow."""
    now_ms = await storage.broker.server_ms() + DAY_MS
    (members,) = [found async for found in expired_trees(storage, now_ms, DAY_MS)]
    return members


async def test_ended_tree_leaves_nothing_in_redis_or_archive(
    mover: Mover, storage: Storage, connection: Connection, tmp_path: Path
) -> None:
    empty = set(await connection.command("KEYS", "*"))
    root = await Author(storage).is_born()
    child = await Author(storage, session_id()).is_born(TreeId(root.session))
    for author in (root, child):
        await (await author.writes(some_entries(20))).closes()
        assert await archive_session(mover, author.session, LATER_MS) is Moved.DONE
    assert list((tmp_path / "archive" / root.session).iterdir())
    assert await _retain(storage, DAY_MS // 2) == []
    assert await _retain(storage) == [True]
    left = set(await connection.command("KEYS", "*")) - empty
    # The pool's clock and notices are the deployment's, not the tree's.
    beside = (b":clock:", b":ready:", b":deleted", b":released", b":changed")
    assert [key for key in left if not any(part in key for part in beside)] == []
    assert not (tmp_path / "archive" / root.session).exists()


async def test_tree_is_not_told_deleted_while_the_archive_is_away_that_has_to_note_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = await Author(storage).is_born()
    await root.closes()

    async def away(*asked: Any) -> None:
        raise ArchiveUnavailable("not mounted")

    with monkeypatch.context() as patched:
        patched.setattr(storage.archive, "condemn", away)
        with pytest.raises(ArchiveUnavailable):
            await _retain(storage)
    assert "deleted" not in caplog.text
    assert await storage.broker.logs.head(root.session) is not None
    assert await _retain(storage) == [True]


async def test_open_session_is_kept_for_ever(storage: Storage) -> None:
    root = await Author(storage).is_born()
    await root.writes(some_entries(3))
    assert await _retain(storage, DAY_MS * 100) == []


async def test_tree_is_kept_while_one_of_its_sessions_has_something_to_do(storage: Storage) -> None:
    root = await Author(storage).is_born()
    child = await Author(storage, session_id()).is_born(TreeId(root.session))
    await root.closes()
    await is_told(storage, child.session)
    assert await _retain(storage) == []


async def test_tree_that_is_resumed_meanwhile_is_spared(storage: Storage) -> None:
    root = await (await Author(storage).is_born()).closes()
    members = await _expired(storage)
    await is_told(storage, root.session)
    assert not await delete_tree(storage, members)
    assert await storage.broker.logs.head(root.session) is not None
    assert await storage.archive.condemned() == ()


@pytest.mark.parametrize("who", [0, 1, 2])
async def test_tree_of_which_somebody_uses_one_session_keeps_every_agent(storage: Storage, who: int) -> None:
    root = await Author(storage).is_born()
    agents = [await Author(storage, session_id()).is_born(TreeId(root.session)) for _ in range(2)]
    family = [root, *agents]
    for author in family:
        await (await author.writes(some_entries(20))).closes()
    members = await _expired(storage)
    await is_told(storage, family[who].session)
    assert not await delete_tree(storage, members)
    for author in family:
        assert await verify_session(storage, author.session) is None
    assert await storage.archive.condemned() == ()


async def test_tree_whose_deletion_breaks_off_behind_redis_leaves_the_archive_later(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await (await (await Author(storage).is_born()).writes(some_entries(3))).closes()
    tree, deletes = TreeId(root.session), storage.broker.trees.delete_tree
    await storage.archive.write_blob(tree, "0" * 64, b"kept")

    async def dies(*members: Any, **how: Any) -> None:
        await deletes(*members, **how)
        raise asyncio.CancelledError

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(storage.broker.trees, "delete_tree", dies)
        await _retain(storage)
    assert await storage.broker.logs.head(root.session) is None
    assert await storage.archive.condemned() == (tree,)
    await finish_deletions(storage, await storage.broker.server_ms())
    assert not await storage.archive.has_blob(tree, "0" * 64)


async def test_job_that_dies_behind_a_deletion_it_did_not_see_leaves_nothing_for_good(
    storage: Storage,
) -> None:
    root = await (await (await Author(storage).is_born()).writes(some_entries(3))).closes()
    tree, archive = TreeId(root.session), storage.archive
    before_ms = await storage.broker.server_ms()
    assert await _retain(storage) == [True]
    await archive.write_blob(tree, "0" * 64, b"written by a job that was killed then")
    await finish_deletions(storage, before_ms)
    assert not await archive.has_blob(tree, "0" * 64)
    await archive.write_blob(tree, "0" * 64, b"written by another one")
    await finish_deletions(storage, before_ms + NOTED_MS - 1)
    assert not await archive.has_blob(tree, "0" * 64)
    assert await archive.condemned() == (tree,)
    await archive.write_blob(tree, "0" * 64, b"written by the last one")
    await finish_deletions(storage, await storage.broker.server_ms() + NOTED_MS)
    assert not await archive.has_blob(tree, "0" * 64)
    assert await archive.condemned() == ()


@pytest.mark.parametrize("refused", ["first", "second"])
async def test_note_of_a_deletion_outlives_another_ones_that_was_refused(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    root = await (await (await Author(storage).is_born()).writes(some_entries(3))).closes()
    tree, deletes = TreeId(root.session), storage.broker.trees.delete_tree
    members = await storage.broker.logs.heads_of_tree(tree)

    async def is_refused(*_: Any, **how: Any) -> None:
        if refused == "second":
            await deletes(members, **how)
        raise SessionHeld(root.session, "")

    async def comes_behind(*_: Any, **how: Any) -> None:
        monkeypatch.setattr(storage.broker.trees, "delete_tree", is_refused)
        with pytest.raises(SessionHeld):
            await delete_everywhere(storage, members)
        await deletes(members, **how)

    first = comes_behind if refused == "first" else is_refused
    monkeypatch.setattr(storage.broker.trees, "delete_tree", first)
    with suppress(SessionHeld):
        await delete_everywhere(storage, members)
    assert await storage.broker.logs.head(root.session) is None
    assert await storage.archive.condemned() == (tree,)


async def test_note_of_a_deletion_is_not_obeyed_for_a_tree_that_lives_and_stays_while_that_may_be_under_way(
    storage: Storage,
) -> None:
    root = await (await Author(storage).is_born()).writes(some_entries(20))
    tree = TreeId(root.session)
    await storage.archive.write_blob(tree, "0" * 64, b"kept")
    await storage.archive.condemn(tree, NOON_MS)
    for now_ms, left in ((NOON_MS + NOTED_MS - 1, (tree,)), (NOON_MS + NOTED_MS, ())):
        await finish_deletions(storage, now_ms)
        assert await storage.archive.condemned() == left
        assert await storage.archive.has_blob(tree, "0" * 64)


async def test_note_about_a_tree_that_cannot_be_read_is_not_obeyed_and_holds_up_no_other(
    storage: Storage,
) -> None:
    roots = [await (await Author(storage).is_born()).writes(some_entries(3)) for _ in range(3)]
    damaged = roots[1]
    for root in roots:
        await storage.archive.write_blob(TreeId(root.session), "0" * 64, b"kept")
        await storage.archive.condemn(TreeId(root.session), NOON_MS)
    key = storage.broker.keys.session(damaged.session)
    await storage.broker.command("HSET", key, "seq", "many")
    await finish_deletions(storage, LATER_MS)
    assert await storage.archive.condemned() == (TreeId(damaged.session),)
    assert await storage.archive.has_blob(TreeId(damaged.session), "0" * 64)


async def test_tree_whose_archive_cannot_be_removed_holds_up_no_other(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [
        await (await (await Author(storage).is_born()).writes(some_entries(3))).closes() for _ in range(2)
    ]
    removes, kept = storage.archive.delete_tree, min(str(root.session) for root in roots)

    async def removed(tree: TreeId, now_ms: int) -> None:
        if str(tree) == kept:
            raise ArchiveUnavailable(f"{tree}: it may not be removed")
        await removes(tree, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(storage.archive, "delete_tree", removed)
        assert await _retain(storage) == [True, True]
        await storage.archive.condemn(TreeId(session_id()), NOON_MS)
        later_ms = await storage.broker.server_ms() + NOTED_MS
        await finish_deletions(storage, later_ms)
        assert await storage.archive.condemned() == (kept,)
    assert [await storage.broker.logs.head(root.session) for root in roots] == [None, None]
    await finish_deletions(storage, later_ms)
    assert await storage.archive.condemned() == ()


async def test_each_tree_goes_when_its_time_is_over_whatever_its_shard_and_however_many_there_are(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.broker.trees.RESTING_AT_ONCE", 2)
    roots = [await Author(storage, session_id(shard)).is_born() for shard in (0, 3, 3, 3, 3, 3, 15)]
    for root in roots:
        await root.closes()
    used = roots[2]
    await is_told(storage, used.session)
    assert await _retain(storage) == [True] * 6
    left = [root.session for root in roots if await storage.broker.logs.head(root.session) is not None]
    assert left == [used.session]


async def test_tree_that_alone_says_what_is_to_be_redacted_holds_up_no_other(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [await (await Author(storage).is_born()).closes() for _ in range(3)]
    stays = min(root.session for root in roots)

    async def deleted(storage: Storage, members: Sequence[SessionHead]) -> bool:
        if members[-1].session == stays:
            raise NotDeleted("words of others are still to be redacted")
        return await delete_tree(storage, members)

    real = Deployment.now_ms
    monkeypatch.setattr(Deployment, "now_ms", lambda self: real(self) + DAY_MS)
    monkeypatch.setattr("workers.upkeep.delete_tree", deleted)
    await retain({"upkeep": Upkeep(mover, DAY_MS, 0, lambda: pytest.fail("nobody is to be reaped"))})
    left = [root.session for root in roots if await storage.broker.logs.head(root.session) is not None]
    assert left == [stays]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", ["ended", "importing"])
async def test_tree_that_cannot_be_deleted_holds_up_no_other(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str, place: int
) -> None:
    roots = [await Author(storage, session_id(shard)).is_born() for shard in (0, 3, 15)]
    for root in roots:
        await (root.closes() if kind == "ended" else root.writes(some_entries(1), status=IMPORTING))
    wrong = roots[place].session
    await storage.broker.command("DEL", storage.broker.keys.timer(wrong))
    await storage.broker.command("SET", storage.broker.keys.timer(wrong), "x")
    real = Deployment.now_ms
    monkeypatch.setattr(Deployment, "now_ms", lambda self: real(self) + DAY_MS)
    await retain({"upkeep": Upkeep(mover, DAY_MS, 0, lambda: pytest.fail("nobody is to be reaped"))})
    left = [root.session for root in roots if await storage.broker.logs.head(root.session) is not None]
    assert left == [wrong]


async def test_each_half_of_an_import_is_deleted_after_a_day_and_nothing_else(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.broker.trees.RESTING_AT_ONCE", 2)
    halves = [await Author(storage, session_id(shard)).is_born() for shard in (0, 3, 3, 3, 15)]
    whole = [await Author(storage, session_id(shard)).is_born() for shard in (0, 3, 15)]
    for half in halves:
        await half.writes(some_entries(1), status=IMPORTING)
    for author in whole:
        await author.writes(some_entries(1))
    now_ms = await storage.broker.server_ms() + DAY_MS
    found = await old_imports(storage, now_ms)
    assert {head.session for head in found} == {half.session for half in halves}
    assert await end_imports(storage, found, min(head.created_ms for head in found) + DAY_MS - 1) == 0
    # The last one was made whole in the meantime.
    await halves[-1].writes([], status="idle")
    assert await end_imports(storage, found, now_ms) == 4
    left = [one.session for one in (*halves, *whole) if await storage.broker.logs.head(one.session)]
    assert left == [halves[-1].session, *(author.session for author in whole)]
