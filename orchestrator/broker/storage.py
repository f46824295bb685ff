"""Storing beside the log: snapshots, what is sealed into the archive, and what retention removes.

Under the claim where a holder could still be writing. Knows no archive: segments and their manifest
belong to whoever seals.
"""

from __future__ import annotations

from orchestrator.broker import requests
from orchestrator.broker.connection import Argument, Call
from orchestrator.broker.errors import SessionHeld
from orchestrator.broker.reader import Reader
from orchestrator.broker.records import Claim, Fenced, Place, Refused, Stored
from orchestrator.broker.replies import code_of, fenced, refused, unexpected
from orchestrator.broker.requests import holder_args
from orchestrator.broker.scripts import load
from orchestrator.core.ids import SessionId


class Storage(Reader):
    """What may replace a log, and when it may leave Redis."""

    async def snapshot(self, claim: Claim, seq: int, state: bytes) -> Stored | Fenced | Refused:
        """Stores the state folded through `seq`."""
        keys = [self.keys.session(claim.session), self.keys.snapshot(claim.session)]
        return await self._store(claim, Call(load("snapshot"), keys, [*holder_args(claim), seq, state]))

    async def seal(self, claim: Claim, seq: int, manifest: bytes) -> Stored | Fenced | Refused:
        """Drops the log through `seq`, which archive segments named in `manifest` hold now."""
        keys = [self.keys.session(claim.session), self.keys.rollout(claim.session)]
        return await self._store(claim, Call(load("seal"), keys, [*holder_args(claim), seq, manifest]))

    async def archive(self, claim: Claim) -> Stored | Fenced | Refused:
        """Leaves only the hash of an ended session that is sealed to its end; ends the claim."""
        session = claim.session
        keys = [
            self.keys.session(session),
            self.keys.leases(self.keys.shard_of(session), claim.pool),
            self.keys.rollout(session),
            self.keys.eq(session),
            self.keys.sq(session),
            self.keys.snapshot(session),
        ]
        return await self._store(claim, Call(load("archive"), keys, [session, *holder_args(claim)]))

    async def _store(self, claim: Claim, call: Call) -> Stored | Fenced | Refused:
        reply = await self._wire.run(call)
        match code_of(reply, claim.session):
            case "OK":
                return Stored(self._clock.heard(reply[1]))
            case "FENCED":
                return fenced(reply)
            case "REFUSED":
                return refused(reply)
            case code:
                raise unexpected(call.script.name, code)

    async def restore(self, session: SessionId, seq: int, state: bytes) -> Stored | Refused:
        """Brings an archived session back with the snapshot of its last entry."""
        keys = [self.keys.session(session), self.keys.snapshot(session)]
        reply = await self._wire.run(Call(load("restore"), keys, [seq, state]))
        match code_of(reply, session):
            case "OK":
                return Stored(self._clock.heard(reply[1]))
            case "REFUSED":
                return refused(reply)
            case code:
                raise unexpected("restore", code)

    async def delete_session(
        self, session: SessionId, *, owed: bool = False, epoch: int | None = None
    ) -> None:
        """Removes every key of a session that nobody holds; for a root, of its tree log and blobs too.

        Raises `SessionHeld` if a worker holds it, or is to take it, or has had it since `epoch` was seen.
        `owed`: what it was given may go too.
        """
        place = await self.place(session)
        shard = self.keys.shard_of(session)
        due, leases, _, _ = self.keys.pool(shard, place.pool)
        opened = await self.approvals(session)
        timers = await self._wire.command("HKEYS", self.keys.timer(session))
        keys = [
            self.keys.session(session),
            due,
            leases,
            self.keys.sessions(shard),
            self.keys.timers(shard),
            self.keys.approvals(shard),
            self.keys.timer(session),
            *requests.birth_keys(self.keys, session)[1:],
            self.keys.snapshot(session),
            *(await self._tree_keys(place) if str(place.tree) == session else ()),
        ]
        args: list[Argument] = [session, int(owed), "" if epoch is None else epoch]
        args += requests.rows((f"{session}:{a.key}",) for a in opened)
        args += requests.rows((f"{session}:{t.decode()}",) for t in timers)
        reply = await self._wire.run(Call(load("delete"), keys, args))
        if code_of(reply, session) == "HELD":
            raise SessionHeld(session, reply[1].decode())
        self._clock.heard(reply[1])
        self._places.pop(session, None)

    async def _tree_keys(self, place: Place) -> list[str]:
        digests = await self._wire.command("SMEMBERS", self.keys.blobs(place.tree))
        blobs = [self.keys.blob(place.tree, digest.decode()) for digest in digests]
        return [self.keys.tree(place.tree), self.keys.agents(place.tree), self.keys.blobs(place.tree), *blobs]
