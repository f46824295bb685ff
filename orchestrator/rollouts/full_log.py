"""A session's log as one sequence, wherever its parts are: the archive first, then the stream.

The stream is asked first, because it nearly always has what is wanted. Only a gap leads to
the archive: sealing trims the stream from below, between any two reads. So the archive costs
nothing on the way of a session that resumes from its snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core.chain import GENESIS, BrokenLink, ChainWalk
from orchestrator.core.entries import EVENT_MSG, Entry, decode_entry, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.protocol.events import TokenCount
from orchestrator.protocol.wire import tag_of
from orchestrator.rollouts.segments import BrokenArchive, Manifest, links_of

PAGE = 500
_TOKEN_COUNT: Final = tag_of(TokenCount)


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
    entry. Raises `BrokenArchive` if the missing part was sealed and cannot be read, and `UnknownSession` if
    the session is not there, or is deleted meanwhile.
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
        # Logs without segments are shown without the archive's library.
        from orchestrator.rollouts.object_store import ArchiveUnavailable

        # Segments have the words until they are written anew.
        instead = await reader.instead_of(session)
        try:
            async for entry in _archived(archive, manifest, after, last):
                yield instead.get(entry.seq, entry)
                after = entry.seq
            after = manifest.last
        except (BrokenArchive, ArchiveUnavailable):
            # Segments go with a tree that is deleted, and with redacted words: then others are named.
            if await _sealed_after(reader, session, after) in (manifest, None):
                raise


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


# ── turn ends ─────────────────────────────────────────────────────────────────────────────────────
# The place in a log at which a turn ended: its `token_count` names the response that a client knows it
# by.
#
# The whole log is walked along its chain, so that a place is believed only if the entries around it are.


@record
class TurnEnd:
    """The entry that ended a turn (0: there is none), and the end of the log as the walk found it."""

    seq: int = 0
    last: int = 0
    head: bytes = GENESIS
    broken: BrokenLink | None = None


async def end_of_turn(entries: AsyncIterator[StoredEntry], secret: bytes, response_id: str) -> TurnEnd:
    """The last turn that ended with a response."""
    walk, seq = ChainWalk(secret), 0
    async for page in pages(entries):
        broken = walk.take(tuple(links_of(page)))
        if broken is not None:
            return TurnEnd(seq, walk.seq, walk.head, broken)
        seq = _last_end(page, response_id) or seq
    return TurnEnd(seq, walk.seq, walk.head)


def _last_end(page: Sequence[StoredEntry], response_id: str) -> int:
    for stored in reversed(page):
        # Decoding every entry of a long log would take seconds.
        if stored_kind(stored.payload) is not TokenCount:
            continue
        if response_ended(decode_entry(stored.payload)) == response_id:
            return stored.seq
    return 0


def response_ended(entry: Entry) -> str | None:
    """The response whose turn ended with an entry."""
    ends = entry.type == EVENT_MSG and entry.payload.get("type") == _TOKEN_COUNT
    return entry.payload.get("response_id") if ends else None
