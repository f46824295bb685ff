"""Storing beside the log: snapshots, and what is sealed into the archive.

Under the claim where a holder could still be writing. Knows no archive: segments and their manifest
belong to whoever seals.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.port import Port
from orchestrator.broker.records import Claim, Fenced, Refused, Stored, Unstored
from orchestrator.broker.replies import fenced, refused, unstored
from orchestrator.broker.requests import holder
from orchestrator.core.ids import SessionId


class Storage(Port):
    """The part of commits that stores snapshots, and takes logs out of Redis and back in."""

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

    async def has_timers(self, session: SessionId) -> bool:
        """Whether a deadline of the session is to come."""
        return bool(await self._connection.command("EXISTS", self.keys.timer(session)))

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
        tree = (await self._place(session)).tree
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
