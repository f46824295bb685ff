"""Readers of a log get all of it, or are told what is missing: never a log with a silent hole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.blobs import Texts
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import StoredEntry
from orchestrator.core.ids import TreeId
from orchestrator.core.settings import SessionFacts
from orchestrator.core.snapshot import digest
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import full_log
from orchestrator.rollouts.rollout_file import RolloutFile
from orchestrator.rollouts.segments import BrokenArchive, Manifest
from orchestrator.runtime.loader import BrokenLog, Cache, load
from orchestrator.runtime.lookups import TreeLookups
from orchestrator.runtime.ports import Ports
from orchestrator.tools.subagents import LogUnreadable
from tests.workers.actors import Author, some_entries
from workers.upkeep_sealing import Moved, Mover, seal_session

pytestmark = pytest.mark.realredis


@pytest.fixture
async def author(mover: Mover, storage: Storage) -> Author:
    """A session whose first 40 of 60 entries are sealed."""
    written = await Author(storage).is_born()
    await (await written.writes(some_entries(40))).snapshots()
    await written.writes(some_entries(20))
    assert await seal_session(mover, written.session) is Moved.DONE
    return written


def _ports(storage: Storage, *, archived: bool) -> Ports:
    """A worker's, with or without an archive to read; it runs nothing here."""
    nobody = cast(Any, None)
    return Ports(
        broker=storage.broker,
        texts=Texts(storage.blobs),
        models=nobody,
        tools=nobody,
        archive=storage.archive if archived else None,
    )


async def test_worker_without_a_usable_snapshot_loads_from_the_archive(
    author: Author, storage: Storage, connection: Connection
) -> None:
    claimed = await storage.broker.claims.claim_session(author.session, "w1", "c1", parked=True)
    assert claimed is not None
    without_archive, with_archive = (_ports(storage, archived=archived) for archived in (False, True))
    position = (await load(without_archive, claimed, Cache())).position
    assert digest(position.state) == digest(author.position.state)
    await connection.command("DEL", storage.broker.keys.snapshot(author.session))
    position = (await load(with_archive, claimed, Cache())).position
    assert digest(position.state) == digest(author.position.state)
    with pytest.raises(BrokenLog, match="given no archive"):
        await load(without_archive, claimed, Cache())


async def test_snapshot_of_a_forgotten_branch_does_not_stop_a_session(
    author: Author, storage: Storage, connection: Connection
) -> None:
    """Redis was put back to before the snapshot, the snapshot's key was not."""
    data = await storage.broker.logs.snapshot_of(author.session)
    assert data is not None
    place, _, body = data.partition(b"\n")
    forgotten = orjson.dumps({**orjson.loads(place), "head": "ab" * 32}) + b"\n" + body
    await connection.command("SET", storage.broker.keys.snapshot(author.session), forgotten)
    claimed = await storage.broker.claims.claim_session(author.session, "w1", "c1", parked=True)
    assert claimed is not None
    position = (await load(_ports(storage, archived=True), claimed, Cache())).position
    assert digest(position.state) == digest(author.position.state)


async def test_file_of_a_sealed_session_is_written_in_full_or_not_at_all(
    author: Author, storage: Storage, tmp_path: Path
) -> None:
    path = tmp_path / "sessions" / "rollout.jsonl"
    file = RolloutFile(path, author.session, TreeId(author.session))
    with pytest.raises(BrokenArchive, match="given no archive"):
        await file.bring_up_to(_ports(storage, archived=False), author.position)
    assert path.read_bytes() == b""
    assert await file.bring_up_to(_ports(storage, archived=True), author.position) == 60
    assert [orjson.loads(line)["seq"] for line in path.read_bytes().splitlines()] == list(range(1, 61))


async def test_agent_reads_a_log_whose_newest_entries_are_sealed(
    author: Author, storage: Storage, tmp_path: Path
) -> None:
    facts = SessionFacts(session_id=author.session, tree_id=TreeId(author.session))
    before = len(await storage.broker.logs.read_rollout(author.session, 0, 100))
    assert before == 20, "the older part is in the archive alone"
    events = await TreeLookups.of(_ports(storage, archived=True), facts).log(author.session)
    told = [event["msg"].get("message") for _, _, event in events]
    words = [f"word {n}" for count in (40, 20) for n in range(1, count)]
    assert told == words
    with pytest.raises(LogUnreadable, match="given no archive"):
        await TreeLookups.of(_ports(storage, archived=False), facts).log(author.session)


async def test_reader_of_a_tree_that_is_deleted_meanwhile_is_told_that_it_is_gone(
    author: Author, storage: Storage, connection: Connection
) -> None:
    """Its segments go with it, and are not called damaged."""

    class Deleting:
        def read_entries(self, manifest: Manifest, after: int, through: int) -> AsyncIterator[StoredEntry]:
            return self._read(manifest, after, through)

        async def _read(self, manifest: Manifest, after: int, through: int) -> AsyncIterator[StoredEntry]:
            keys = storage.broker.keys
            await connection.command("DEL", keys.session(author.session), keys.rollout(author.session))
            await storage.archive.delete_tree(TreeId(author.session), 0)
            async for entry in storage.archive.read_entries(manifest, after, through):
                yield entry

    with pytest.raises(UnknownSession):
        [entry async for entry in full_log(storage.broker.logs, Deleting(), author.session)]
