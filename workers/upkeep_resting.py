"""Trees that rest: which are archived now, and which are looked at later.

Each shard keeps a tree in `to_archive` while Redis holds a log of it, by the time since which it may rest.
That time is not moved by every step: a look finds out how long the tree has rested, and puts the next look
there. So a look costs what is due, and not what there is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.broker.trees import RESTING_AT_ONCE, RestingTree
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.imports import IMPORTING
from orchestrator.rollouts.segments import BrokenArchive
from workers.upkeep_sealing import Moved, Mover, archive_session, at_rest, rest_wanted_ms, rested_ms

log = logging.getLogger("dendro.upkeep")

SOON_MS = 60_000
"""A tree that somebody uses is looked at again after so long."""
LATER_MS, WAITED_PARTS, LATEST_MS = 600_000, 8, 86_400_000
"""A tree that waits for people, timers or processes, after an eighth of the time that it has waited, between
ten minutes and a day: its logs tell whether it waits still, and they are long to read."""
TEXTS_AT_ONCE = 100
"""Large texts that one script takes out of Redis."""
MOST_TREES = 10_000
"""Trees that one look hands on to be archived; the next one finds the others."""


# ── archiving ─────────────────────────────────────────────────────────────────────────────────────


async def due_trees(mover: Mover, now_ms: int) -> AsyncIterator[TreeId]:
    """The trees that may have rested for long enough; others are put to when they will have."""
    broker, found = mover.storage.broker, 0
    for shard in range(broker.config.shards):
        key, start = broker.keys.to_archive(shard), 0
        while found < MOST_TREES:
            seen = await broker.trees.seen_resting(key, now_ms - _least_ms(mover), start)
            damaged: dict[SessionId, Corrupt] = {}
            heads = await broker.logs.heads([SessionId(at.tree) for at in seen], damaged)
            roots = {head.tree: head for head in heads}
            for at in seen:
                root = roots.get(at.tree)
                if SessionId(at.tree) in damaged:
                    # Nobody knows for how long it has rested: it stays, and hides none behind it.
                    start += 1
                elif root is not None and root.status == IMPORTING:
                    # Its time is that of its beginning: by that upkeep finds one whose process has died.
                    start += 1
                elif await _stays_due(mover, at, root, now_ms):
                    start, found = start + 1, found + 1
                    yield at.tree
            for error in damaged.values():
                log.error("session left out: %s", error)
            if len(seen) < RESTING_AT_ONCE:
                break


def _least_ms(mover: Mover) -> int:
    idle_ms = mover.idle_after_ms
    return mover.archive_after_ms if idle_ms is None else min(mover.archive_after_ms, idle_ms)


async def _stays_due(mover: Mover, seen: RestingTree, root: SessionHead | None, now_ms: int) -> bool:
    """Whether a look at the whole tree is due; if not, it is put to when there may be one."""
    broker = mover.storage.broker
    if root is None:
        await broker.trees.look_again(seen, None)
        return False
    wanted_ms = rest_wanted_ms(mover, root)
    if wanted_ms is None:
        await broker.trees.look_again(seen, None)
        return False
    # An archived root says nothing of when an agent of its tree was last used.
    last_ms = seen.since_ms if root.archived else rested_ms(root)
    if now_ms - last_ms < wanted_ms:
        await broker.trees.look_again(seen, last_ms + wanted_ms - _least_ms(mover))
        return False
    return True


async def archive_tree(mover: Mover, tree: TreeId, now_ms: int) -> Moved:
    """Archives every session of a tree that has rested for long enough as a whole."""
    broker = mover.storage.broker
    seen = await broker.trees.resting_since(tree)
    try:
        members = await broker.trees.members(tree)
        last_ms = max((rested_ms(head) for head in members if not head.archived), default=0)
    except Corrupt as error:
        log.error("tree %s: not archived: %s", tree, error)
        return Moved.BUSY if seen is None else await _later(mover, seen, Moved.BUSY, now_ms + LATER_MS)
    if seen is None or not members or str(members[-1].session) != str(tree):
        return Moved.NOT_DUE
    wanted_ms = rest_wanted_ms(mover, members[-1])
    if wanted_ms is None or now_ms - seen.since_ms < _least_ms(mover):
        return Moved.NOT_DUE
    left = [head for head in members if not head.archived]
    if not all(at_rest(head) or head.quarantined for head in left):
        return await _later(mover, seen, Moved.BUSY, now_ms + SOON_MS)
    if now_ms - last_ms < wanted_ms:
        return await _later(mover, seen, Moved.NOT_DUE, last_ms + wanted_ms)
    moved = {await archive_session(mover, head.session, now_ms) for head in left}
    if moved <= {Moved.DONE}:
        return await _rests(mover, seen, len(left))
    waits = moved <= {Moved.DONE, Moved.WAITS} or any(head.quarantined for head in left)
    later_ms = max(LATER_MS, min((now_ms - last_ms) // WAITED_PARTS, LATEST_MS))
    return await _later(mover, seen, Moved.BUSY, now_ms + (later_ms if waits else SOON_MS))


async def _rests(mover: Mover, seen: RestingTree, archived: int) -> Moved:
    """Of the tree nothing is left to archive, unless a session of it was brought back since `seen`."""
    if not await _without_texts(mover.storage, seen):
        return Moved.BUSY
    if not await mover.storage.broker.trees.look_again(seen, None):
        return Moved.BUSY
    log.info("tree %s: archived, %s", seen.tree, counted(archived, "session"))
    return Moved.DONE


async def _without_texts(storage: Storage, seen: RestingTree) -> bool:
    """Takes the tree's large texts out of Redis; False if a session of it was brought back since `seen`."""
    if not all(head.archived for head in await storage.broker.trees.members(seen.tree)):
        return False
    digests = await storage.broker.trees.texts_of(seen.tree)
    for first in range(0, len(digests), TEXTS_AT_ONCE):
        some = digests[first : first + TEXTS_AT_ONCE]
        proved = [digest for digest in some if await _proved(storage, seen.tree, digest)]
        if not await storage.broker.trees.drop_texts(seen, proved):
            return False
    return True


async def _proved(storage: Storage, tree: TreeId, digest: str) -> bool:
    """Whether Redis has the text, and the archive too: it is read back, and is what its hash says."""
    try:
        content = await storage.blobs.get(tree, digest)
        if content is None:
            return False
        await storage.archive.write_blob(tree, digest, content)
        return await storage.archive.read_blob(tree, digest) == content
    except (Corrupt, BrokenArchive) as error:
        log.error("tree %s: large text %s stays in Redis: %s", tree, digest, error)
        return False


async def _later(mover: Mover, seen: RestingTree, moved: Moved, look_ms: int) -> Moved:
    await mover.storage.broker.trees.look_again(seen, look_ms - _least_ms(mover))
    return moved


# ── what an earlier version left ──────────────────────────────────────────────────────────────────


async def enlist_trees(storage: Storage, *, idle: bool) -> int:
    """Brings trees into what is looked at that an earlier version made or closed; answers how many.

    `idle`: those too that nobody closed.
    """
    broker, enlisted = storage.broker, 0
    for shard in range(broker.config.shards):
        known, ended = [
            await broker.trees.trees_of(k(shard)) for k in (broker.keys.to_archive, broker.keys.to_delete)
        ]
        with_log, closed, roots = set[str](), set[str](), set[str]()
        damaged = dict[SessionId, Corrupt]()
        async for heads in broker.logs.heads_of_shard(shard, damaged):
            with_log |= {str(head.tree) for head in heads if not head.archived}
            own = [head for head in heads if str(head.session) == str(head.tree)]
            roots |= {str(head.tree) for head in own if idle or head.status == IMPORTING}
            closed |= {str(head.tree) for head in own if head.status == "closed"}
        for error in damaged.values():
            log.error("session left out: %s", error)
        enlisted += await _enlist(storage, sorted(((roots | closed) & with_log) - known | closed - ended))
    return enlisted


async def _enlist(storage: Storage, roots: Sequence[str]) -> int:
    for root in roots:
        with suppress(UnknownSession):
            await storage.broker.trees.enlist(SessionId(root))
    return len(roots)
