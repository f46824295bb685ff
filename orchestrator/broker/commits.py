"""Commits: everything that makes a session, gives it something, or moves its log on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.broker import script_requests
from orchestrator.broker.claims import Claims
from orchestrator.broker.commit_requests import check_bounds, commit_call, others_of, shape_of
from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import (
    BirthGivenUp,
    QueueFull,
    SecretsFull,
    SubmissionConflict,
    UnknownSession,
)
from orchestrator.broker.logs import compared, packed
from orchestrator.broker.port import Deployment, Port
from orchestrator.broker.records import (
    Claim,
    CommitRequest,
    Committed,
    Emitted,
    Fenced,
    NewTree,
    Place,
    Refused,
    Stored,
    Submit,
    Submitted,
    Successor,
    Unstored,
)
from orchestrator.broker.replies import (
    AnnounceOk,
    Reply,
    committed,
    fenced,
    queue_id,
    refused,
    unstored,
)
from orchestrator.broker.script_requests import holder
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.broker.replies import (
        CommitMoved,
        CommitOk,
        EmitOk,
        Fielded,
        GiveUpOk,
        KeepSecretSecrets,
        SubmitFull,
        SubmitOk,
    )
    from orchestrator.core.commit_parts import NewEvent
    from orchestrator.core.ids import TreeId

# ── births ────────────────────────────────────────────────────────────────────────────────────────
# Root sessions that are to be: announced before anything is stored for them, and what becomes of them.
#
# A client stores the first packs of a portable folder before the session is there. It may die in between,
# and nothing else would know whose packs they are. So it announces the session first; the script that
# creates it takes the announcement away; what stays announced for a day was never born.


MOST_LISTED = 100
"""Sessions of a shard that are looked at in one round."""


class Births(Port):
    """The part of the broker that knows of sessions before they are created."""

    async def announce(self, session: SessionId) -> int:
        """Notes that packs are about to be stored for a session that is not created yet.

        Answers when it was announced first (Unix, in milliseconds): its birth names that moment. Raises
        `BirthGivenUp` if it was given up since.
        """
        reply = await self._run(
            call("announce", [self.keys.unborn(self.keys.shard_of(session))], session=session),
            session,
        )
        match reply.code:
            case "OK":
                announced: AnnounceOk = reply.fields
                self._clock.note(announced["now"])
            case _:
                raise reply.unexpected()
        if announced["known"] <= 0:
            raise BirthGivenUp(session)
        return announced["known"]

    async def unborn(self, before_ms: int) -> tuple[SessionId, ...]:
        """Sessions given up and not forgotten, then those announced before a time, the oldest first."""
        found: list[SessionId] = []
        for shard in range(self.keys.shards):
            named = await self._connection.command(
                "ZRANGEBYSCORE", self.keys.unborn(shard), "-inf", before_ms, "LIMIT", 0, MOST_LISTED
            )
            found += [SessionId(name.decode()) for name in named]
        return tuple(found)

    async def give_up(self, session: SessionId) -> int | None:
        """Keeps a session that was never created from being created; it stays listed until forgotten.

        Answers since when (Unix, in milliseconds), or None if the session is there.
        """
        keys = [self.keys.unborn(self.keys.shard_of(session)), self.keys.session(session)]
        reply = await self._run(call("give_up", keys, session=session), session)
        match reply.code:
            case "OK":
                given_up: GiveUpOk = reply.fields
                self._clock.note(given_up["now"])
                return given_up["known"]
            case "BORN":
                self._clock.note(reply.now)
                return None
            case _:
                raise reply.unexpected()

    async def forget_unborn(self, session: SessionId) -> None:
        """Forgets a session that was given up: nothing is stored for it any more."""
        await self._connection.command("ZREM", self.keys.unborn(self.keys.shard_of(session)), session)


# ── storage ───────────────────────────────────────────────────────────────────────────────────────
# Storing beside the log: snapshots, and what is sealed into the archive.
#
# Under the claim where a holder could still be writing. Knows no archive: segments and their manifest
# belong to whoever seals.


class Storage(Port):
    """The part of commits that stores snapshots, and takes logs out of Redis and back in."""

    async def snapshot(self, claim: Claim, seq: int, state: bytes) -> Stored | Fenced | Refused:
        """Stores the state folded through `seq`."""
        keys = [self.keys.session(claim.session), self.keys.snapshot(claim.session)]
        return await self._store(claim, call("snapshot", keys, **holder(claim), seq=seq, state=state))

    async def seal(
        self, claim: Claim, seq: int, manifest: bytes, *, whole: bool = False
    ) -> Stored | Fenced | Refused:
        """Drops the log through `seq`, which archive segments named in `manifest` hold now.

        `whole`: `seq` is the log's end, and the snapshot goes as well, so that a load folds the segments.
        """
        session = claim.session
        keys = [self.keys.session(session), self.keys.rollout(session), self.keys.snapshot(session)]
        sealing = call("seal", keys, **holder(claim), seq=seq, manifest=manifest, whole=int(whole))
        return await self._store(claim, sealing)

    async def seal_tree(self, tree: TreeId, after: int, entries: Sequence[Fielded]) -> Stored | Refused:
        """Seals the next entries of a tree's log, as `Logs.unsealed` read them behind `after`."""
        keys = [self.keys.tree(tree), self.keys.sealed_tree(tree)]
        seen = [compared(entry) for entry in entries]
        reply = await self._run(call("seal_tree", keys, after=after, segment=packed(entries), seen=seen))
        match reply.code:
            case "OK":
                return Stored(self._clock.note(reply.now))
            case "REFUSED":
                return refused(reply)
            case _:
                raise reply.unexpected()

    async def rewrite(
        self, claim: Claim, seen: bytes, manifest: bytes, owed: Sequence[str] | None = None
    ) -> Stored | Fenced | Refused:
        """Names other segments of the same entries, in which redacted ones have no text.

        `owed`: what the session is marked with from now on; None where no copy is left. Refused if the
        manifest is not the one that was `seen`.
        """
        keys = [self.keys.session(claim.session)]
        mark = "" if owed is None else " ".join(("owed", *owed))
        rewrite = call("rewrite", keys, **holder(claim), seen=seen, manifest=manifest, redacting=mark)
        return await self._store(claim, rewrite)

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
            self.keys.changed(self.keys.shard_of(session)),
            self.keys.redacted(session),
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
        tree, shard = (await self._place(session)).tree, self.keys.shard_of(session)
        keys = [self.keys.session(session), self.keys.snapshot(session), self.keys.to_archive(shard)]
        keys += [*(self.keys.blob(tree, digest) for digest in texts), self.keys.changed(shard)]
        restore = call("restore", keys, session=session, tree=tree, seq=seq, state=state, texts=len(texts))
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


# ── commits ───────────────────────────────────────────────────────────────────────────────────────


class Commits(Storage, Births):
    """The port of what writes sessions."""

    def __init__(self, deployment: Deployment, claims: Claims) -> None:
        super().__init__(deployment)
        self._claims = claims

    async def create(self, tree: NewTree) -> bool | Unstored:
        """Creates a root session; False if it was there. Raises `BirthGivenUp` if it took too long."""
        root = tree.root
        reply = await self._run(script_requests.create_call(self.keys, self.config, tree), root.session)
        match reply.code:
            case "OK" | "DUP" as code:
                self._clock.note(reply.now)
                self._keep(Place(root.session, root.tree, root.pool))
                return code == "OK"
            case "UNSTORED":
                return unstored(reply)
            case "CONFLICT":
                raise SubmissionConflict(root.session)
            case "GIVEN_UP":
                raise BirthGivenUp(root.session)
            case _:
                raise reply.unexpected()

    async def submit(self, submit: Submit) -> Submitted:
        """Puts one submission into the queue, once, and notifies the worker that holds the session."""
        reply = await self._placed(
            submit.session, lambda p: script_requests.submit_call(self.keys, self.config, submit, p)
        )
        match reply.code:
            case "OK" | "DUP" as code:
                taken: SubmitOk = reply.fields
                done = Submitted(
                    queue_id(taken["n"]),
                    code == "DUP",
                    taken["owner"] or None,
                    taken["quarantined"],
                    self._clock.note(taken["now"]),
                    taken["shelved"],
                )
            case "CONFLICT":
                raise SubmissionConflict(submit.submission)
            case "FULL":
                full: SubmitFull = reply.fields
                raise QueueFull(submit.session, full["entries"], full["bytes"])
            case "SECRETS":
                kept: KeepSecretSecrets = reply.fields
                raise SecretsFull(submit.session, kept["most"])
            case _:
                raise reply.unexpected()
        if done.holder and not done.duplicate:
            await self._claims.notify([(submit.session, done.holder)])
        return done

    async def commit(
        self, request: CommitRequest, successor: Successor | None = None
    ) -> Committed | Fenced | Refused | Unstored:
        """Makes one step visible, whole or not at all; the same commit id again gets the first answer.

        After `Unavailable` send the same request again until it is answered, and start nothing meanwhile;
        after `Unstored`, when its texts are stored again. A `successor` is claimed behind it, whatever
        becomes of it, and notes its claim.
        """
        check_bounds(request)
        written, told = others_of(request)
        for attempt in range(2):
            try:
                places = {session: await self._place(session) for session in written}
            except UnknownSession as error:
                return Refused("unknown_target", error.session)
            places.update(await self._places_of(told))
            shape = shape_of(request, places)
            taken = _in_reach(successor, places)
            call = commit_call(self.keys, self.config, request, shape, self.now_ms(), takes=taken is not None)
            if taken is None:
                reply = await self._run(call, request.claim.session)
            else:
                reply = await self._claims.run_and_claim(call, request.claim.session, taken)
            if reply.code != "MOVED" or attempt:
                break
            moved: CommitMoved = reply.fields
            self._places.take(SessionId(moved["session"]))
        return await self._committed(request, reply)

    async def _committed(
        self, request: CommitRequest, reply: Reply
    ) -> Committed | Fenced | Refused | Unstored:
        match reply.code:
            case "OK":
                done: CommitOk = reply.fields
                self._clock.note(done["now"])
                for child in request.tree.children:
                    self._keep(Place(child.session, child.tree, child.pool))
                if held := [(SessionId(session), worker) for session, worker in done["pokes"]]:
                    await self._claims.notify(held)
                if done["woken"]:
                    await self._claims.fire_soon(self.keys.shard_of(request.claim.session))
                return committed(done, request.commit_id)
            case "FENCED":
                return fenced(reply)
            case "REFUSED":
                return refused(reply)
            case "UNSTORED":
                return unstored(reply)
            case _:
                raise reply.unexpected()

    async def _places_of(self, sessions: Sequence[SessionId]) -> dict[SessionId, Place]:
        """The places of the sessions that still exist."""
        found = {}
        for session in sessions:
            with suppress(UnknownSession):
                found[session] = await self._place(session)
        return found

    async def emit(self, claim: Claim, events: Sequence[NewEvent]) -> Emitted | Fenced:
        """Appends events that belong to no commit of their own: deltas."""
        keys = [self.keys.session(claim.session), self.keys.eq(claim.session)]
        emit = call("emit", keys, **holder(claim), **script_requests.eq_limits(self.config), events=events)
        reply = await self._run(emit, claim.session)
        match reply.code:
            case "OK":
                done: EmitOk = reply.fields
                return Emitted(done["n"], queue_id(done["sq"]), self._clock.note(done["now"]))
            case "FENCED":
                return fenced(reply)
            case _:
                raise reply.unexpected()


def _in_reach(successor: Successor | None, places: Mapping[SessionId, Place]) -> Successor | None:
    """The successor, if the commit writes to it, and its claim is for the pool that it is in."""
    if successor is None:
        return None
    place = places.get(successor.session)
    return successor if place is not None and place.pool == successor.who.pool else None
