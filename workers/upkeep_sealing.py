"""Moving logs from Redis to the archive: sealing, and archiving sessions of trees that rest.

A log is sealed behind its snapshot as it grows, and to its end when its session has waited for long: for a
person, for agents, for a timer. What waits is then as before, and the next claim of it folds the segments.

Everything slow happens without the session: entries behind a snapshot never change, so the
segment is written first, and only then is the session claimed, for as long as four round trips
take. The claim proves that nothing has happened since the look; if something has, nothing is
done, and the next look finds what is left to do.

What a death leaves, and what follows:

    before the claim         an object that no manifest names: written again under the same name,
                             or passed over when more was sealed at once; the tree may be deleted
                             meanwhile, and then the note of that leads to it
    under the claim          the lease runs out, a worker takes the session and parks it
    between seal and trim    cannot be: one script does both
    before `archive`         a session sealed to its end, as usable as before; archived next time

A session may also be deleted meanwhile, as nobody holds it: what was written behind that goes, too.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.logs import SHORT
from orchestrator.broker.records import Claimed, Fenced, Refused, SessionHead, Stored
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.core.state import State
from orchestrator.rollouts.archive import SEGMENT_ENTRIES, Storage, stretches
from orchestrator.rollouts.full_log import full_log, head_of
from orchestrator.rollouts.imports import IMPORTING
from orchestrator.rollouts.segments import BrokenArchive, Manifest
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.loader import end_of, folded, referenced_blobs

log = logging.getLogger("dendro.upkeep")

_AT_REST = ("idle", "closed")
"""Every other status says that the session waits for something."""
FOLDED_AT_MOST = SHORT
"""Entries of a log that is sealed to its end without a snapshot: to fold it takes some 20 ms. It is one
segment, which is written anew when the session has rested again: the manifest in Redis stays short."""
_GROWTH = 16
"""A stretch is at least this share of what is sealed: a log of a million entries has some 80 segments."""


class Moved(StrEnum):
    """The result of a session's move."""

    DONE = "done"
    NOT_DUE = "not due"
    BUSY = "busy"
    WAITS = "waits"
    """It owes something, or something is to come."""


@dataclass(frozen=True, slots=True)
class Mover:
    """An upkeep process, as the broker knows it, and its rules."""

    storage: Storage
    name: str
    seal_after: int
    archive_after_ms: int
    idle_after_ms: int | None = None
    """None: what nobody closed stays in Redis."""
    token: Callable[[int], str] = secrets.token_hex
    """Names its claims."""
    seal_idle_ms: int | None = None
    """None: what waits is sealed behind its snapshot alone."""


# ── when ──────────────────────────────────────────────────────────────────────────────────────────


def at_rest(head: SessionHead) -> bool:
    """Whether the session is parked, as far as its hash tells: a session that a worker has is left alone."""
    waits_for_worker = head.holder is not None or head.sq_tip != head.cursor or head.status == "running"
    return not (waits_for_worker or head.quarantined or head.archived)


def due_to_seal(head: SessionHead, seal_after: int) -> bool:
    """Whether enough of the log lies behind the snapshot."""
    stretch = max(seal_after, min(head.sealed_seq // _GROWTH, SEGMENT_ENTRIES))
    return at_rest(head) and head.snapshot_seq - head.sealed_seq >= stretch


def due_to_seal_whole(mover: Mover, head: SessionHead, now_ms: int) -> bool:
    """Whether the session has rested for so long that its log is to leave Redis to its end."""
    if mover.seal_idle_ms is None or head.status == IMPORTING or not at_rest(head):
        return False
    least = 1 if head.seq <= FOLDED_AT_MOST else max(1, head.sealed_seq // _GROWTH)
    return head.seq - head.sealed_seq >= least and now_ms - rested_ms(head) >= mover.seal_idle_ms


def may_seal_tree(mover: Mover, head: SessionHead, now_ms: int) -> bool:
    """Whether this session of a tree has rested for so long that the tree's log is worth a look.

    The one that rests last is what the log's last entry came with.
    """
    if mover.seal_idle_ms is None or head.status == IMPORTING or head.holder is not None:
        return False
    return now_ms - rested_ms(head) >= mover.seal_idle_ms


def ended_ms(head: SessionHead) -> int | None:
    """The time at which a closed session came to rest for the last time; None if it is not closed."""
    return rested_ms(head) if head.status == "closed" else None


def rested_ms(head: SessionHead) -> int:
    """The time at which a session that is parked came to rest for the last time.

    Raises `Corrupt` where its summary cannot be read: nobody knows that time then.
    """
    return head.summary.get("updated_ms", head.created_ms)


def rest_wanted_ms(mover: Mover, root: SessionHead) -> int | None:
    """For how long the sessions of a tree must have rested, to be archived; None: they stay."""
    if root.status == IMPORTING:
        return None
    return mover.archive_after_ms if root.status == "closed" else mover.idle_after_ms


def due_to_archive(mover: Mover, head: SessionHead, root: SessionHead, now_ms: int) -> bool:
    """Whether the session has rested for long enough, in a tree whose root is closed, or long unused."""
    wanted_ms = rest_wanted_ms(mover, root)
    return at_rest(head) and wanted_ms is not None and now_ms - rested_ms(head) >= wanted_ms


def _waits(state: State) -> bool:
    """Whether the session owes something, or waits for people, agents or processes: it is needed again."""
    waits = state.task is not None or state.lookups or state.processes.living
    return bool(waits or state.ends_in_pieces or state.tree.slot)


# ── moving ────────────────────────────────────────────────────────────────────────────────────────


async def seal_session(mover: Mover, session: SessionId) -> Moved:
    """Moves the log of a session that waits, or what lies behind its snapshot, if it is worth a segment."""
    head = await mover.storage.broker.logs.head(session)
    if head is None:
        return Moved.NOT_DUE
    try:
        if due_to_seal_whole(mover, head, mover.storage.broker.now_ms()):
            return await _seal_whole(mover, head)
        if due_to_seal(head, mover.seal_after):
            return await _seal_behind_snapshot(mover, head)
    except UnknownSession:
        await _gone_meanwhile(mover.storage, head)
    return Moved.NOT_DUE


async def _seal_behind_snapshot(mover: Mover, head: SessionHead) -> Moved:
    manifest = await _sealed_through(mover.storage, head, head.snapshot_seq)
    if manifest is None:
        return Moved.BUSY
    async with _claimed_untouched(mover, head) as claimed:
        if claimed is None:
            return Moved.BUSY
        answer = await mover.storage.broker.commits.seal(claimed.claim, manifest.last, manifest.encode())
    return _moved(head, answer, f"sealed through {manifest.last}")


async def _seal_whole(mover: Mover, head: SessionHead) -> Moved:
    storage, short = mover.storage, head.seq <= FOLDED_AT_MOST
    snapshot = b"" if short else _snapshot(storage, await folded(storage, end_of(head), storage.secret))
    manifest = await _sealed_through(storage, head, head.seq, anew=short)
    if manifest is None:
        return Moved.BUSY
    async with _claimed_untouched(mover, head) as claimed:
        if claimed is None:
            return Moved.BUSY
        claim, commits = claimed.claim, storage.broker.commits
        if not short and not isinstance(answer := await commits.snapshot(claim, head.seq, snapshot), Stored):
            return _moved(head, answer, "sealed to its end")
        answer = await commits.seal(claim, manifest.last, manifest.encode(), whole=short)
    return _moved(head, answer, "sealed to its end")


async def seal_tree_log(mover: Mover, tree: TreeId) -> Moved:
    """Seals the log of a tree that has told of nothing for long; it stays in Redis, compressed."""
    broker = mover.storage.broker
    if mover.seal_idle_ms is None:
        return Moved.NOT_DUE
    if not await broker.logs.resting_trees([tree], broker.now_ms() - mover.seal_idle_ms):
        return Moved.NOT_DUE
    sealed = 0
    while (next_ones := await broker.logs.unsealed(tree))[1]:
        answer = await broker.commits.seal_tree(tree, *next_ones)
        if not isinstance(answer, Stored):
            log.info("tree %s: its log is not sealed: %s", tree, answer.reason)
            return Moved.BUSY
        sealed += len(next_ones[1])
    if not sealed:
        return Moved.NOT_DUE
    log.info("tree %s: %s of its log sealed", tree, counted(sealed, "entry"))
    return Moved.DONE


def _snapshot(storage: Storage, position: Position) -> bytes:
    # The state was folded for this alone: what were kept of it would serve no other.
    return encode_snapshot(position.state, position.seq, position.head, storage.secret, again=False)


async def archive_session(mover: Mover, session: SessionId, now_ms: int) -> Moved:
    """Moves all of a session into the archive, its large texts too; leaves its hash."""
    storage = mover.storage
    head = await storage.broker.logs.head(session)
    root = head and await storage.broker.logs.head(SessionId(head.tree))
    if head is None or root is None or not due_to_archive(mover, head, root, now_ms):
        return Moved.NOT_DUE
    if head.status not in _AT_REST or (root.status != "closed" and head.unsaved_on):
        return Moved.WAITS
    try:
        return await _archive(mover, head, root)
    except UnknownSession:
        await _gone_meanwhile(storage, head)
    return Moved.NOT_DUE


async def _archive(mover: Mover, head: SessionHead, root: SessionHead) -> Moved:
    storage = mover.storage
    position = await folded(storage, end_of(head), storage.secret)
    if _waits(position.state) or await storage.broker.commits.has_timers(head.session):
        return Moved.WAITS
    await _archive_blobs(storage, head)
    manifest = await _sealed_through(storage, head, head.seq)
    if manifest is None:
        return Moved.BUSY
    snapshot = _snapshot(storage, position)
    async with _claimed_untouched(mover, head) as claimed:
        if claimed is None:
            return Moved.BUSY
        claim, broker = claimed.claim, storage.broker
        answer = await broker.commits.snapshot(claim, head.seq, snapshot)
        if isinstance(answer, Stored):
            answer = await broker.commits.seal(claim, manifest.last, manifest.encode())
        if isinstance(answer, Stored):
            answer = await broker.commits.archive(claim, root.session if root.status == "closed" else None)
    return _moved(head, answer, "archived")


async def _gone_meanwhile(storage: Storage, head: SessionHead) -> None:
    """Removes what was written of a tree behind its deletion, which had removed what was there before.

    A tree that Redis has only lost keeps its archive: that may be the last copy.
    """
    log.info("session %s: not moved, it is gone", head.session)
    root, broker = SessionId(head.tree), storage.broker
    deleted_ms = await broker.trees.deleted_at(root)
    # One that was made again from a file was deleted before, too.
    was_it = deleted_ms is not None and deleted_ms >= head.created_ms
    if was_it and await broker.logs.head(root) is None:
        await storage.archive.delete_tree(head.tree, await broker.server_ms())


def _moved(head: SessionHead, answer: Stored | Fenced | Refused, what: str) -> Moved:
    if isinstance(answer, Stored):
        log.info("session %s: %s", head.session, what)
        return Moved.DONE
    log.info("session %s: not %s: %s", head.session, what, answer.reason)
    return Moved.BUSY


async def _sealed_through(
    storage: Storage, head: SessionHead, through: int, *, anew: bool = False
) -> Manifest | None:
    """The manifest with which the entries up to `through` are in the archive; None if others move them.

    `anew`: from the first one on, in the place of the segments that there are.
    """
    try:
        return await _with_segments(storage, head, through, anew)
    except BrokenArchive:
        now = await head_of(storage.broker.logs, head.session)
        if now.manifest != head.manifest:
            return None
        raise


async def _with_segments(storage: Storage, head: SessionHead, through: int, anew: bool) -> Manifest:
    manifest = Manifest.decode(head.manifest)
    if manifest.last != head.sealed_seq:
        raise BrokenArchive(
            f"session {head.session}: its manifest ends at {manifest.last}, not at {head.sealed_seq}"
        )
    source = None
    if anew:
        manifest, source = Manifest(), storage.archive
    entries = full_log(storage.broker.logs, source, head.session, manifest.last, through)
    async for stretch in stretches(entries):
        segment = await storage.archive.write_segment(head.tree, head.session, manifest.head, stretch)
        manifest = manifest.with_segment(segment)
    if manifest.last != through:
        raise BrokenArchive(f"session {head.session}: entry {manifest.last + 1} is missing in Redis")
    return manifest


async def _archive_blobs(storage: Storage, head: SessionHead) -> None:
    for digest in sorted(await referenced_blobs(storage, head.session)):
        if await storage.archive.has_blob(head.tree, digest):
            continue
        content = await storage.blobs.get(head.tree, digest)
        if content is None:
            # What is deleted meanwhile lacks nothing.
            await head_of(storage.broker.logs, head.session)
            log.warning("session %s: large text %s is in neither Redis nor the archive", head.session, digest)
        else:
            await storage.archive.write_blob(head.tree, digest, content)


@asynccontextmanager
async def _claimed_untouched(mover: Mover, head: SessionHead) -> AsyncIterator[Claimed | None]:
    """Holds the session if it is still as `head` says and was parked, else None; gives it back after."""
    broker = mover.storage.broker
    held = await broker.claims.claim_at_rest(head, mover.name, mover.token(8))
    if held is None:
        yield None
        return
    claimed = held.claimed
    try:
        yield claimed if held.parked and (claimed.seq, claimed.head) == (head.seq, head.head) else None
    finally:
        # What was parked may have been given something, which the script looks at itself. After `archive` the
        # claim is over: answered as fenced.
        try:
            await held.give_back()
        except BrokerError as error:
            log.warning("session %s: not given back, its lease will run out: %s", head.session, error)
