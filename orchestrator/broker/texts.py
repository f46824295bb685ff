"""Large texts of entries and events, by their hash: written before the entry that refers to them.

A bounded cache stands in front of the blobs: the worker that wrote an output is the one
that reads it back for the next model request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping

from orchestrator.broker.blobs import Blobs
from orchestrator.core.ids import TreeId

CACHE_BYTES = 64 << 20
ArchivedText = Callable[[TreeId, str], Awaitable[bytes | None]]
"""The archive's copy of a tree's text; raises `Unavailable` while nobody can say whether there is one."""


class Texts:
    """Stores, fetches and remembers texts of one process; `archived` has those of trees that rest."""

    def __init__(
        self, blobs: Blobs, cache_bytes: int = CACHE_BYTES, archived: ArchivedText | None = None
    ) -> None:
        self._blobs = blobs
        self._archived = archived
        self._limit = cache_bytes
        self._size = 0
        self._known: OrderedDict[str, bytes] = OrderedDict()

    async def store(self, tree: TreeId, contents: Mapping[str, bytes], *, unborn: bool = False) -> None:
        """Stores contents under their hashes; they are there when this returns, as `Blobs.put` says."""
        puts = (self._blobs.put(tree, content, unborn=unborn) for content in contents.values())
        await asyncio.gather(*puts)
        self.remember(contents)

    def remember(self, contents: Mapping[str, bytes]) -> None:
        """Makes contents available to `get` that are still to be stored."""
        for digest, content in contents.items():
            self._remember(digest, content)

    async def fetch(self, tree: TreeId, digests: Iterable[str]) -> None:
        """Makes texts available to `get`; one that is not stored any more stays unknown."""
        missing = [digest for digest in digests if digest not in self._known]
        for digest, content in zip(
            missing, await asyncio.gather(*(self._read(tree, digest) for digest in missing)), strict=True
        ):
            if content is not None:
                self._remember(digest, content)

    async def _read(self, tree: TreeId, digest: str) -> bytes | None:
        content = await self._blobs.get(tree, digest)
        if content is None and self._archived is not None:
            content = await self._archived(tree, digest)
        return content

    def get(self, digest: str) -> str | None:
        """The text, if it was stored or fetched and has not been forgotten since."""
        content = self._known.get(digest)
        return None if content is None else content.decode("utf-8", "surrogatepass")

    def _remember(self, digest: str, content: bytes) -> None:
        self._size += len(content) - len(self._known.pop(digest, b""))
        self._known[digest] = content
        # The newest always stays: its fetcher is about to read it.
        while self._size > self._limit and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._size -= len(forgotten)
