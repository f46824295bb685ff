"""A session's log as one sequence, wherever its parts are: the archive first, then the stream.

The stream is asked first, because it nearly always has what is wanted. Only a gap leads to
the archive: sealing trims the stream from below, between any two reads. So the archive costs
nothing on the way of a session that resumes from its snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.segments import BrokenArchive, Manifest

PAGE = 500


class SealedEntries(Protocol):
    """The archive as a log's reader asks it."""

    def read_entries(self, manifest: Manifest, after: int, through: int) -> AsyncIterator[StoredEntry]: ...


async def full_log(
    reader: Logs,
    archive: SealedEntries | None,
    session: SessionId,
    after: int = 0,
    through: int | None = None,
) -> AsyncIterator[StoredEntry]:
    """The entries after `after`, up to `through` (the log's end now, if not given), in order.

    Ends early where entries are missing: a caller that folds or verifies knows the last
    entry. Raises `BrokenArchive` if the missing part was sealed and cannot be read.
    """
    last = through if through is not None else (await head_of(reader, session)).seq
    while after < last:
        page = await reader.read_rollout(session, after, min(PAGE, last - after))
        if page and page[0].seq == after + 1:
            for entry in page:
                if entry.seq <= last:
                    yield entry
            after = page[-1].seq
            continue
        manifest = await _sealed_after(reader, session, after)
        if manifest is None:
            return
        async for entry in _archived(archive, manifest, after, last):
            yield entry
        after = manifest.last


async def pages(entries: AsyncIterator[StoredEntry]) -> AsyncIterator[list[StoredEntry]]:
    """Entries by the page."""
    page: list[StoredEntry] = []
    async for entry in entries:
        page.append(entry)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


async def head_of(reader: Logs, session: SessionId) -> SessionHead:
    """The head of a session; raises `UnknownSession` if there is none."""
    head = await reader.head(session)
    if head is None:
        raise UnknownSession(session)
    return head


async def _sealed_after(reader: Logs, session: SessionId, after: int) -> Manifest | None:
    """The manifest, if it holds entries after `after`."""
    manifest = Manifest.decode((await head_of(reader, session)).manifest)
    return manifest if manifest.last > after else None


def _archived(
    archive: SealedEntries | None, manifest: Manifest, after: int, through: int
) -> AsyncIterator[StoredEntry]:
    if archive is None:
        raise BrokenArchive(f"entry {after + 1} was sealed, and this process was given no archive to read")
    return archive.read_entries(manifest, after, through)


async def read_all(
    reader: Logs, archive: SealedEntries | None, session: SessionId, after: int, through: int
) -> Sequence[StoredEntry]:
    """The entries after `after` up to `through` at once; raises `BrokenArchive` if one is missing."""
    found = [entry async for entry in full_log(reader, archive, session, after, through)]
    if len(found) != max(0, through - after):
        raise BrokenArchive(f"session {session}: entries between {after} and {through} are missing")
    return found
