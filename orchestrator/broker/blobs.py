"""Content under its own hash: large outputs, images, forked histories. Compressed, one copy a tree.

The hash is that of the plain content, so a reader proves what it got, and a hundred children
that fork from one history name one blob.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping

import zstandard

from orchestrator.broker.connection import Connection, call
from orchestrator.broker.errors import CommitTooLarge, Corrupt
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import read_reply
from orchestrator.core.ids import TreeId
from orchestrator.recent import Recent

MAX_BLOB_BYTES = 64 << 20
UNBORN_S = 3600
"""How long content is kept for a tree that is about to be created."""
_LEVEL = 3


def digest_of(content: bytes) -> str:
    """The name that content has: SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


class Blobs:
    """Stores and reads content of one deployment."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    async def put(self, tree: TreeId, content: bytes, *, unborn: bool = False) -> str:
        """Stores content and answers its hash. Twice is as good as once.

        `unborn`: the tree is about to be created, and the content is kept for `UNBORN_S` from now on; to make
        the tree keeps it for as long as the tree. Of a tree that is not there otherwise nothing is stored: it
        was deleted, and what would refer to the content is refused as well.
        """
        if len(content) > MAX_BLOB_BYTES:
            raise CommitTooLarge(
                f"one stored text may have {MAX_BLOB_BYTES:,} bytes, this has {len(content):,}"
            )
        digest = digest_of(content)
        packed = zstandard.compress(content, _LEVEL)
        keys = [self._keys.blob(tree, digest), self._keys.blobs(tree), self._keys.agents(tree)]
        unborn_ms = UNBORN_S * 1000 if unborn else 0
        put = call("put_blob", keys, hash=digest, bytes=packed, unborn_ms=unborn_ms)
        reply = read_reply(put, await self._connection.run(put), tree)
        if reply.code not in ("OK", "GONE"):
            raise reply.unexpected()
        return digest

    async def remove(self, tree: TreeId, digest: str) -> None:
        """Removes content that was redacted."""
        await self._connection.command("DEL", self._keys.blob(tree, digest))

    async def get(self, tree: TreeId, digest: str) -> bytes | None:
        """The content, or None if it is not there; raises `Corrupt` if it is not what the hash says."""
        key = self._keys.blob(tree, digest)
        packed: bytes | None = await self._connection.command("GET", key)
        if packed is None:
            return None
        try:
            # The bound of `decompress` is for frames that do not say their size.
            if zstandard.frame_content_size(packed) > MAX_BLOB_BYTES:
                raise Corrupt(key, f"its content has more than {MAX_BLOB_BYTES:,} bytes")
            content = zstandard.decompress(packed, max_output_size=MAX_BLOB_BYTES)
        except zstandard.ZstdError as error:
            raise Corrupt(key, f"its content cannot be unpacked: {error}") from error
        if digest_of(content) != digest:
            raise Corrupt(key, "its content has another hash")
        return content


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────
# Large texts of entries and events, by their hash: written before the entry that refers to them.
#
# A bounded cache stands in front of the blobs: the worker that wrote an output is the one that reads it
# back for the next model request.


CACHE_BYTES = 64 << 20
KEPT_S = 300.0
"""A text that nobody has stored or fetched for so long is dropped: it may be a picture, shown once."""
STORED_KEPT = 4_096
"""Texts of which a process knows that it has stored them."""
ArchivedText = Callable[[TreeId, str], Awaitable[bytes | None]]
"""The archive's copy of a tree's text; raises `Unavailable` while nobody can say whether there is one."""


class Texts:
    """Stores, fetches and remembers texts of one process; `archived` has those of trees that rest."""

    def __init__(
        self,
        blobs: Blobs,
        cache_bytes: int = CACHE_BYTES,
        archived: ArchivedText | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blobs = blobs
        self._archived = archived
        self._known = Recent[str, bytes](cache_bytes, seconds=KEPT_S, newest_stays=True, clock=clock)
        """Texts by their hash. The newest always stays: its fetcher is about to read it."""
        self._stored: OrderedDict[tuple[TreeId, str], None] = OrderedDict()

    async def store(self, tree: TreeId, contents: Mapping[str, bytes], *, unborn: bool = False) -> None:
        """Stores contents under their hashes; they are there when this returns, as `Blobs.put` says."""
        puts = (self._blobs.put(tree, content, unborn=unborn) for content in contents.values())
        await asyncio.gather(*puts)
        self.remember(contents)
        for digest in contents:
            self._stored[tree, digest] = None
            self._stored.move_to_end((tree, digest))
        while len(self._stored) > STORED_KEPT:
            self._stored.popitem(last=False)

    async def store_new(self, tree: TreeId, contents: Mapping[str, bytes]) -> None:
        """Stores contents that this process has not stored for the tree before.

        For a commit that names them, which tells if Redis has lost one since.
        """
        new = {name: content for name, content in contents.items() if (tree, name) not in self._stored}
        if new:
            await self.store(tree, new)
        self.remember(contents)

    def remember(self, contents: Mapping[str, bytes]) -> None:
        """Makes contents available to `get` that are still to be stored."""
        for digest, content in contents.items():
            self._known.put(digest, content, len(content))

    async def fetch(self, tree: TreeId, digests: Iterable[str]) -> None:
        """Makes texts available to `get`; one that is not stored any more stays unknown."""
        missing = [digest for digest in digests if self._known.use(digest) is None]
        for digest, content in zip(
            missing, await asyncio.gather(*(self._read(tree, digest) for digest in missing)), strict=True
        ):
            if content is not None:
                self._known.put(digest, content, len(content))

    async def _read(self, tree: TreeId, digest: str) -> bytes | None:
        content = await self._blobs.get(tree, digest)
        if content is None and self._archived is not None:
            content = await self._archived(tree, digest)
        return content

    def get(self, digest: str) -> str | None:
        """The text, if it was stored or fetched and has not been forgotten since."""
        known = self._known.get(digest)
        return None if known is None else known.decode("utf-8", "surrogatepass")
