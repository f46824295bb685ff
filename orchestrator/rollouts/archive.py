"""The archive: the store of logs that Redis need not hold any more.

    <tree>/<session>/<first>-<last>-<hash8>.jsonl.zst    a sealed stretch of a session's log
    <tree>/blobs/<sha256>.zst                            large texts of the tree's ended sessions
    condemned/<tree>                                     this tree is being deleted, or was just now

Objects are written once and never changed. Only a session's manifest, which Redis
keeps (`seal`), says which objects belong to the session: an object that no manifest names, left by a
writer that died or was too late, is never read. Knows the broker's records, not the broker.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import TYPE_CHECKING

from orchestrator.broker.errors import Corrupt, Unavailable
from orchestrator.broker.records import StoredEntry
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts import segments
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects

if TYPE_CHECKING:
    from orchestrator.rollouts.segments import (
        Manifest,
        Segment,
    )
import time
from collections.abc import Awaitable, Callable

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.core.frozen import record

SEGMENT_ENTRIES = 16_384
SEGMENT_BYTES = 16 << 20
"""A segment is cut here: what a reader holds in memory at once."""
_CONDEMNED = "condemned"
NOTED_MS = 900_000
"""How long the note of a deletion stays, at least. A job that saw the tree before has five minutes; what it
writes behind the deletion would be left for ever if it died."""


class Archive:
    """Segments and blobs below one directory URL; `secret` is the chain's key, if it has one."""

    def __init__(self, objects: Objects, secret: bytes = b"") -> None:
        self._objects = objects
        self._secret = secret
        self._packing = asyncio.Lock()
        """Held while a segment is packed, which has it in memory three times over: one at a time."""

    @classmethod
    def at(cls, url: str, secret: bytes = b"") -> Archive:
        return cls(Objects(url), secret)

    # ── segments ──────────────────────────────────────────────────────────────────────────────

    async def write_segment(
        self, tree: TreeId, session: SessionId, before: bytes, entries: Sequence[StoredEntry]
    ) -> Segment:
        """Stores consecutive entries that follow chain value `before`; durable when this returns.

        Writing the same entries again is harmless. Raises `BrokenArchive`, and stores nothing,
        if the entries do not follow from each other: what is wrong in Redis must stay visible there.
        """
        async with self._packing:
            segment, packed = await asyncio.to_thread(self._packed, f"{tree}/{session}", before, entries)
        await asyncio.to_thread(self._objects.put, segment.name, packed)
        return segment

    def _packed(self, folder: str, before: bytes, entries: Sequence[StoredEntry]) -> tuple[Segment, bytes]:
        plain = segments.encode_entries(entries)
        segment, packed = segments.segment_of(folder, before, entries, plain), segments.pack(plain)
        del plain
        # Read back before it is trusted: the original is trimmed on the strength of this copy.
        segments.require_readable(segment, packed, entries, self._secret)
        return segment, packed

    async def rewrite_segment(
        self, tree: TreeId, session: SessionId, old: Segment, entries: Sequence[StoredEntry]
    ) -> Segment:
        """Stores the same entries under another name, those that were redacted without their text."""
        before = bytes.fromhex(old.before)
        async with self._packing:
            made, packed = await asyncio.to_thread(self._packed, f"{tree}/{session}", before, entries)
        name = f"{made.name.removesuffix(segments.ENDING)}-{made.sha256[:8]}{segments.ENDING}"
        await asyncio.to_thread(self._objects.put, name, packed)
        return replace(made, name=name)

    async def segments(self, tree: TreeId, session: SessionId) -> list[str]:
        """The names of all segments of a session, those that no manifest names too."""
        folder = f"{tree}/{session}"
        return [f"{folder}/{name}" for name in await asyncio.to_thread(self._objects.names, folder)]

    async def remove_segment(self, name: str) -> None:
        """Removes a segment that no manifest names any more."""
        await asyncio.to_thread(self._objects.remove, name)

    async def remove_unfinished(self, tree: TreeId, session: SessionId) -> None:
        """Removes segments of a redacted session that a writer has not finished: they have its words, too.

        A writer that lives finds its own gone, and begins anew.
        """
        await asyncio.to_thread(self._remove_unfinished, f"{tree}/{session}", ("",))

    async def remove_blobs(self, tree: TreeId, digests: Collection[str]) -> None:
        """Removes large texts that were redacted, also where a writer has not finished them."""
        for digest in digests:
            await asyncio.to_thread(self._objects.remove, _blob_name(tree, digest))
        await asyncio.to_thread(self._remove_unfinished, f"{tree}/blobs", digests)

    def _remove_unfinished(self, folder: str, named: Collection[str]) -> None:
        for name in self._objects.unfinished(folder):
            if any(one in name for one in named):
                self._objects.remove(f"{folder}/{name}")

    async def read_segment(self, segment: Segment) -> tuple[StoredEntry, ...]:
        """The entries of one segment, checked against its hash and the chain."""
        return await asyncio.to_thread(self._read_segment, segment)

    def _read_segment(self, segment: Segment) -> tuple[StoredEntry, ...]:
        packed = self._objects.get(segment.name)
        if packed is None and not self._objects.names(""):
            # A share that is not mounted looks like this, and is not damage.
            raise ArchiveUnavailable(f"the archive holds nothing, not even {segment.name}: is it mounted?")
        if packed is None:
            raise segments.BrokenArchive(
                f"archive object {segment.name} is missing; restore it from a backup"
            )
        return segments.decode_segment(segment, packed, self._secret)

    async def sealed_through(self, tree: TreeId, session: SessionId) -> int:
        """The last entry of the session that any segment holds, one that no manifest names too; 0 if none."""
        names = await asyncio.to_thread(self._objects.names, f"{tree}/{session}")
        return max((segments.last_of(name) for name in names), default=0)

    def read_entries(
        self, manifest: Manifest, after_seq: int = 0, through: int | None = None
    ) -> AsyncIterator[StoredEntry]:
        """The sealed entries after `after_seq` up to `through`, in order; no other segment is read."""
        return manifest.entries(self.read_segment, after_seq, through)

    # ── blobs ─────────────────────────────────────────────────────────────────────────────────

    async def write_blob(self, tree: TreeId, digest: str, content: bytes) -> None:
        """Stores content under its hash, once."""
        await asyncio.to_thread(self._write_blob, _blob_name(tree, digest), content)

    def _write_blob(self, name: str, content: bytes) -> None:
        if not self._objects.exists(name):
            self._objects.put(name, segments.pack(content))

    async def has_blob(self, tree: TreeId, digest: str) -> bool:
        return await asyncio.to_thread(self._objects.exists, _blob_name(tree, digest))

    async def read_blob(self, tree: TreeId, digest: str) -> bytes | None:
        """The content, or None if it was never archived; raises `BrokenArchive` if it is not its hash."""
        return await asyncio.to_thread(self._read_blob, _blob_name(tree, digest), digest)

    def _read_blob(self, name: str, digest: str) -> bytes | None:
        packed = self._objects.get(name)
        if packed is None:
            return None
        content = segments.unpack(name, packed)
        if hashlib.sha256(content).hexdigest() != digest:
            raise segments.BrokenArchive(f"archive object {name} has another hash than its name says")
        return content

    async def text(self, tree: TreeId, digest: str) -> bytes | None:
        """A large text that left Redis; raises `Unavailable` or `Corrupt`, as for one that is there."""
        try:
            return await self.read_blob(tree, digest)
        except ArchiveUnavailable as error:
            raise Unavailable(f"a large text that was archived cannot be read: {error}") from error
        except segments.BrokenArchive as error:
            raise Corrupt(_blob_name(tree, digest), str(error)) from error

    # ── retention ─────────────────────────────────────────────────────────────────────────────

    async def condemn(self, tree: TreeId, now_ms: int) -> None:
        """Notes that a tree is being deleted, so that a death half-way leaves no orphans."""
        await asyncio.to_thread(self._objects.put, f"{_CONDEMNED}/{tree}", b"%d" % now_ms)

    async def condemned(self) -> tuple[TreeId, ...]:
        """Trees whose deletion was begun and not finished, or a short while ago."""
        return tuple(TreeId(name) for name in await asyncio.to_thread(self._objects.names, _CONDEMNED))

    async def condemned_lately(self, tree: TreeId, now_ms: int) -> bool:
        """Whether a tree's deletion began so short a time ago that who was at work on it may be so still."""
        note = await asyncio.to_thread(self._objects.get, f"{_CONDEMNED}/{tree}")
        # An earlier version's note has no time: it stood for as long as the deletion took.
        return note is not None and note.isdigit() and abs(now_ms - int(note)) < NOTED_MS

    async def spare(self, tree: TreeId) -> None:
        """Removes the note: the tree is not deleted after all."""
        await asyncio.to_thread(self._objects.remove, f"{_CONDEMNED}/{tree}")

    async def delete_tree(self, tree: TreeId, now_ms: int) -> None:
        """Removes all objects of a tree, and then the note, if no one can write behind that any more."""
        await asyncio.to_thread(self._objects.remove, str(tree))
        if not await self.condemned_lately(tree, now_ms):
            await self.spare(tree)


def _blob_name(tree: TreeId, digest: str) -> str:
    return f"{tree}/blobs/{digest}.zst"


async def stretches(entries: AsyncIterator[StoredEntry]) -> AsyncIterator[list[StoredEntry]]:
    """The entries in order, at most a segment's worth at a time."""
    stretch: list[StoredEntry] = []
    size = 0
    async for entry in entries:
        if stretch and (len(stretch) >= SEGMENT_ENTRIES or size + len(entry.payload) > SEGMENT_BYTES):
            yield stretch
            stretch, size = [], 0
        stretch.append(entry)
        size += len(entry.payload)
    if stretch:
        yield stretch


# ── storage ───────────────────────────────────────────────────────────────────────────────────────
# The storage of sessions: Redis for what is used, the archive for what is old.


@record
class Storage:
    """The storage of sessions: Redis and the archive. `secret` is the chain's key, if it has one."""

    broker: Broker
    blobs: Blobs
    archive: Archive
    secret: bytes = b""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
