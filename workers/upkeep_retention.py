"""Retention: a tree is deleted as a whole, some days after its root was closed; half an import, after one.

A note in the archive leads the next process to what a dead one left behind there. It is obeyed only if Redis
no longer knows the tree, and stays for a while: a job that had begun to move the tree may write behind that.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence

from orchestrator.broker.errors import Corrupt, SessionHeld, UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.deletion import delete_everywhere
from orchestrator.rollouts.full_log import head_of
from orchestrator.rollouts.imports import IMPORTING
from orchestrator.rollouts.object_store import ArchiveUnavailable
from workers.upkeep_sealing import ended_ms

log = logging.getLogger("dendro.upkeep")
IMPORT_MS = 86_400_000
"""No import takes that long: its process has died."""


async def expired_trees(
    storage: Storage, now_ms: int, retention_ms: int
) -> AsyncIterator[tuple[SessionHead, ...]]:
    """The sessions of each tree whose root ended long enough ago; the root comes last."""
    broker = storage.broker
    for shard in range(broker.config.shards):
        key, start = broker.keys.to_delete(shard), 0
        while seen := await broker.trees.seen_resting(key, now_ms - retention_ms, start):
            for at in seen:
                try:
                    members = await broker.trees.members(at.tree)
                    ended = ended_ms(members[-1]) if members else None
                except Corrupt as error:
                    log.error("tree %s: not deleted: %s", at.tree, error)
                    start += 1
                    continue
                if ended is None:
                    # It is open again: its next end puts it there anew.
                    await broker.trees.look_again(at, None)
                    continue
                if now_ms - ended >= retention_ms and all(map(_quiet, members)):
                    yield members
                # What was deleted meanwhile is not passed over: the next one stands in its place.
                start += await broker.logs.head(SessionId(at.tree)) is not None


async def old_imports(storage: Storage, now_ms: int) -> list[SessionHead]:
    """Sessions whose import was begun a day ago and is not finished."""
    broker, found = storage.broker, list[SessionHead]()
    for shard in range(broker.config.shards):
        key, start = broker.keys.to_archive(shard), 0
        while seen := await broker.trees.seen_resting(key, now_ms - IMPORT_MS, start):
            # What cannot be read is told of by each look.
            heads = await broker.logs.heads([SessionId(at.tree) for at in seen], {})
            found += [head for head in heads if head.status == IMPORTING]
            start += len(seen)
    return found


def _quiet(head: SessionHead) -> bool:
    """Whether no worker holds the session and nothing waits in its queue."""
    return head.holder is None and head.sq_tip == head.cursor and head.status != "running"


async def delete_tree(
    storage: Storage, members: Sequence[SessionHead], *, owed: bool = False, by: str = ""
) -> bool:
    """Deletes a tree, whose sessions were seen so; False, and nothing is gone, if one was used meanwhile.

    Raises `NotDeleted` where a redaction of others has to be done first.
    `owed`: what its sessions had been given by then and have not read may go with them; `by`: who wants it.
    """
    tree = members[-1].tree
    try:
        await delete_everywhere(storage, members, owed=owed, by=by)
    except SessionHeld as held:
        log.info("tree %s: not deleted, session %s was used again", tree, held.session)
        return False
    except ArchiveUnavailable as error:
        if await storage.broker.logs.head(SessionId(tree)) is not None:
            raise
        # Redis has it no more, and a note leads to the rest: those behind it are not to wait for that.
        log.warning("tree %s: deleted, and its archive is still to be: %s", tree, error)
        return True
    log.info("tree %s: deleted, %s", tree, counted(len(members), "session"))
    return True


async def end_imports(storage: Storage, heads: Iterable[SessionHead], now_ms: int) -> int:
    """Deletes sessions whose import was begun a day ago and is not finished; answers how many.

    Nobody can use them. An import that lives all the same has its claim taken, and fails.
    """
    ended = 0
    for old in heads:
        if old.status != IMPORTING or now_ms - old.created_ms < IMPORT_MS:
            continue
        try:
            await storage.broker.trees.revoke(old.session)
            # Looked at again behind that: its last commit may have made it whole.
            head = await head_of(storage.broker.logs, old.session)
            if head.status == IMPORTING and await delete_tree(storage, (head,), owed=True):
                log.warning("session %s: its import was not finished; import the file again", old.session)
                ended += 1
        except UnknownSession:
            continue
        except Corrupt as error:
            log.error("session %s: its import was not finished, and is not deleted: %s", old.session, error)
    return ended


async def finish_deletions(storage: Storage, now_ms: int) -> None:
    """Completes what a process that died had begun; spares trees that live.

    One that cannot be removed is left for the next time, and the others go. The note of one that began a
    short while ago is left, too: it may be under way, and jobs may be at work that saw the tree before.
    """
    for tree in await storage.archive.condemned():
        try:
            if await storage.broker.logs.head(SessionId(tree)) is None:
                await storage.archive.delete_tree(tree, now_ms)
                log.debug("tree %s: nothing of it is left in the archive", tree)
            elif not await storage.archive.condemned_lately(tree, now_ms):
                await storage.archive.spare(tree)
        except (ArchiveUnavailable, Corrupt) as error:
            log.warning("tree %s: its deletion cannot be finished: %s", tree, error)
