"""The runner of one claimed session, from its claim to its release.

Every step is the same: gather what happened (SQ entries, results of effects), decide each, commit all of it
at once, and only then start what the new state owes. Nothing runs that is not first in the log; a step that
is fenced changed nothing and ends the runner.

A runner ends when it parks (nothing can go on without news), yields (others wait and its quantum is over),
drains (the worker is leaving), or loses its claim.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from orchestrator.broker import records
from orchestrator.broker.errors import BrokerError, CommitTooLarge
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.chain import ChainKey
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.decide.draft import Note
from orchestrator.core.entries import encode_event
from orchestrator.core.ids import SessionId
from orchestrator.core.outstanding import (
    AssessCall,
    BeginSetup,
    LookUp,
    MakeFolder,
    OweRequest,
    ReadInstructions,
    RunSetup,
    SaveFolder,
)
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.protocol.codec import short_id
from orchestrator.protocol.events import WarningEvent
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import RolloutFile
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.session_summary import Position, session_meta, shown_anew
from orchestrator.runtime import log
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.committing import ARCHIVE_S
from orchestrator.runtime.journal import Step, Writer
from orchestrator.runtime.loader import Cache, Loaded, Weight, load, payload_bytes
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.request_costs import nearly_used, warnings
from orchestrator.runtime.runner_context import RunnerConfig, RunnerContext
from orchestrator.runtime.side_work import SideWork
from orchestrator.runtime.sq_entries import judged_running, shown_by_lost
from orchestrator.runtime.step import (
    Broken,
    Decisions,
    Undecided,
    passed_over,
    tries,
)
from orchestrator.telemetry.observer import CommittedStep

__all__ = ["Ended", "Runner", "RunnerConfig"]

_BEGUN_LATER = (OweRequest, AssessCall, ReadInstructions, LookUp, MakeFolder, BeginSetup, RunSetup)
"""Work that is owed and runs nowhere: the session's next holder decides it as well."""
FILE_S = 0.1
"""Seconds for which a session has rested when its rollout's file is written: many go on at once."""
FILE_BYTES = 64 << 10
"""Bytes of entries that are not kept for that."""


class Ended(StrEnum):
    """Why a runner let its session go."""

    PARKED = "parked"
    YIELDED = "yielded"
    LOST = "lost"
    HANDED_ON = "handed on"
    """A submission could not be decided here: the next worker is to try."""


class Runner:
    """The holder of one session. One runner serves one claim."""

    def __init__(self, ports: Ports, config: RunnerConfig, claimed: records.Claimed, cache: Cache) -> None:
        self.claim = claimed.claim
        self.reached = claimed.seq
        """The last entry that the log is known to have: Redis has confirmed it."""
        self._ports = ports
        self._config = config
        self._claimed = claimed
        self._cache = cache
        context = RunnerContext.of(ports, config, claimed)
        self._journal = context.journal
        self._writing = context.writing
        self._workspace = context.workspace
        self._arrivals = Arrivals(context)
        self._copies = Copies(context)
        self._side_work = SideWork(context, self._arrivals)
        secret = config.chain_key.secret if config.chain_key else b""
        self._writer = Writer(claimed.claim.epoch, ports.random_bytes, secret, config.accounting)
        self._decisions = Decisions(context, self._arrivals, self._side_work)
        self._warned: set[tuple[str, int | None]] = set()
        self._summed_up: int | None = None
        """The entry up to which this runner wrote the session's summary, with the digest of its state."""
        self._fault_reported = False
        """Whether the log says already, or the next step does, that the rollout's file is not up to date."""
        self._lost = False
        self._fenced = False

    # ── what the worker tells its runner ──────────────────────────────────────────────────────

    def notify(self, tip: str | None = None) -> None:
        """Notes that the SQ may hold news; `tip`, if known, is its last entry."""
        self._arrivals.notify(tip)

    def lose(self, *, fenced: bool = False) -> None:
        """Stops whatever runs now: the claim is over (`fenced`), or can no longer be trusted."""
        self._lost = True
        self._fenced |= fenced
        self._writing.give_up()
        # The loop may be waiting for an answer from Redis; what runs must not wait with it.
        self._side_work.cancel()
        self._arrivals.wake()

    @property
    def keeps_processes_only(self) -> bool:
        """Whether the claim is kept for processes alone: no turn of the session is under way."""
        return self._arrivals.resting and self._side_work.follows_processes_only

    @property
    def status(self) -> str:
        """The session's status, as far as its log was read."""
        return self._journal.status

    def drain(self) -> None:
        """Gives the session back as soon as nothing of it runs, because the worker leaves."""
        self._side_work.drain()

    # ── the loop ──────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Ended:
        """Runs the session until it can be given back or is lost."""
        try:
            return await self._run()
        except Undecided as error:
            log.exception("session %s: %s", self.claim.session, error)
            await self._hand_on(error)
            return Ended.HANDED_ON

    async def _run(self) -> Ended:
        loaded = await self._load()
        if loaded is None:
            return Ended.LOST
        self._journal.position = loaded.position
        self._copies.begin(loaded)
        try:
            await self._begin()
            while True:
                ended = await self._step()
                if ended is not None:
                    return ended
                await self._arrivals.news()
        finally:
            if self._lost or self._side_work.unsettled:
                await self._side_work.stop()
            if self._fenced:
                await self._report_stopped()
            # Else a response's connection may be reading its last bytes, to be used again.
            self._writing.close()
            self._side_work.close()
            await self._side_work.folder.release()

    async def _load(self) -> Loaded | None:
        """Waits for the archive, where it is needed: claims that fail for want of it would add up."""
        while True:
            try:
                return await self._writing.insist(
                    lambda: load(self._ports, self._claimed, self._cache, self._writer.secret)
                )
            except ArchiveUnavailable as error:
                log.warning("session %s: its log cannot be read yet: %s", self.claim.session, error)
            await self._ports.sleep(ARCHIVE_S)
            if self._side_work.draining:
                await self._give_back("yield")
                return None

    async def _begin(self) -> None:
        state = self._journal.state
        judgements = await judged_running(self._ports, state, self.claim, self._workspace)
        if judgements is not None:
            unsaved = await self._ports.folders.has(state) if state.workspace.unsaved is not None else None
            shown = await shown_by_lost(self._ports, state, self.claim)
            self._arrivals.push(c.TookOver(judgements, unsaved, self._claimed.abandoned, shown))
        if self._ports.observer is not None:
            took_over = judgements is not None
            self._ports.observer.began(self.claim, state, took_over=took_over)
        await self._arrivals.accept_first()
        claims = self._claimed.claims_without_progress
        if claims > tries(self._max_tries) and claims >= self._max_tries - 1:
            # The next claim without progress would set the session aside, and nothing has raised.
            self._arrivals.pass_over_first(lambda submission: passed_over(submission, claims - 1))

    @property
    def _max_tries(self) -> int:
        return self._ports.broker.config.max_tries

    async def _step(self) -> Ended | None:
        """Runs one turn of the loop; None means that the runner goes on."""
        while not self._lost:
            await self._arrivals.read()
            self._side_work.look_at_time()
            step = Step(self._journal.position, self._writer, self._ports.broker.now_ms())
            if self._ports.observer is not None:
                step.taken = []
            done = None
            try:
                await self._decisions.fill(step)
                done = await self._finish(step, self._release(step))
            except Broken as broken:
                self._decisions.broke(broken.error)
            except CommitTooLarge as error:
                self._decisions.broke(error)
            if done is not None or not (self._arrivals or self._decisions.cut):
                return done
        log.warning("session %s: its claim is over", self.claim.session)
        return Ended.LOST

    def _release(self, step: Step) -> records.Release:
        state = step.position.state
        self._side_work.look_at_time()
        if self._side_work.unsettled or self._arrivals:
            return "keep"
        owed = self._decisions.owed(state)
        if not owed:
            return "park"
        # Unsaved changes are on this machine alone: only a worker that ends leaves them there.
        later = (*_BEGUN_LATER, SaveFolder) if self._side_work.draining else _BEGUN_LATER
        runs_nothing = all(isinstance(work, later) for work in owed)
        return "yield" if self._side_work.leaving() and runs_nothing else "keep"

    # ── committing ────────────────────────────────────────────────────────────────────────────

    async def _finish(self, step: Step, release: records.Release) -> Ended | None:
        if step.export and (fault := await self._copies.export()) and not self._fault_reported:
            self._fault_reported = True
            self._decisions.again_behind(fault, step.base.state)
            return None
        snapshot_due = self._copies.snapshot_due(step.position.seq)
        released = False
        # Work that ends without a step may be the last that kept the session: its summary is still owed.
        owes_summary = release == "park" and self._summed_up != step.position.seq
        if not step.empty or self._arrivals.moved or (owes_summary and not self._arrivals.unread):
            keep: records.Release = "keep" if snapshot_due else release
            meta = self._meta(step, release)
            began = self._ports.monotonic()
            self._side_work.prepare(self._decisions.owed(step.position.state), step.position.state)
            answer = await self._commit(step, keep, meta)
            if isinstance(answer, records.Refused):
                if answer.reason == "cursor":
                    # Redis went back to before an entry that this step has read: there is none to consume.
                    return self._turned_away(None)
                self._decisions.refused(answer)
                return None
            if not isinstance(answer, records.Committed):
                return self._turned_away(answer)
            self._observe(step, self._ports.monotonic() - began)
            self._committed(step, answer)
            self._summed_up = step.position.seq if release != "keep" else self._summed_up
            released = answer.released
        if snapshot_due and not await self._copies.snapshot():
            return self._turned_away(None)
        if not released and release != "keep" and not self._arrivals.unread:
            released = await self._give_back(release)
        if released:
            if self._config.files is None or self._copies.heavy:
                # Whom the commit woke is asked for first, and answered while the file is written.
                await self._ports.sleep(0)
                await self._copies.export()
            left = self._copies.left()
            self._cache.keep(self.claim.session, left)
            if self._config.files is not None:
                self._config.files.owe(self.claim, left)
            return Ended.PARKED if release == "park" else Ended.YIELDED
        await self._start_owed()
        return None

    async def _commit(
        self, step: Step, release: records.Release, meta: bytes | None
    ) -> records.Committed | records.Fenced | records.Refused | None:
        successor = self._successor(step, release)
        try:
            return await self._writing.commit(step, self._arrivals.cursor, release, meta, successor)
        finally:
            if self._config.successors is not None and successor is not None:
                await self._config.successors.settle(successor)
                # Its first step needs nothing more of this session, which is at its end.
                await self._ports.sleep(0)

    def _successor(self, step: Step, release: records.Release) -> records.Successor | None:
        """The session to go on with behind a step that speaks to it alone, and at which this one rests."""
        spoken_to = {mail.to for mail in step.tree.outbox} if step.tree is not None else set()
        if release != "park" or len(spoken_to) != 1 or self._config.successors is None:
            return None
        return self._config.successors.offer(spoken_to.pop(), self.claim.pool)

    def _meta(self, step: Step, release: records.Release) -> bytes | None:
        changed = shown_anew(step.base.state, step.position.state)
        rests = release != "keep"
        return session_meta(step.position, step.at_ms, rests=rests) if rests or changed else None

    def _observe(self, step: Step, took_s: float) -> None:
        if self._ports.observer is not None:
            settled = step.budget.settlements if step.budget is not None else ()
            entries, at = step.taken or (), step.position
            self._ports.observer.committed(
                CommittedStep(
                    self.claim, step.base.state, at.state, entries, settled, at.seq, step.at_ms, took_s
                )
            )

    def _committed(self, step: Step, answer: records.Committed) -> None:
        self._decisions.committed(step)
        self.reached = step.position.seq
        self._fault_reported = self._fault_reported and not step.export
        self._warn(answer)
        self._copies.committed(step)
        self._config.committed(self.claim.pool, step.budget.settlements if step.budget is not None else ())
        self._journal.position = step.position
        self._side_work.folder.recorded()
        self._arrivals.tip_is(answer.sq_tip)

    def _warn(self, answer: records.Committed) -> None:
        """Tells of budgets that are nearly used up, each once."""
        news = [a for a in nearly_used(answer.budget) if (a.kind, a.limit) not in self._warned]
        warned = warnings(self._journal.state, news)
        if warned is not None:
            self._warned.update((account.kind, account.limit) for account in news)
            self._arrivals.inbox.append((Note(tree=warned), None))

    async def _hand_on(self, error: Undecided) -> None:
        """Tells people, and releases the session to the worker that looks next; nothing of it runs here."""
        warning = e.event(short_id(error.submission), WarningEvent(message=str(error)))
        position = self._journal.position
        with suppress(BrokerError):
            await self._ports.broker.commits.emit(
                self.claim, [NewEvent(encode_event(warning), position.seq, position.head[:4].hex())]
            )
        with suppress(BrokerError):
            await self._ports.broker.claims.release(self.claim)

    def _turned_away(self, answer: records.Fenced | None) -> Ended:
        if answer is not None:
            log.warning(
                "session %s was lost to epoch %d: %s", self.claim.session, answer.holder_epoch, answer.reason
            )
            self._fenced = True
        self._lost = True
        return Ended.LOST

    async def _report_stopped(self) -> None:
        """Releases a revoked claim: the next holder waits until nothing of it can run any more.

        It is sent once: if it does not arrive, the lease runs out instead.
        """
        with suppress(BrokerError):
            await self._ports.broker.claims.release(self.claim)

    async def _give_back(self, release: records.Release) -> bool:
        """Releases the claim; False if it was given up meanwhile. A release sent twice finds it released."""
        end = self._journal.position if release == "park" else None
        answer = await self._writing.insist(
            lambda: self._ports.broker.claims.release(self.claim, park_at=end)
        )
        return answer is not None

    async def _start_owed(self) -> None:
        if not self._lost:
            await self._side_work.start(self._decisions.owed(self._journal.state))


# ── copies ────────────────────────────────────────────────────────────────────────────────────────
# Copies of a session beside its log: snapshots, and the rollout's file.
#
# Both follow the log and can be made again from it. The runner decides when one is due, and what becomes
# of the claim when a snapshot shows that it is over.


class Copies:
    """How far the copies of one session have come, and what of its log they still lack."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._snapshot_seq = context.claimed.snapshot_seq
        self._unexported: list[records.StoredEntry] = []
        self._unexported_bytes = 0
        self._weight: Weight | None = None

    def begin(self, loaded: Loaded) -> None:
        self._unexported = list(loaded.unexported)
        self._unexported_bytes = loaded.unexported_bytes
        self._weight = loaded.weight
        if not loaded.snapshot_used:
            self._snapshot_seq = 0

    def committed(self, step: Step) -> None:
        """Notes the entries of a step that is in the log now, and in no copy."""
        epoch, first = self._context.claim.epoch, step.base.seq + 1
        self._unexported += [
            records.StoredEntry(seq, epoch, entry.payload, entry.salt, entry.chain)
            for seq, entry in enumerate(step.entries, first)
        ]
        more = sum([len(entry.payload) for entry in step.entries])
        self._unexported_bytes += more
        if self._weight is not None:
            self._weight = Weight(self._weight.counted, self._weight.since + more)

    def left(self) -> Loaded:
        """The position that the session's next runner may begin with, if it runs in this process."""
        position, lacking = self._context.journal.position, tuple(self._unexported)
        return Loaded(position, lacking, self._unexported_bytes, weight=self._weight)

    @property
    def heavy(self) -> bool:
        """Whether so much is in no file that it is not kept for later."""
        return self._unexported_bytes >= FILE_BYTES

    def snapshot_due(self, seq: int) -> bool:
        return seq - self._snapshot_seq >= self._context.config.log.snapshot_every

    async def snapshot(self) -> bool:
        """Stores a snapshot; False if the claim is over, or Redis went back behind its last commit."""
        context, position = self._context, self._context.journal.position
        claim, broker = context.claim, context.ports.broker
        seq = position.seq
        key = context.config.chain_key
        data = encode_snapshot(position.state, seq, position.head, key.secret if key else b"")
        stored = await context.writing.insist(lambda: broker.commits.snapshot(claim, seq, data))
        if isinstance(stored, records.Stored):
            self._snapshot_seq = seq
        elif stored is not None and (isinstance(stored, records.Fenced) or stored.reason == "ahead"):
            log.warning("session %s was lost: its snapshot of entry %d was refused", claim.session, seq)
            return False
        return True

    async def export(self) -> str | None:
        """Brings the rollout's file to where the log stands; answers why it could not.

        The session goes on without its file: the log has everything, and the next attempt writes the rest.
        """
        position, claim = self._context.journal.position, self._context.claim
        key = self._context.config.chain_key
        file = _file(claim, position, key.secret if key else b"")
        if file is None:
            self._exported(position.seq)
            return None
        try:
            through = await file.bring_up_to(self._context.ports, position, self._unexported)
        except (OSError, BrokenArchive, ArchiveUnavailable) as error:
            log.warning("session %s: its file was not brought up to date: %s", claim.session, error)
            # It may be long until it can be; what it lacks is read from the log then.
            self._exported(position.seq)
            return str(error)
        self._exported(through)
        return None

    def _exported(self, through: int) -> None:
        self._unexported = [entry for entry in self._unexported if entry.seq > through]
        self._unexported_bytes = payload_bytes(self._unexported)


def _file(claim: records.Claim, position: Position, secret: bytes) -> RolloutFile | None:
    """The rollout's file of a session; None if it has none."""
    path = position.state.facts.rollout_path
    if not path or not position.state.native:
        return None
    return RolloutFile(Path(path), claim.session, claim.tree, secret)


class LateFiles:
    """The files of a worker's sessions that have just come to rest: written when they have rested a moment.

    A session that goes on before has its file written by its next rest. Nothing is lost with the worker:
    what a file lacks is read from the log.
    """

    def __init__(self, ports: Ports, cache: Cache, key: ChainKey | None) -> None:
        self._ports = ports
        self._cache = cache
        self._secret = key.secret if key else b""
        self._owed: dict[SessionId, tuple[float, records.Claim, Loaded]] = {}
        self._task: asyncio.Task[None] | None = None
        self._sleeps = False

    def owe(self, claim: records.Claim, left: Loaded) -> None:
        """Has the file written to where the session's runner left it, in a moment."""
        self._owed.pop(claim.session, None)
        if _file(claim, left.position, self._secret) is None:
            return
        self._owed[claim.session] = (self._ports.monotonic() + FILE_S, claim, left)
        if self._task is None or self._task.done():
            self._task = self._ports.spawn(self._write_due(), "worker:rests")

    def goes_on(self, session: SessionId) -> None:
        """Leaves the file to the session's next rest."""
        self._owed.pop(session, None)

    async def write_all(self) -> None:
        """Writes at once what is owed: the worker leaves."""
        if self._sleeps:
            self.stop()
        elif self._task is not None:
            await asyncio.wait((self._task,))
        while self._owed:
            await self._write()

    def stop(self) -> None:
        self._sleeps = False
        if self._task is not None:
            self._task.cancel()

    async def _write_due(self) -> None:
        while self._owed:
            due_s = next(iter(self._owed.values()))[0] - self._ports.monotonic()
            if due_s > 0:
                self._sleeps = True
                await self._ports.sleep(due_s)
                self._sleeps = False
            else:
                await self._write()

    async def _write(self) -> None:
        """Writes the file that is owed longest, unless its session was gone on with, or removed."""
        session = next(iter(self._owed))
        _, claim, left = self._owed.pop(session)
        position = left.position
        file = _file(claim, position, self._secret)
        try:
            head = await self._ports.broker.logs.head(session)
            if file is None or head is None or (head.seq, head.head) != (position.seq, position.head):
                return
            through = await file.bring_up_to(self._ports, position, left.unexported)
        except (OSError, BrokerError, BrokenArchive, ArchiveUnavailable) as error:
            log.warning("session %s: its file was not brought up to date: %s", session, error)
            # It may be long until it can be; what it lacks is read from the log then.
            through = position.seq
        self._cache.written(session, position, through)
