"""Actors of these tests: sessions whose logs are written as a worker writes them."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import (
    UNLABELLED,
    BrokerConfig,
    Claim,
    CommitRequest,
    Committed,
    Labels,
    NewTree,
    SessionHead,
    Stored,
    StoredEntry,
    Submit,
)
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.chain import GENESIS
from orchestrator.core.commands import Moment
from orchestrator.core.commit_parts import NewSession, TreePart
from orchestrator.core.decide.draft import Note, noted
from orchestrator.core.entries import Entry
from orchestrator.core.history import user_message
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id
from orchestrator.core.snapshot import digest, encode_snapshot
from orchestrator.core.state import State
from orchestrator.protocol.events import AgentMessage
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.full_log import full_log
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.journal import Step, Writer
from orchestrator.runtime.loader import end_of, folded
from workers.upkeep_sealing import Mover

NOON_MS = 1_758_362_400_000
DAY_MS = 86_400_000
_numbers = itertools.count(1)


def storage_over(connection: Connection, archive: Path, **config: Any) -> Storage:
    broker = Broker(connection, BrokerConfig(**{"lease_s": 60.0, **config}), time.monotonic)
    return Storage(broker, Blobs(connection, broker.keys), Archive.at(archive.as_uri()))


def mover_of(storage: Storage, seal_after: int = 10) -> Mover:
    return Mover(storage, "upkeep", seal_after, archive_after_ms=DAY_MS)


def session_id(shard: int = 3) -> SessionId:
    return new_session_id(NOON_MS, shard, next(_numbers))


def some_entries(count: int, words: str = "word") -> list[Entry]:
    """Mostly events, and now and then something that the state remembers."""
    return [
        e.item(user_message(f"{words} {n}"))
        if n % 100 == 0
        else e.event("t1", AgentMessage(message=f"{words} {n}"))
        for n in range(count)
    ]


class Author:
    """A session and the worker that writes it."""

    def __init__(self, storage: Storage, session: SessionId | None = None) -> None:
        self.storage = storage
        self.session = session or session_id()
        self.position = Position(State(), 0, GENESIS)
        self._claim: Claim | None = None
        self._last_commit = ""
        self.at_ms = NOON_MS
        """The time of what it writes."""
        self.announced_ms = 1
        """When Redis was told of it; at first a moment that Redis does not know."""

    async def is_born(
        self, tree: TreeId | None = None, labels: Labels = UNLABELLED, pool: str = "default"
    ) -> Author:
        """In Redis, parked; as a child if the tree is another's."""
        broker = self.storage.broker
        if tree is None:
            root = NewSession(self.session, TreeId(self.session), pool, AgentId(0))
            await broker.commits.create(NewTree(root, labels=labels))
        else:
            (number,) = await broker.trees.reserve(tree, 1)
            born = NewSession(self.session, tree, "default", AgentId(number))
            author = Author(self.storage, SessionId(tree))
            await author._take()
            await author._commit([], tree=TreePart(children=(born,)), release="park")
        return self

    async def writes(
        self,
        entries: Iterable[Entry],
        *,
        status: str = "idle",
        ended_ms: int = NOON_MS,
        summary: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Author:
        """Takes the session, commits entries, parks it again; `summary` is more of what lists show of it."""
        await self._take()
        pending = list(entries)
        while len(pending) > 200:
            await self._commit(pending[:200])
            pending = pending[200:]
        meta = orjson.dumps({"updated_ms": ended_ms, **(summary or {})})
        await self._commit(pending, release="park", status=status, meta=meta, **more)
        return self

    async def closes(self, ended_ms: int = NOON_MS) -> Author:
        return await self.writes([e.fact(f.Closed())], status="closed", ended_ms=ended_ms)

    async def snapshots(self) -> Author:
        """Leaves a snapshot of where the session stands."""
        claim = await self._take()
        position = self.position
        data = encode_snapshot(position.state, position.seq, position.head)
        assert isinstance(await self.storage.broker.commits.snapshot(claim, position.seq, data), Stored)
        await self.storage.broker.claims.release(claim, park_at=position)
        self._claim = None
        return self

    async def _take(self) -> Claim:
        if self._claim is None:
            found = await self.storage.broker.claims.claim_session(
                self.session, "author", secrets.token_hex(8), parked=True
            )
            assert found is not None, "somebody else holds the session"
            self._claim, self._last_commit = found.claim, found.last_commit
            self._cursor = found.sq_tip
            if found.seq != self.position.seq:
                head = await self.storage.broker.logs.head(self.session)
                assert head is not None
                self.position = await folded(self.storage, end_of(head))
        return self._claim

    async def _commit(self, entries: Sequence[Entry], **more: Any) -> None:
        claim = await self._take()
        step = Step(self.position, Writer(claim.epoch, secrets.token_bytes), self.at_ms)
        moment = Moment(self.at_ms, claim.epoch, self.position.seq)
        step.take(noted(self.position.state, Note(tuple(entries)), moment))
        for content in step.blobs.values():
            await self.storage.blobs.put(claim.tree, content)
        request = CommitRequest(
            claim,
            secrets.token_hex(8),
            self.position.seq,
            self.position.head,
            self._last_commit,
            entries=tuple(step.entries),
            events=tuple(step.events),
            cursor=self._cursor,
            **more,
        )
        answer = await self.storage.broker.commits.commit(request)
        assert isinstance(answer, Committed), answer
        self.position, self._last_commit = step.position, answer.last_commit
        if more.get("release") == "park":
            assert answer.released
            self._claim = None


async def head_of(storage: Storage, session: SessionId) -> SessionHead:
    head = await storage.broker.logs.head(session)
    assert head is not None
    return head


async def log_of(storage: Storage, session: SessionId) -> list[StoredEntry]:
    """The whole log, wherever it is."""
    return [entry async for entry in full_log(storage.broker.logs, storage.archive, session)]


async def state_of(storage: Storage, session: SessionId) -> str:
    """The digest of what a worker would load."""
    return digest((await folded(storage, end_of(await head_of(storage, session)))).state)


async def in_redis(storage: Storage, session: SessionId) -> list[int]:
    """The numbers of the entries that Redis still holds."""
    return [entry.seq for entry in await storage.broker.logs.read_rollout(session, 0, 100_000)]


async def is_told(storage: Storage, session: SessionId, submission: str = "s1") -> None:
    await storage.broker.commits.submit(Submit(session, "client", submission, b"op"))
