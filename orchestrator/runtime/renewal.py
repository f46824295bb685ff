"""Keeping claims alive: the lease protocol, from the holder's side.

States of a claim, by whose clock, and who is authoritative:

    held       Redis has (owner, epoch, claim id) and an expiry 6 s after the last renewal it served.
    trusted    the holder sent a renewal, answered OK, less than 4 s ago (its own CLOCK_BOOTTIME,
               from the moment of *sending*: the lease can only be longer than it thinks).
    expired    Redis may give the session to another; until one takes it, the holder may renew.
    fenced     revoked, or another claim has a higher epoch; no write of this one is accepted, ever.
               The holder stops its work and says so: after a `revoke` the next one waits for it.

Trust ends before the lease can: 4 s, the drift of two clocks and the time that killing takes are less
than 6 s. When it ends the holder stops its own work, so nothing of it can run beside the next holder. Each
failure, and what saves us:

    the process dies        the supervisor's pipe closes: commands die at once, and behind the proof of that
                            the claim is given back (`burial`); without that the lease runs out in 6 s
    the process is stopped  the supervisor's deadlines pass (CLOCK_BOOTTIME), commands die within 4 s
    the loop is stuck       this thread sees no tick for 2 s, nor a commit, and stops renewing
    Redis is away           renewals fail, trust ends, work stops; commits go on being sent again
                            only while somebody may still believe them (`Writing.give_up`). Of a cluster
                            a node that is away ends the trust in the claims that it has, in no others
    the primary is cut off  it goes on renewing while a replica of it is promoted: under `effects = wait` a
                            renewal counts once replicas have it, else `min-replicas-to-write` ends it
    Redis's clock is set    a lease seems over too early: who would take it believes its own clock, too
    Redis went back         claim id, seq and head no longer match: fenced at the next write; and a log
                            that ends before what the holder knows of it is fenced at the next renewal

Renewal runs in a thread of its own with its own connection: a loop that is busy folding a
long log must not lose its claims, a loop that is stuck must. A round renews all claims, in one write where
the server is one; it begins `renew_s` behind the begin of the last one (`Leases.pause_s`), and not before
that one's end. `docs/claims.md` argues all of it in full: variables, actions, invariants.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from orchestrator.boottime import boottime
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import Claim, Fenced, Renewed
from orchestrator.config_keys import WorkerSettings
from orchestrator.core.frozen import record
from orchestrator.runtime import log

RETRY_S = 0.25
"""Seconds from the end of a round that was not answered to the next: a failover takes most of the trust that
is left. From the end, because a round that waited for its deadline in vain has taken longer than this: a
server that is too slow would get the next one while it still works on the last."""
STOP_S = 2.0
"""Patience with the thread of a worker that leaves: until then the event loop stands still."""


@record
class RenewalOutcome:
    """The outcome of a renewal for one claim, told to the main loop."""

    claim: Claim
    tip: str | None
    """The SQ's tip; None if the claim is over."""


Report = Callable[[Sequence[RenewalOutcome]], None]
"""Takes the outcomes of a renewal; called in the main loop."""


Confirm = Callable[[Broker, Claim, int], Awaitable[bool]]
"""Whether enough replicas have a renewal of a claim, and its log up to an entry."""


Reached = Callable[[], int]
"""The last entry of a session's log that its holder knows to be there; called in any thread."""


class Outliving(Protocol):
    """Keeps the claims that a worker holds, for the case that it dies (`orchestrator.runtime.burial`)."""

    def hold(self, claim: Claim) -> None: ...

    def let_go(self, claim: Claim) -> None: ...


class Renewing(Protocol):
    """The interface by which a worker has its claims renewed."""

    def start(self) -> None:
        """Called from the main loop, which must call `tick` from then on."""
        ...

    def stop(self) -> None:
        """Ends all renewal; claims that are still held run out by themselves."""
        ...

    def tick(self) -> None:
        """Notes that the main loop is alive."""
        ...

    def hold(self, claim: Claim, sent_at: float, reached: Reached) -> None:
        """Renews a claim from now on; `sent_at` is when the claim was asked for (CLOCK_BOOTTIME)."""
        ...

    def let_go(self, claim: Claim) -> None: ...

    def distrusted(self) -> list[Claim]:
        """Claims whose trust has ended: their work is to be stopped."""
        ...


class Leases:
    """The protocol itself, without a thread: which claims are held, and until when each is trusted.

    The main loop and whoever renews call it side by side.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        extend: Callable[[str, float], None],
        clock: Callable[[], float],
        confirm: Confirm | None = None,
        unanswered: Callable[[int], None] | None = None,
        outliving: Outliving | None = None,
    ) -> None:
        self._settings = settings
        self._extend = extend
        self._clock = clock
        self._confirm = confirm
        self._unanswered = unanswered
        self._outliving = outliving
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[Claim, Reached]] = {}
        self._sent_at: dict[str, float] = {}
        self._ticked_at = self._began_at = clock()
        self._answered = True

    @property
    def pause_s(self) -> float:
        """How long to wait from now, at the end of a round, until the next begins.

        An answered round is followed `renew_s` behind its begin: trust counts from then, too. A wait behind
        its end would let trust end between two rounds that were both answered.
        """
        renew_s = self._settings.renew_s
        if not self._answered:
            return min(RETRY_S, renew_s)
        return max(0.0, renew_s - (self._clock() - self._began_at))

    def tick(self) -> None:
        """Notes that the main loop is alive."""
        self._ticked_at = self._clock()

    def hold(self, claim: Claim, sent_at: float, reached: Reached) -> None:
        """Renews a claim from now on; `sent_at` is when the claim was asked for."""
        with self._lock:
            self._claims[claim.claim_id] = claim, reached
            self._sent_at[claim.claim_id] = sent_at
            if self._outliving is not None:
                self._outliving.hold(claim)
        self._extend(claim.claim_id, sent_at + self._settings.trust_s)

    def let_go(self, claim: Claim) -> None:
        with self._lock:
            if self._outliving is not None:
                self._outliving.let_go(claim)
            self._claims.pop(claim.claim_id, None)
            self._sent_at.pop(claim.claim_id, None)

    def distrusted(self) -> list[Claim]:
        """Claims whose trust has ended."""
        horizon = self._clock() - self._settings.trust_s
        with self._lock:
            return [claim for key, (claim, _) in self._claims.items() if self._sent_at[key] < horizon]

    async def renew(self, broker: Broker) -> list[RenewalOutcome]:
        """Runs a round: nothing while the main loop is stuck, else an answer for each claim that got one."""
        self._answered, self._began_at = True, self._clock()
        silence_s = self._began_at - self._ticked_at
        if silence_s > self._settings.stall_s:
            log.error("the event loop has done nothing for %.1f s: not renewing", silence_s)
            return []
        with self._lock:
            held = list(self._claims.values())
        if not held:
            return []
        claims, sent_at = [claim for claim, _ in held], self._clock()
        try:
            answers = await broker.claims.renew(claims, [reached() for _, reached in held])
        except BrokerError as error:
            answers = [error] * len(held)
        self._note_unanswered([answer for answer in answers if isinstance(answer, BrokerError)])
        answered = [
            (one, answer)
            for one, answer in zip(held, answers, strict=True)
            if not isinstance(answer, BrokerError)
        ]
        held, told = [one for one, _ in answered], [answer for _, answer in answered]
        counts = await self._confirmed(broker, held, told)
        return [
            self._outcome(claim, answer, sent_at if counted else None)
            for (claim, _), answer, counted in zip(held, told, counts, strict=True)
        ]

    def _note_unanswered(self, errors: Sequence[BrokerError]) -> None:
        if not errors:
            return
        log.warning("%d claims were not renewed: %s", len(errors), errors[0])
        self._answered = False
        if self._unanswered is not None:
            self._unanswered(len(errors))

    async def _confirmed(
        self, broker: Broker, held: Sequence[tuple[Claim, Reached]], answers: Sequence[Renewed | Fenced]
    ) -> list[bool]:
        """Tells which renewals count: under `effects = wait` those that replicas have.

        A primary that is cut off from its replicas could go on renewing what a promoted one gives away.
        """
        if self._confirm is None:
            return [True] * len(held)
        counts = await asyncio.gather(*(self._confirm(broker, claim, reached()) for claim, reached in held))
        if lost := sum(isinstance(a, Renewed) and not c for a, c in zip(answers, counts, strict=True)):
            log.warning("%d renewals were not confirmed by replicas: they count for nothing", lost)
            self._answered = False
        return counts

    def _outcome(self, claim: Claim, answer: Renewed | Fenced, sent_at: float | None) -> RenewalOutcome:
        if not isinstance(answer, Renewed):
            return RenewalOutcome(claim, None)
        if sent_at is None:
            return RenewalOutcome(claim, answer.sq_tip)
        with self._lock:
            known = claim.claim_id in self._claims
            if known:
                self._sent_at[claim.claim_id] = sent_at
        if known:
            self._extend(claim.claim_id, sent_at + self._settings.trust_s)
        return RenewalOutcome(claim, answer.sq_tip)


class Renewal(Leases):
    """The renewal thread of one worker."""

    def __init__(
        self,
        connect: Callable[[], Broker],
        settings: WorkerSettings,
        extend: Callable[[str, float], None],
        report: Report,
        confirm: Confirm | None = None,
        unanswered: Callable[[int], None] | None = None,
        outliving: Outliving | None = None,
    ) -> None:
        super().__init__(settings, extend, boottime, confirm, unanswered, outliving)
        self._connect = connect
        self._report = report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="dendro-renewal", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Starts the thread; called from the main loop, which must call `tick` from then on."""
        self._loop = asyncio.get_running_loop()
        self.tick()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; claims that are still held run out by themselves.

        One that waits for a Redis which does not answer is left to itself: it can renew nothing any more.
        """
        self._stop.set()
        self._thread.join(timeout=STOP_S)

    def _main(self) -> None:
        asyncio.run(self._renew_for_ever())

    async def _renew_for_ever(self) -> None:
        broker = self._connect()
        try:
            while not await asyncio.to_thread(self._stop.wait, self.pause_s):
                outcomes = await self.renew(broker)
                if outcomes and self._loop is not None and not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._report, outcomes)
        finally:
            await broker.aclose()
