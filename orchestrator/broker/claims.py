"""Claims: the sessions that a worker holds, and what a worker is told and tells beside them.

A claim is taken, renewed and released; a session that nobody holds is woken, and a worker that holds one is
notified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.broker import records, script_requests
from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import (
    BrokerError,
    Corrupt,
    OutOfMemory,
    SessionArchived,
    Unavailable,
    UnknownSession,
)
from orchestrator.broker.logs import Logs
from orchestrator.broker.notices import Listener
from orchestrator.broker.port import Deployment, Port, scored
from orchestrator.broker.redis_keys import CONTROL_SHARD
from orchestrator.broker.replies import (
    Reply,
    claimed,
    fenced,
    queue_id,
    read_reply,
)
from orchestrator.broker.reply_shapes import BadReply
from orchestrator.broker.script_requests import holder
from orchestrator.broker.scripts import Argument
from orchestrator.broker.worker_state import SILENT_MS, MachineFacts, WorkerState, decoded
from orchestrator.core.commit_parts import STANDING_TIMERS
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.broker.replies import (
        AdmitWait,
        AttendOk,
        ClaimLeft,
        ClaimOk,
        FireOk,
        HeartbeatOk,
        Peek,
        ReleaseOk,
        RenewOk,
        TimersDue,
        TurnAwayOk,
    )
    from orchestrator.broker.replies import Look as Looked

# ── admission ─────────────────────────────────────────────────────────────────────────────────────
# Admission of model requests: requests and tokens per minute of a provider, for the whole fleet.
#
# A provider is a name here, a ticket names the asker. Knows nothing of models or sessions. A request is
# admitted on an estimate of its tokens and settled when its usage is known. An answer that was lost costs
# at most the estimate, which refills: asking or settling again never lets more through than the limit.


PATIENCE_MS = 60_000
"""The longest wait before a ticket asks again: requests settled meanwhile make room."""
GRACE_MS = 30_000
"""Time for which the place of a late ticket is kept: its worker may be lost, or have no room."""


@record
class ProviderLimits:
    """A provider's limits per minute; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@record
class Admitted:
    """The request may be sent now, and is counted."""

    now_ms: int


@record
class Wait:
    """The ticket should ask again after `wait_ms`; its place is kept until then and a little longer."""

    wait_ms: int
    now_ms: int


class Admission(Port):
    """The part of the broker that counts the requests sent to providers."""

    async def admit(self, provider: str, ticket: str, tokens: int, limits: ProviderLimits) -> Admitted | Wait:
        """Counts a request of about `tokens`, or says when to ask again under the same ticket."""
        requests_limit, tokens_limit = _per_minute(limits)
        admit = call(
            "admit",
            list(self.keys.provider(provider)),
            ticket=ticket,
            tokens=tokens,
            requests_limit=requests_limit,
            tokens_limit=tokens_limit,
            patience_ms=PATIENCE_MS,
            grace_ms=GRACE_MS,
        )
        reply = await self._run(admit, ticket)
        match reply.code:
            case "OK":
                return Admitted(self._clock.note(reply.now))
            case "WAIT":
                wait: AdmitWait = reply.fields
                return Wait(wait["wait"], self._clock.note(wait["now"]))
            case _:
                raise reply.unexpected()

    async def settle(self, provider: str, estimated: int, used: int, limits: ProviderLimits) -> None:
        """Puts the account right once the usage of an admitted request is known."""
        if limits.tokens_per_minute is None:
            return
        counts, _ = self.keys.provider(provider)
        limit = limits.tokens_per_minute
        reply = await self._run(
            call("settle", [counts], estimated=estimated, used=used, limit=limit),
            provider,
        )
        if reply.code != "OK":
            raise reply.unexpected()
        self._clock.note(reply.now)


def _per_minute(limits: ProviderLimits) -> tuple[int, int]:
    """The limits as the script reads them: 0 is no limit."""
    return limits.requests_per_minute or 0, limits.tokens_per_minute or 0


# ── timers ────────────────────────────────────────────────────────────────────────────────────────
# Wake-ups of sessions from outside: timers that are due, and notices to the worker that holds a session.
#
# A timer is durable and becomes a queue entry; a notice is free to be lost.


_CONTROL_KEPT_S = 600
_FIRED_SOON = 32


class Timers(Port):
    """The part of the broker that fires timers and notifies workers."""

    async def notify(self, held: Sequence[tuple[SessionId, str]]) -> None:
        """Tells workers that a session of theirs was given something. Free to be lost."""
        rows: list[Sequence[str | bytes | int]] = []
        for session, worker in held:
            key = self.keys.control(worker)
            rows.append(("XADD", key, "MAXLEN", "~", 256, "*", "s", session))
            rows.append(("EXPIRE", key, _CONTROL_KEPT_S))
        # What the notice is about is already in the queue, and the next renewal answers its tip.
        with suppress(Unavailable, OutOfMemory):
            await self._connection.commands(rows)

    async def fire(
        self, shard: int, count: int = 100, damaged: list[Corrupt] | None = None
    ) -> tuple[records.Fired, ...]:
        """Turns the shard's due timers into queue entries.

        Raises `Corrupt` for that of a damaged session once the others have fired; with `damaged` it is put
        there instead.
        """
        reply = await self._run(call("timers_due", [self.keys.timers(shard)], count=count))
        due: TimersDue = reply.fields
        self._clock.note(due["now"])
        found, errors = [], damaged if damaged is not None else []
        for member in due["members"]:
            session, _, timer = member.partition(":")
            if not self.keys.names_session(session):
                errors.append(Corrupt(self.keys.timers(shard), f"{member!r} is of no session"))
                continue
            try:
                fired = await self._fire(SessionId(session), timer)
            except Corrupt as error:
                # It must not keep those behind it from their deadlines.
                errors.append(error)
                continue
            if fired is not None:
                found.append(fired)
        if damaged is None and errors:
            raise errors[0]
        return tuple(found)

    async def _fire(self, session: SessionId, timer: str) -> records.Fired | None:
        shard = self.keys.shard_of(session)

        def build(place: records.Place) -> ScriptCall:
            keys = [
                self.keys.timers(shard),
                self.keys.timer(session),
                self.keys.session(session),
                self.keys.sq(session),
                self.keys.agents(place.tree),
                *self.keys.pool(shard, place.pool),
                self.keys.changed(shard),
                self.keys.watched(shard),
            ]
            again_ms = STANDING_TIMERS.get(timer, 0)
            return call(
                "fire",
                keys,
                session=session,
                pool_name=place.pool,
                tree=place.tree,
                id=timer,
                again_ms=again_ms,
                near=self.keys.nearby,
            )

        try:
            reply = await self._placed(session, build)
        except UnknownSession:
            # Its session was deleted between the two reads; the timer has no session to wake.
            await self._connection.command("ZREM", self.keys.timers(shard), f"{session}:{timer}")
            return None
        match reply.code:
            case "OK":
                fired: FireOk = reply.fields
                self._clock.note(fired["now"])
                if fired["owner"]:
                    await self.notify([(session, fired["owner"])])
                return records.Fired(session, timer, fired["generation"], queue_id(fired["n"]))
            case "NONE":
                return None
            case _:
                raise reply.unexpected()

    async def fire_soon(self, shard: int) -> None:
        """Fires what a script has just made due. Free to fail: a worker polls within a second.

        Only so many, because a commit's answer waits for it.
        """
        with suppress(Unavailable, OutOfMemory):
            await self.fire(shard, _FIRED_SOON, damaged=[])


# ── claims ────────────────────────────────────────────────────────────────────────────────────────


_CANDIDATES = 8
MOST_UNSERVED = 1_000
"""Sessions of one shard's pool that are told of at once."""
BURIED_TRIES = 1
"""Claims without progress, the dead worker's among them, behind which a session is given back at once."""
BURIED_AGAIN_MS = 10_000
"""Time after which a session is given back once more at its worker's death, and does not wait for its lease:
one that kills its workers behind a commit kills about as many as if each of them waited."""
_WORKER_FORGOTTEN_MS = 86_400_000
_LOOKED_MS = 500
"""Time for which a look that found nothing stands for the looks of other workers."""
_NEAR_MS = 500
"""Time for which a session is left to the worker that had it last and was told alone."""
_ATTENDS_MS = 3_000
"""Time after which a worker that says nothing is told of nothing alone any more: three of its looks."""
_LOOKED_SHARDS = 256
"""Shards that one call looks at, where the server is one."""


class Claims(Timers, Admission):
    """The port of workers: claims, timers, heartbeats, and the admission of their model requests."""

    def __init__(self, deployment: Deployment, logs: Logs) -> None:
        super().__init__(deployment)
        self._logs = logs
        self._listener = Listener(self._connection, self.keys)
        self._machines = Machines(self._heartbeats, deployment.monotonic)
        self._shares = Shares(self.config.shards)
        self._left = Left(deployment.monotonic)

    async def claim(
        self,
        pool: str,
        worker: str,
        claim_id: str,
        shard: int,
        guess: SessionId | None = None,
        *,
        unfit: bool = False,
        attends: bool = False,
    ) -> records.Claimed | None:
        """Takes one session of the shard: an expired lease first, else the fairest that is due.

        Expired ones first: they have waited a whole lease already, and the pool may never be idle.
        `guess` is who that may be: a good one saves a poll, a bad one changes nothing. What is left to
        another machine is passed over, see `returns_in`; so is every portable session while this one is
        `unfit` to make folders and others are not. One that `attends` is told alone of what it had last.
        Raises `Corrupt` for a damaged session once nothing else can be claimed.
        """
        roomless = unfit and await self._machines.others_fit(pool, self.config.machine)
        who = records.Claimant(pool, worker, claim_id, roomless, attends=attends and bool(self.keys.nearby))
        if guess is not None:
            found, certain = await self._claim_next(guess, who)
            if certain:
                return found
        return await self._claim_first(shard, who)

    def returns_in(self, pool: str, shard: int) -> float | None:
        """Seconds until a session that is left to another machine is asked for again; None if none is."""
        return self._left.returns_in(pool, shard)

    async def look(self, pools: Sequence[str], worker: str = "") -> records.Look:
        """Looks where something waits for a worker of the pools, unless somebody has just found nothing.

        In a cluster a call looks at the worker's share of the shards, and at some others, in turn.
        With a `worker` it leaves to others what they alone were just told of.
        What a server that fails would have said is missing, and its error is among those of the look.
        """
        every = range(self.config.shards)
        # A call reaches the keys of one slot in a cluster, and of as many shards elsewhere.
        if self._connection.clustered:
            shares = self._shares.next_looks(pools)
            asked: list[tuple[Sequence[str], Sequence[int]]]
            asked = [(some, (shard,)) for shard, some in shares.items()]
        else:
            asked = [(pools, every[first : first + _LOOKED_SHARDS]) for first in every[::_LOOKED_SHARDS]]
        looks = await asyncio.gather(
            *(self._look(some, shards, worker) for some, shards in asked), return_exceptions=True
        )
        found = records.Look()
        for look in looks:
            if isinstance(look, records.Look):
                found = found.with_(look)
            elif isinstance(look, BrokerError):
                found = found.with_(records.Look(errors=(look,)))
            else:
                raise look
        return found

    async def _look(self, pools: Sequence[str], shards: Sequence[int], worker: str) -> records.Look:
        keys = [self.keys.looked(shards[0])]
        for shard in shards:
            keys.append(self.keys.timers(shard))
            for pool in pools:
                keys += self.keys.due(shard, pool), self.keys.leases(shard, pool)
        if CONTROL_SHARD in shards:
            keys += [self.keys.jobs(pool)[0] for pool in pools]
        near_ms = _NEAR_MS if worker and self.keys.nearby else 0
        look = call("look", keys, every_ms=_LOOKED_MS, worker=worker, near_ms=near_ms, pools=pools)
        seen: Looked = (await self._run(look)).fields
        for shard in shards:
            self._note_time(shard, seen["now"])
        claimable = tuple((pools[pool - 1], shards[shard - 1]) for shard, pool in seen["claimable"])
        return records.Look(claimable, tuple(shards[shard - 1] for shard in seen["timed"]), seen["jobs"])

    async def _claim_next(
        self, guess: SessionId, who: records.Claimant
    ) -> tuple[records.Claimed | None, bool]:
        """Claims the session that is next, from a guess on; False if only a poll can tell which one is."""
        for _ in range(_CANDIDATES):
            if not self.keys.names_session(guess) or guess in self._passed(guess, who):
                break
            try:
                reply = await self._ask(guess, who, "next")
                found = self._claimed(reply, guess, who)
            except (UnknownSession, SessionArchived, Corrupt):
                break
            named = _next_named(reply, guess)
            if found is not None or not named:
                return found, True
            if named == guess:
                break
            # Another worker was faster: the answer names the session that is next now.
            guess = SessionId(named)
        return None, False

    async def _claim_first(self, shard: int, who: records.Claimant) -> records.Claimed | None:
        damaged: list[Corrupt] = []
        keys, offset = [self.keys.due(shard, who.pool), self.keys.leases(shard, who.pool)], 0
        while True:
            reply = await self._run(call("peek", keys, offset=offset, count=_CANDIDATES))
            seen: Peek = reply.fields
            expired, due = seen["expired"], seen["due"]
            self._note_time(shard, seen["now"])
            for session in map(SessionId, (*expired, *due)):
                if not self.keys.names_session(session):
                    damaged.append(Corrupt(keys[0], f"{session!r}, due or held, is no session"))
                    continue
                if session in self._passed(session, who):
                    continue
                found = await self._try_claim(session, who, damaged)
                if found is not None:
                    return found
            if max(len(expired), len(due)) < _CANDIDATES:
                if damaged:
                    raise damaged[0]
                return None
            # A page of sessions that need a newer worker must not hide those behind it.
            offset += _CANDIDATES

    async def _try_claim(
        self, session: SessionId, who: records.Claimant, damaged: list[Corrupt]
    ) -> records.Claimed | None:
        try:
            return await self._claim(session, who)
        except (UnknownSession, SessionArchived):
            return None
        except Corrupt as error:
            # It must not hide those behind it, and it must be told of when they are served.
            damaged.append(error)
            return None

    async def claim_session(
        self, session: SessionId, worker: str, claim_id: str, *, parked: bool = False, core: int | None = None
    ) -> records.Claimed | None:
        """Takes one given session if it is due or its lease ran out; `parked` lets upkeep in, too.

        `core`: the core version of the claim, if it is not this process's.
        """
        place = await self._place(session)
        who = records.Claimant(place.pool, worker, claim_id, core=core)
        if not parked:
            return await self._claim(session, who)
        # No machine is asked about: who looks at a parked session needs no copy of its folder.
        reply = await self._run(self._claim_call(session, who, "parked"), session)
        return self._claimed(reply, session, who)

    async def claim_at_rest(self, head: records.SessionHead, worker: str, claim_id: str) -> AtRest | None:
        """Takes a session that no worker has, to be given back as it is found; None if that cannot be.

        `head` was read before: by that it is known how it is found.
        """
        due = self.keys.due(self.keys.shard_of(head.session), head.pool)
        # Before the claim: what becomes due behind this is claimed, or given something, between.
        was_due = await self._connection.command("ZSCORE", due, head.session) is not None
        clock = self._deployment.monotonic
        asked_s = clock()
        claimed = await self.claim_session(head.session, worker, claim_id, parked=True)
        if claimed is None:
            return None
        parked = not was_due and _was_let_alone(head, claimed)
        return AtRest(claimed, parked, claimed, self, clock, asked_s)

    async def run_and_claim(
        self, first: ScriptCall, subject: SessionId, successor: records.Successor
    ) -> Reply:
        """Runs a script, and behind it the claim of a session that it may wake; answers what the first did.

        The claim is given only if the session is next, as `claim` gives it.
        """
        session, who = successor.session, successor.who
        claim = self._claim_call(session, who, "next")
        answered, claimed = await self._connection.run_all([first, claim])
        # What is wrong with it is told to whoever polls for it.
        with suppress(UnknownSession, SessionArchived, Corrupt):
            successor.claimed = self._claimed(read_reply(claim, claimed, session), session, who)
        return read_reply(first, answered, subject)

    async def _claim(
        self, session: SessionId, who: records.Claimant, whom: str = ""
    ) -> records.Claimed | None:
        return self._claimed(await self._ask(session, who, whom), session, who)

    def _passed(self, session: SessionId, who: records.Claimant) -> tuple[SessionId, ...]:
        return self._left.sessions(who.pool, self.keys.shard_of(session))

    async def _ask(self, session: SessionId, who: records.Claimant, whom: str) -> Reply:
        """The answer to a claim; what is left to a machine is claimed again if that is gone, or full."""
        reply = await self._run(self._claim_call(session, who, whom), session)
        if reply.code != "LEFT":
            return reply
        left: ClaimLeft = reply.fields
        unsaved = left["unsaved"]
        if (on := left["copy_on"]) and not who.roomless:
            there = await self._machines.state(who.pool, on)
            if there.gone or (there.full and not unsaved):
                spare = (on if there.gone else "", on if there.full else "")
                again = await self._run(self._claim_call(session, who, whom, spare), session)
                if again.code != "LEFT":
                    return again
        seconds = LOOK_AGAIN_S if unsaved or who.roomless else left["wait_ms"] / 1000
        self._left.leave(who.pool, self.keys.shard_of(session), session, seconds)
        return reply

    async def _heartbeats(self) -> tuple[Sequence[records.Heard], int]:
        return await self.workers(), await self._deployment.server_ms()

    def _claim_call(
        self, session: SessionId, who: records.Claimant, whom: str, spare: tuple[str, str] = ("", "")
    ) -> ScriptCall:
        """A claim; `spare` are a machine that is gone, and one that is full."""
        config, shard = self.config, self.keys.shard_of(session)
        due, leases, _, clock = self.keys.pool(shard, who.pool)
        return call(
            "claim",
            [
                self.keys.session(session),
                self.keys.sq(session),
                self.keys.eq(session),
                due,
                leases,
                clock,
                self.keys.changed(shard),
                self.keys.watched(shard),
                self.keys.sessions(shard),
            ],
            session=session,
            pool=who.pool,
            worker=who.worker,
            claim=who.claim_id,
            core=config.core_version if who.core is None else who.core,
            lease_ms=int(config.lease_s * 1000),
            certain_ms=self._witnesses[shard].certain_ms(),
            whom=whom,
            page=config.page,
            max_tries=config.max_tries,
            event=config.quarantine_event,
            **script_requests.eq_limits(config),
            machine=config.machine,
            gone=spare[0],
            full=spare[1],
            leave_ms=int(config.leave_s * 1000),
            roomless=who.roomless,
            passing=self._passed(session, who)[:MOST_PASSED],
            near_ms=_NEAR_MS if who.attends else 0,
            attends=who.attends,
        )

    def _claimed(self, reply: Reply, session: SessionId, who: records.Claimant) -> records.Claimed | None:
        match reply.code:
            case "OK":
                found: ClaimOk = reply.fields
                self._note_time(self.keys.shard_of(session), found["now"])
                tree = TreeId(found["tree"])
                self._keep(records.Place(session, tree, who.pool))
                claim = records.Claim(session, tree, who.worker, who.claim_id, found["epoch"], who.pool)
                taken = claimed(found, claim, self.keys.sq(session))
                named = taken.after is None or self.keys.names_session(taken.after)
                return taken if named else replace(taken, after=None)
            case "NONE" | "LEFT" | "OLD" | "QUARANTINED" | "MOVED":
                return None
            case _:
                raise reply.unexpected()

    async def renew(
        self, claims: Sequence[records.Claim], reached: Sequence[int] | None = None
    ) -> list[records.Renewed | records.Fenced | BrokerError]:
        """Renews claims, one answer for each in order: the queue's tip, or that the claim is over.

        Or an error, where the answer is none, or in a cluster where the node gave none; an error of a single
        server is raised. `reached`: for each, the `seq` that its log has, as far as its holder knows. Redis
        that went back to before it ends the claim, and so does a damaged session: it must not end the others.
        """
        lease_ms = int(self.config.lease_s * 1000)
        calls = [
            call(
                "renew",
                [self.keys.session(c.session), self.keys.leases(self.keys.shard_of(c.session), c.pool)],
                session=c.session,
                **holder(c),
                lease_ms=lease_ms,
                reached=seq,
            )
            for c, seq in zip(claims, reached or [0] * len(claims), strict=True)
        ]
        replies = await self._connection.run_each(calls) if calls else []
        return [
            reply if isinstance(reply, BrokerError) else self._renewed(claim, asked, reply)
            for claim, asked, reply in zip(claims, calls, replies, strict=True)
        ]

    def _renewed(
        self, claim: records.Claim, asked: ScriptCall, answer: Sequence[Any]
    ) -> records.Renewed | records.Fenced | BrokerError:
        try:
            reply = read_reply(asked, answer, claim.session)
        except Corrupt as error:
            return records.Fenced(claim.epoch, str(error))
        except BadReply as error:
            return error
        match reply.code:
            case "OK":
                held: RenewOk = reply.fields
                return records.Renewed(queue_id(held["sq"]), self._clock.note(held["now"]))
            case "FENCED":
                return fenced(reply)
            case _:
                raise reply.unexpected()

    async def release(
        self, claim: records.Claim, *, park_at: records.LogPlace | None = None
    ) -> records.Released | records.Fenced:
        """Gives a claim back without a commit: due at once, or parked if nothing is queued.

        `park_at` is where the log ended for the one who saw that nothing is owed: if it does not end
        there, Redis went back, and what its log owes is still to be found out.
        """
        release = call(
            "release",
            [
                self.keys.session(claim.session),
                self.keys.agents(claim.tree),
                *self._pool_keys(claim),
                self.keys.released(self.keys.shard_of(claim.session)),
            ],
            session=claim.session,
            pool_name=claim.pool,
            **holder(claim),
            seq="" if park_at is None else park_at.seq,
            head="" if park_at is None else park_at.head,
        )
        reply = await self._run(release, claim.session)
        match reply.code:
            case "OK":
                done: ReleaseOk = reply.fields
                return records.Released(done["parks"], self._clock.note(done["now"]))
            case "FENCED":
                return fenced(reply)
            case _:
                raise reply.unexpected()

    async def bury(self, claims: Sequence[records.Claim]) -> list[bool]:
        """Gives back claims of a worker that has died; for each, whether its session is due now.

        Only behind the proof that nothing runs which the worker started. A session that may have killed its
        worker is left to its lease.
        """
        calls = [
            call(
                "bury",
                [
                    self.keys.session(claim.session),
                    self.keys.agents(claim.tree),
                    *self._pool_keys(claim),
                    self.keys.released(self.keys.shard_of(claim.session)),
                    self.keys.changed(self.keys.shard_of(claim.session)),
                ],
                session=claim.session,
                pool_name=claim.pool,
                **holder(claim),
                most_tries=BURIED_TRIES,
                pause_ms=BURIED_AGAIN_MS,
            )
            for claim in claims
        ]
        replies = await self._connection.run_all(calls) if calls else []
        return [
            self._buried(read_reply(call, reply, claim.session))
            for claim, call, reply in zip(claims, calls, replies, strict=True)
        ]

    def _buried(self, reply: Reply) -> bool:
        match reply.code:
            case "OK" | "LEFT":
                self._clock.note(reply.now)
                return reply.code == "OK"
            case "FENCED":
                return False
            case _:
                raise reply.unexpected()

    def _pool_keys(self, claim: records.Claim) -> tuple[str, str, str, str]:
        return self.keys.pool(self.keys.shard_of(claim.session), claim.pool)

    async def confirmed(self, claim: records.Claim, seq: int, replicas: int, timeout_s: float) -> bool:
        """Whether so many replicas have the holder's log up to `seq`; no answer, or a full server, means no.

        WAIT speaks of the writes of its own connection, and a pool hands out any of them: so it follows
        a write of its own, which stands behind all the others in the stream that replicas read. And the
        server may be another than the one that wrote: a replica that was promoted meanwhile, with replicas
        that lack just what it lacks. So it is asked for the log, too: only its holder can have made it grow.
        """
        rows: list[tuple[Argument, ...]] = [
            ("SET", self.keys.confirmed(self.keys.shard_of(claim.session)), ""),
            ("HMGET", self.keys.session(claim.session), "claim", "seq"),
            ("WAIT", replicas, int(timeout_s * 1000)),
        ]
        try:
            _, (holder, length), have = await self._connection.together(rows)
        except (Unavailable, OutOfMemory):
            return False
        return holder == claim.claim_id.encode() and int(length) >= seq and int(have) >= replicas

    async def at_work(self, shard: int, pools: Sequence[str]) -> list[SessionId]:
        """The sessions of a shard that wait for a worker of these pools, or are held by one."""
        keys = [key for pool in pools for key in self.keys.pool(shard, pool)[:2]]
        found = await self._connection.commands([("ZRANGE", key, 0, -1) for key in keys])
        return [SessionId(member.decode()) for members in found for member in members]

    async def heartbeat(
        self, worker: str, state: bytes, *, pools: Sequence[str] = (), left: bool = False
    ) -> bool:
        """Says that the worker lives, and how it is, or that it has left; answers whether it is to drain.

        In a cluster it hears which share of the shards of its `pools` is its own.
        """
        pools = pools if self._connection.clustered else ()
        beat = call(
            "heartbeat",
            [*self.keys.workers(), *map(self.keys.serving, pools)],
            worker=worker,
            state=state,
            left=left,
            forget_ms=_WORKER_FORGOTTEN_MS,
            silent_ms=SILENT_MS,
        )
        reply = await self._run(beat, worker)
        if reply.code != "OK":
            raise reply.unexpected()
        heard: HeartbeatOk = reply.fields
        self._clock.note(heard["now"])
        self._shares.note(pools, heard["places"])
        return heard["drains"]

    async def drain(self, worker: str) -> bool:
        """Asks a worker to drain, which it does at its next heartbeat; False if nobody knows it."""
        reply = await self._run(call("drain", list(self.keys.workers()), worker=worker), worker)
        return reply.code == "OK"

    async def attend(self, worker: str, pools: Sequence[str]) -> str:
        """Says that the worker wants to be told alone of what becomes due; answers where that begins."""
        attend = call("attend", self._ears(worker, pools), worker=worker, ttl_ms=_ATTENDS_MS)
        done: AttendOk = self._heard(await self._run(attend, worker)).fields
        return done["behind"]

    async def turn_away(
        self, worker: str, pools: Sequence[str], read: str
    ) -> tuple[tuple[str, SessionId], ...]:
        """Says that the worker has no room; answers what it was told behind the entry that it read last."""
        turn_away = call("turn_away", self._ears(worker, pools), worker=worker, read=read)
        done: TurnAwayOk = self._heard(await self._run(turn_away, worker)).fields
        return tuple((pool, SessionId(session)) for session, pool in done["told"] if session)

    def _ears(self, worker: str, pools: Sequence[str]) -> list[str]:
        return [self.keys.near(worker), *map(self.keys.open, pools)]

    def _heard(self, reply: Reply) -> Reply:
        if reply.code != "OK":
            raise reply.unexpected()
        self._clock.note(reply.now)
        return reply

    async def attends(self, worker: str) -> bool:
        """Says that the worker still wants to be told alone; False if it has to say so anew."""
        return bool(await self._connection.command("PEXPIRE", self.keys.near(worker), _ATTENDS_MS))

    async def pass_on(self, pool: str, sessions: Collection[SessionId]) -> None:
        """Tells all workers of sessions that one alone was told of and cannot take."""
        calls = [
            call(
                "pass_on",
                [self.keys.session(session), *self.keys.pool(self.keys.shard_of(session), pool)],
                session=session,
                pool_name=pool,
            )
            for session in sessions
        ]
        replies = await self._connection.run_all(calls) if calls else []
        for asked, reply in zip(calls, replies, strict=True):
            self._clock.note(read_reply(asked, reply, str(asked.args[0])).now)

    async def wait_for_notices(
        self, pool: str, worker: str, cursors: Mapping[str, str], timeout_s: float, *, own: bool = True
    ) -> records.Notices:
        """Waits until something may be claimable in the pool or changed in a held session.

        The first call gets no cursors and answers at once; each answer carries those of the next. `own`:
        also for what this worker alone is told. In a cluster it waits for its share of the shards.
        """
        shards = self._shares.own(pool) if self._connection.clustered else None
        return await self._listener.wait((pool, worker if own else ""), cursors, timeout_s, shards)

    async def unserved(self, pools: Sequence[str]) -> records.Unserved:
        """The sessions of some pools that wait for a worker, or whose worker was lost."""
        places = [(shard, pool) for pool in pools for shard in range(self.config.shards)]
        if not places:
            return records.Unserved()
        now_ms = await self.server_ms()
        most = ("LIMIT", 0, MOST_UNSERVED)
        rows: list[tuple[str | int, ...]] = [
            ("ZRANGEBYSCORE", self.keys.leases(*place), "-inf", now_ms, "WITHSCORES", *most)
            for place in places
        ]
        rows += [("ZRANGE", self.keys.due(*place), 0, MOST_UNSERVED - 1) for place in places]
        found = await self._connection.commands(rows)
        lost, due = found[: len(places)], found[len(places) :]
        return records.Unserved(
            {SessionId(name.decode()): int(at) for page in lost for name, at in scored(page)},
            frozenset(SessionId(name.decode()) for page in due for name in page),
        )

    async def workers(self) -> tuple[records.Heard, ...]:
        """Every worker that was heard from in the last day and has not left, latest first."""
        states_key, heard_key, _ = self.keys.workers()
        states, heard = await self._connection.commands(
            [("HGETALL", states_key), ("ZREVRANGE", heard_key, 0, -1, "WITHSCORES")]
        )
        return tuple(records.Heard(w.decode(), states.get(w, b""), int(at)) for w, at in scored(heard))

    async def queue_of(self, pool: str) -> records.PoolQueue:
        """How much of a pool's work waits, and for how long; a look at each shard, not at one moment."""
        shards = range(self.config.shards)
        rows: list[tuple[str | int, ...]] = [("ZCARD", self.keys.due(shard, pool)) for shard in shards]
        rows += [("ZCARD", self.keys.leases(shard, pool)) for shard in shards]
        rows += [("ZRANGE", self.keys.due(shard, pool), 0, 0) for shard in shards]
        found = await self._connection.commands(rows)
        many = len(shards)
        next_ones = [SessionId(first[0].decode()) for first in found[2 * many :] if first]
        # Of one that cannot be read nobody knows for how long it waits.
        arrived = [await self._first_unread(head) for head in await self._logs.heads(next_ones, {})]
        known = [at_ms for at_ms in arrived if at_ms is not None]
        age_ms = max(0, self.now_ms() - min(known)) if known else 0
        return records.PoolQueue(sum(map(int, found[:many])), sum(map(int, found[many : 2 * many])), age_ms)

    async def _first_unread(self, head: records.SessionHead) -> int | None:
        try:
            entries = await self._logs.read_sq(head.session, head.cursor, 1)
        except Corrupt:
            return None
        return entries[0].at_ms if entries else None

    async def aclose(self) -> None:
        """Ends the reads that wait."""
        await self._listener.aclose()


@dataclass(slots=True)
class AtRest:
    """A session that was claimed at rest, and the way to give it back as it was found.

    What was due owes something: nobody would look at it any more if it were parked.
    """

    claimed: records.Claimed
    parked: bool
    """Whether it was parked when it was claimed."""
    end: records.LogPlace
    """The end of its log, for who has written to it under this claim to say."""
    _claims: Claims
    _monotonic: Callable[[], float]
    _renewed_s: float
    """When its lease began, or before that."""

    async def stay(self) -> None:
        """Renews the claim when a third of its lease is over: for a holder that takes longer than a lease.

        A claim that is over stays so, which the next write under it tells.
        """
        now_s = self._monotonic()
        if now_s - self._renewed_s >= self._claims.config.lease_s / 3:
            self._renewed_s = now_s
            await self._claims.renew([self.claimed.claim], [self.claimed.seq])

    async def give_back(self) -> records.Released | records.Fenced:
        """Ends the claim."""
        park_at = self.end if self.parked else None
        return await self._claims.release(self.claimed.claim, park_at=park_at)


def _was_let_alone(head: records.SessionHead, claimed: records.Claimed) -> bool:
    """Whether nobody held a session when `head` was read, nor has claimed it since, as its epoch tells.

    Who held it may have given it back due since then.
    """
    return head.holder is None and claimed.claim.epoch == head.epoch + 1


def _next_named(reply: Reply, guess: SessionId) -> str:
    """The session that a reply says could be claimed next; the guess if it says nothing of that."""
    if reply.code not in ("NONE", "LEFT"):
        return guess
    named: str | None = reply.fields["next"]
    return guess if named is None else named


# ── shares ────────────────────────────────────────────────────────────────────────────────────────
# The shards of a cluster that a worker looks after: a call reaches one slot there, and all workers asking
# for all shards would be a load that grows with both.


@dataclass(slots=True)
class Shares:
    """The places of one worker among those of its pools, and the shards that are its own by that.

    Each shard has two workers of a pool, as long as there are two: they wait for its notices, and look at it
    each time. All others look at it in turn, so that somebody looks each second whoever is lost or busy.
    """

    shards: int
    _places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By pool: the rank, and how many there are."""
    _looks: int = 0

    def note(self, pools: Sequence[str], places: Sequence[tuple[int, int]]) -> None:
        """Takes what a heartbeat was answered."""
        self._places.update(zip(pools, places, strict=False))

    def own(self, pool: str) -> list[int]:
        """The shards whose notices this worker waits for."""
        rank, count = self._places.get(pool, (0, 1))
        every = range(self.shards)
        return [shard for shard in every if rank in (shard % count, (shard + count // 2) % count)]

    def next_looks(self, pools: Sequence[str]) -> dict[int, list[str]]:
        """The shards to be looked at now, each with the pools of which."""
        found: dict[int, list[str]] = {}
        for pool in pools:
            rank, count = self._places.get(pool, (0, 1))
            some = -(-self.shards // count)
            first = (rank + self._looks) * some
            others = ((first + at) % self.shards for at in range(some))
            for shard in dict.fromkeys((*self.own(pool), *others)):
                found.setdefault(shard, []).append(pool)
        self._looks += 1
        return found


# ── machines ──────────────────────────────────────────────────────────────────────────────────────
# Machines as claims see them: which are there, which have room, and the sessions that are left to them.
#
# A portable session's copy is on one machine, and workers of others leave the session to it for a while
# (`claim.lua`). The script knows no heartbeats: they lie in a slot of their own. So a worker that was
# told to leave a session looks at them, and claims again if that machine is gone, or full.


LOOK_AGAIN_S = 1.0
"""Seconds for which heartbeats that were read are believed, and after which an unsaved session is asked for
again."""
MOST_PASSED = 16
"""Sessions that a claim names as left. Others are left all the same, and cost a poll."""

_Told = tuple[WorkerState, MachineFacts]


@record
class MachineState:
    """A machine, as the heartbeats of its workers show it to one pool."""

    gone: bool
    """No worker of the pool was heard from there lately."""
    full: bool
    """None of those that were has room for another session, or for folders."""


def machine_state(heard: Sequence[records.Heard], now_ms: int, pool: str, machine: str) -> MachineState:
    """The state of a machine for a pool, by all heartbeats that there are."""
    there = list(_workers_there(heard, now_ms, pool, machine))
    full = all(one.draining or one.held >= one.room or bool(facts.unfit) for one, facts in there)
    return MachineState(gone=not there, full=full)


def others_fit(heard: Sequence[records.Heard], now_ms: int, pool: str, machine: str) -> bool:
    """Whether another machine has a worker of the pool that makes portable folders."""
    return any(
        facts.machine_id != machine and facts.workspaces and not facts.unfit and not one.draining
        for one, facts in _workers_of(heard, now_ms, pool)
    )


def _workers_there(heard: Sequence[records.Heard], now_ms: int, pool: str, machine: str) -> Iterator[_Told]:
    return (told for told in _workers_of(heard, now_ms, pool) if told[1].machine_id == machine)


def _workers_of(heard: Sequence[records.Heard], now_ms: int, pool: str) -> Iterator[_Told]:
    """The workers of a pool that were heard lately, and know machines."""
    for one in heard:
        if now_ms - one.heard_ms >= SILENT_MS:
            continue
        state = decoded(one.state)
        if state.facts is not None and pool in state.pools:
            yield state, state.facts


@dataclass(slots=True)
class Machines:
    """The heartbeats of a fleet, read again when they are old."""

    read: Callable[[], Awaitable[tuple[Sequence[records.Heard], int]]]
    """Answers the heartbeats, and the time of Redis's clock."""
    monotonic: Callable[[], float]
    _heard: Sequence[records.Heard] = ()
    _now_ms: int = 0
    _read_at: float | None = None

    async def state(self, pool: str, machine: str) -> MachineState:
        """The state of a machine for a pool, at most `LOOK_AGAIN_S` old."""
        await self._look()
        return machine_state(self._heard, self._now_ms, pool, machine)

    async def others_fit(self, pool: str, machine: str) -> bool:
        """Whether another machine makes portable folders for the pool, by heartbeats that are as old."""
        await self._look()
        return others_fit(self._heard, self._now_ms, pool, machine)

    async def _look(self) -> None:
        at = self.monotonic()
        if self._read_at is None or at - self._read_at >= LOOK_AGAIN_S:
            self._heard, self._now_ms = await self.read()
            self._read_at = at


@dataclass(slots=True)
class Left:
    """Sessions that a process leaves to others, each until a time of its own monotonic clock."""

    monotonic: Callable[[], float]
    _until: dict[tuple[str, int], dict[SessionId, float]] = field(default_factory=dict)
    """By pool and shard."""

    def leave(self, pool: str, shard: int, session: SessionId, seconds: float) -> None:
        """Leaves a session for so long; it is asked for again behind that."""
        self._until.setdefault((pool, shard), {})[session] = self.monotonic() + seconds

    def sessions(self, pool: str, shard: int) -> tuple[SessionId, ...]:
        """The sessions of a shard that are left now."""
        known = self._until.get((pool, shard))
        if not known:
            return ()
        now = self.monotonic()
        kept = {session: until for session, until in known.items() if until > now}
        self._until[pool, shard] = kept
        return tuple(kept)

    def returns_in(self, pool: str, shard: int) -> float | None:
        """Seconds until the first of them is asked for again; None if none is left."""
        self.sessions(pool, shard)
        known = self._until.get((pool, shard))
        return max(0.0, min(known.values()) - self.monotonic()) if known else None
