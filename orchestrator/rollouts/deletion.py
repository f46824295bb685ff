"""Deletion of a whole tree wherever its parts are: from Redis at one moment, then from archive and disks.

Redis first, because only there can be said that nobody holds a session. A note in the archive, made before,
leads upkeep to what a process that died half-way left behind there, and to what a job wrote that had begun
before. So it stays until such jobs are over.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError, SessionHeld
from orchestrator.broker.records import SessionHead
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.rollout_file import NOTHING, days_of, last_noted

log = logging.getLogger("dendro.worker")

LOOK_S = 60.0
OVERLAP_MS = 600_000
"""The time that is looked at again where Redis's clock was put back: it is longer than from look to look."""
AT_ONCE = 200
"""Deleted sessions of a shard whose files one look removes."""
_OURS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotDeleted(RolloutError):
    """The tree cannot be deleted yet; the message says what has to be done before."""


async def delete_everywhere(
    storage: Storage, members: Sequence[SessionHead], *, owed: bool = False, by: str = ""
) -> None:
    """Deletes a tree, whose sessions were seen so; `owed`: what they were given and have not read may go too.

    `by` is the person who wants it; empty where its time is over.

    Raises `SessionHeld` if one was used meanwhile, `NotDeleted` if it alone says what is to be redacted in
    other trees, and nothing is gone; `ArchiveUnavailable`: if Redis does not have the tree any more, upkeep
    removes the rest.
    """
    tree = members[-1].tree
    await _check_redactions(storage, tree, {head.session for head in members})
    began_ms = await storage.broker.server_ms()
    await storage.archive.condemn(tree, began_ms)
    try:
        await storage.broker.trees.delete_tree(members, owed=owed, by=by)
    except SessionHeld:
        await storage.archive.spare(tree)
        if await storage.broker.logs.head(SessionId(tree)) is None:
            # Another person has deleted it meanwhile, and the note was of that deletion, too.
            await storage.archive.condemn(tree, began_ms)
        raise
    if not await storage.archive.condemned_lately(tree, began_ms):
        # Another person's deletion was refused first, and has taken the note back.
        await storage.archive.condemn(tree, began_ms)
    await storage.archive.delete_tree(tree, began_ms)


async def _check_redactions(storage: Storage, tree: TreeId, sessions: set[SessionId]) -> None:
    logs = storage.broker.logs
    # Of a mark that is made behind this look the deletion hears: it comes with a commit.
    for session, _ in await logs.redacted_lately(storage.broker.keys.shard_of(tree), 0):
        if session in sessions and (words := await logs.redacting(session)):
            from orchestrator.rollouts.redaction import owed_to_others

            if others := owed_to_others(words, tree, sessions):
                raise NotDeleted(
                    f"session {session} alone says that words of {others[0]} are still to be redacted; "
                    f"`dendro upkeep` does that: delete this tree then, or {others[0]} first"
                )


# ── rollout files ─────────────────────────────────────────────────────────────────────────────────


class DeletedFiles:
    """The rollout files of one machine whose sessions were deleted, here or elsewhere.

    Redis says which sessions were deleted, so that one that it has only lost keeps its file: that may be the
    last copy. A session's id says on which day it was made, and so in which folder its file is.
    """

    def __init__(self, folder: Path, keep_ms: int = 0) -> None:
        self.folder = folder
        self.keep_ms = keep_ms
        self._seen: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        """The last time of which a shard's deletions were looked at, and how many of them were.

        A whole tree has one time. A process that starts looks at all again.
        """
        self._redacted: defaultdict[int, int] = defaultdict(int)
        """The last time of which a shard's redactions were looked at."""

    async def remove_some(self, broker: Broker) -> int:
        """Removes files of the next sessions whose time is over; answers how many."""
        removed, until_ms = 0, await broker.server_ms() - self.keep_ms
        for shard in range(broker.config.shards):
            since_ms, seen_then = self._seen[shard]
            if since_ms > until_ms:
                since_ms, seen_then = until_ms - OVERLAP_MS, 0
            page = await broker.trees.deleted(shard, since_ms, until_ms, AT_ONCE, seen_then)
            # An import may have made a session of that id again.
            living = {head.session for head in await broker.logs.heads([session for session, _ in page])}
            gone = [session for session, _ in page if session not in living]
            removed += await asyncio.to_thread(_remove, self.folder, gone) if gone else 0
            if page:
                last_ms = page[-1][1]
                then = sum(at_ms == last_ms for _, at_ms in page)
                self._seen[shard] = (last_ms, then + (seen_then if last_ms == since_ms else 0))
        return removed

    async def remove_redacted(self, broker: Broker) -> int:
        """Removes files that have the text of entries which were redacted since; answers how many.

        The next rest of such a session writes its file anew, without their text.
        """
        removed, now_ms = 0, await broker.server_ms()
        for shard in range(broker.config.shards):
            if self._redacted[shard] > now_ms:
                self._redacted[shard] = now_ms - OVERLAP_MS
            for session, at_ms in await broker.logs.redacted_lately(shard, self._redacted[shard]):
                numbers = await broker.logs.redacted_numbers(session)
                removed += await asyncio.to_thread(_remove_stale, self.folder, session, numbers)
                # Another one of that moment may come late to the list.
                self._redacted[shard] = max(self._redacted[shard], at_ms)
        return removed


def _remove_stale(folder: Path, session: SessionId, numbers: frozenset[int]) -> int:
    removed = 0
    for path in _files_of(folder, session, {}):
        with suppress(OSError):
            if not numbers or _has_text_of(path, numbers):
                removed += _removed(path)
    return removed


def _has_text_of(path: Path, numbers: frozenset[int]) -> bool:
    """Whether a rollout file has a line of one of these entries, or of what a fact of these stands for."""
    with os.fdopen(os.open(path, _OURS), "rb") as file:
        for line in file:
            try:
                value = orjson.loads(line)
                fact = value.get("inherited", {}).get("fact", {})
                if value.get("seq") in numbers or fact.get("seq") in numbers:
                    return True
            except (orjson.JSONDecodeError, AttributeError):
                continue
    return False


def _remove(folder: Path, sessions: Iterable[SessionId]) -> int:
    names: dict[Path, list[str]] = {}
    return sum(_removed(path) for session in sessions for path in _files_of(folder, session, names))


def _files_of(folder: Path, session: SessionId, names: dict[Path, list[str]]) -> Iterator[Path]:
    """A session's files; `names` keeps what was read of folders."""
    for place in days_of(folder, session):
        if place not in names:
            with suppress(OSError):
                names[place] = [path.name for path in place.iterdir()]
        ending = f"-{session}.jsonl"
        found = (name for name in names.get(place, ()) if name.endswith(ending))
        yield from (place / name for name in found if name.startswith("rollout-"))


def _removed(path: Path) -> bool:
    try:
        with os.fdopen(os.open(path, _OURS), "rb") as file:
            if not _is_copy(file):
                log.warning("%s stays: it is no copy of its session, which was deleted", path)
                return False
            # Whoever writes to it now is not done with its session yet.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except OSError as error:
        if not isinstance(error, FileNotFoundError | BlockingIOError):
            log.warning("%s stays, though its session was deleted: %s", path, error)
        return False
    with suppress(OSError):
        path.parent.rmdir()
    return True


def _is_copy(file: BinaryIO) -> bool:
    """Whether Dendro wrote the file: its end has a place in a chain, or it has nothing in it yet."""
    found = os.fstat(file.fileno())
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return ours and (found.st_size == 0 or last_noted(file) != NOTHING)


@asynccontextmanager
async def removing(files: DeletedFiles, broker: Broker) -> AsyncIterator[None]:
    """Removes files of deleted sessions at regular times for as long as the context is open."""

    async def regularly() -> None:
        while True:
            try:
                if removed := await files.remove_some(broker):
                    log.info("removed %s of deleted sessions", counted(removed, "rollout file"))
                if removed := await files.remove_redacted(broker):
                    log.info("removed %s with redacted text", counted(removed, "rollout file"))
            except (BrokerError, OSError) as error:
                log.warning("rollout files of deleted sessions were not looked for: %s", error)
            await asyncio.sleep(LOOK_S)

    task = asyncio.create_task(regularly(), name="worker:files")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
