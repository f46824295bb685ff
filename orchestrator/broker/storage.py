"""Storing beside the log: snapshots, and what is sealed into the archive.

Under the claim where a holder could still be writing. Knows no archive: segments and their manifest
belong to whoever seals.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.reader import Reader
from orchestrator.broker.records import Claim, Fenced, Refused, SessionHead, Stored, Unstored
from orchestrator.broker.replies import fenced, refused, unstored
from orchestrator.broker.requests import holder
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId

RESTING_AT_ONCE = 500
"""Trees of a shard that are read at once."""


@record
class RestingTree:
    """A tree that upkeep is to look at, as the set has it that the key names."""

    tree: TreeId
    since_ms: int
    key: str


class StorageCalls(Reader):
    """The part of the broker that stores snapshots, and takes logs out of Redis and back in."""

    async def snapshot(self, claim: Claim, seq: int, state: bytes) -> Stored | Fenced | Refused:
        """Stores the state folded through `seq`."""
        keys = [self.keys.session(claim.session), self.keys.snapshot(claim.session)]
        return await self._store(claim, call("snapshot", keys, **holder(claim), seq=seq, state=state))

    async def seal(self, claim: Claim, seq: int, manifest: bytes) -> Stored | Fenced | Refused:
        """Drops the log through `seq`, which archive segments named in `manifest` hold now."""
        keys = [self.keys.session(claim.session), self.keys.rollout(claim.session)]
        return await self._store(claim, call("seal", keys, **holder(claim), seq=seq, manifest=manifest))

    async def archive(self, claim: Claim, closed_root: SessionId | None = None) -> Stored | Fenced | Refused:
        """Leaves only the hash of an ended session that is sealed to its end; ends the claim.

        Refused if `closed_root`, the root of its tree, is not closed any more.
        """
        session, of_closed = claim.session, closed_root is not None
        keys = [
            self.keys.session(session),
            self.keys.leases(self.keys.shard_of(session), claim.pool),
            self.keys.rollout(session),
            self.keys.eq(session),
            self.keys.sq(session),
            self.keys.snapshot(session),
            self.keys.session(closed_root or session),
        ]
        archived = call("archive", keys, session=session, of_closed=int(of_closed), **holder(claim))
        return await self._store(claim, archived)

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
        reply = await self._run(keep, seen.tree)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
                return True
            case "CHANGED":
                return False
            case _:
                raise reply.unexpected()

    async def texts_of(self, tree: TreeId) -> tuple[str, ...]:
        """The hashes of all large texts that were ever stored for the tree, those that left Redis too."""
        found = await self._connection.command("SMEMBERS", self.keys.blobs(tree))
        return tuple(sorted(digest.decode() for digest in found))

    async def drop_texts(self, seen: RestingTree, digests: Sequence[str]) -> bool:
        """Takes texts out of Redis that the archive has; False, and none goes, if the tree was used since."""
        keys = [seen.key, *(self.keys.blob(seen.tree, digest) for digest in digests)]
        drop = call("drop_texts", keys, tree=seen.tree, seen=seen.since_ms, texts=len(digests))
        reply = await self._run(drop, seen.tree)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
                return True
            case "CHANGED":
                return False
            case _:
                raise reply.unexpected()

    async def has_timers(self, session: SessionId) -> bool:
        """Whether a deadline of the session is to come."""
        return bool(await self._connection.command("EXISTS", self.keys.timer(session)))

    async def members(self, tree: TreeId) -> tuple[SessionHead, ...]:
        """The heads of the tree's sessions that exist, the root's last."""
        fields = await self.agents(tree)
        named = [SessionId(value.decode()) for name, value in fields.items() if name.startswith("s:")]
        heads = await self.heads([session for session in named if str(session) != str(tree)])
        return (*heads, *await self.heads([SessionId(tree)]))

    async def _store(self, claim: Claim, call: ScriptCall) -> Stored | Fenced | Refused:
        reply = await self._run(call, claim.session)
        match reply.code:
            case "OK":
                return Stored(self._clock.note(reply.now))
            case "FENCED":
                return fenced(reply)
            case "REFUSED":
                return refused(reply)
            case _:
                raise reply.unexpected()

    async def restore(
        self, session: SessionId, seq: int, state: bytes, texts: Sequence[str] = ()
    ) -> Stored | Refused | Unstored:
        """Brings an archived session back with the snapshot of its last entry.

        `texts`: the large texts of its log, which were put back before.
        """
        tree = (await self.place(session)).tree
        resting = self.keys.to_archive(self.keys.shard_of(session))
        keys = [self.keys.session(session), self.keys.snapshot(session), resting]
        keys += [self.keys.blob(tree, digest) for digest in texts]
        restore = call("restore", keys, tree=tree, seq=seq, state=state, texts=len(texts))
        reply = await self._run(restore, session)
        match reply.code:
            case "OK":
                return Stored(self._clock.note(reply.now))
            case "REFUSED":
                return refused(reply)
            case "UNSTORED":
                return unstored(reply)
            case _:
                raise reply.unexpected()
