"""Trees that rest: what upkeep is to look at, and the large texts that leave Redis with them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.broker.connection import call
from orchestrator.broker.port import Port
from orchestrator.core.frozen import record
from orchestrator.core.ids import TreeId

RESTING_AT_ONCE = 500
"""Trees of a shard that are read at once."""


@record
class RestingTree:
    """A tree that upkeep is to look at, as the set has it that the key names."""

    tree: TreeId
    since_ms: int
    key: str


class Resting(Port):
    """The part of trees that upkeep asks for."""

    async def seen_resting(self, key: str, until_ms: int, start: int = 0) -> tuple[RestingTree, ...]:
        """The trees of a shard's `to_archive` or `to_delete` that may rest since then or before, in order."""
        bounds = ("-inf", max(0, until_ms), "WITHSCORES", "LIMIT", start, RESTING_AT_ONCE)
        found = await self._connection.command("ZRANGEBYSCORE", key, *bounds)
        pairs = zip(found[::2], found[1::2], strict=True)
        return tuple(RestingTree(TreeId(tree.decode()), int(float(at)), key) for tree, at in pairs)

    async def trees_of(self, key: str) -> set[str]:
        """All trees of a shard's `to_archive` or `to_delete`."""
        return {tree.decode() for tree in await self._connection.command("ZRANGE", key, 0, -1)}

    async def resting_since(self, tree: TreeId) -> RestingTree | None:
        """The tree as `to_archive` has it; None if nothing of it is to be archived."""
        key = self.keys.to_archive(self.keys.shard_of(tree))
        score = await self._connection.command("ZSCORE", key, tree)
        return None if score is None else RestingTree(tree, int(float(score)), key)

    async def look_again(self, seen: RestingTree, at_ms: int | None) -> bool:
        """Lets upkeep look at the tree at another time, or never unless it is used; False if it was used."""
        keep = call("look_again", [seen.key], tree=seen.tree, seen=seen.since_ms, again=at_ms or 0)
        return self._is_done(await self._run(keep, seen.tree), unless="CHANGED")

    async def texts_of(self, tree: TreeId) -> tuple[str, ...]:
        """The hashes of all large texts that were ever stored for the tree, those that left Redis too."""
        found = await self._connection.command("SMEMBERS", self.keys.blobs(tree))
        return tuple(sorted(digest.decode() for digest in found))

    async def drop_texts(self, seen: RestingTree, digests: Sequence[str]) -> bool:
        """Takes texts out of Redis that the archive has; False, and none goes, if the tree was used since."""
        keys = [seen.key, *(self.keys.blob(seen.tree, digest) for digest in digests)]
        drop = call("drop_texts", keys, tree=seen.tree, seen=seen.since_ms, texts=len(digests))
        return self._is_done(await self._run(drop, seen.tree), unless="CHANGED")
