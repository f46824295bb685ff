"""The runner of one claimed session, from its claim to its release.

Every step is the same: gather what happened (SQ entries, results of effects), decide each, commit all of it
at once, and only then start what the new state owes. Nothing runs that is not first in the log; a step that
is fenced changed nothing and ends the runner.

A runner ends when it parks (nothing can go on without news), yields (others wait and its quantum is over),
drains (the worker is leaving), or loses its claim.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum

from orchestrator.broker.errors import BrokerError, CommitTooLarge
from orchestrator.broker.records import Claimed, Committed, Fenced, Refused, Release
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.decide import IllegalCommand, decide
from orchestrator.core.draft import Decision, Note, noted
from orchestrator.core.frozen import replace
from orchestrator.core.outstanding import (
    AssessCall,
    CloseCalls,
    EndChildren,
    LookUp,
    OweRequest,
    ReadInstructions,
    Work,
    outstanding,
)
from orchestrator.core.settings import Rules
from orchestrator.core.state import State
from orchestrator.core.stored import encode_event
from orchestrator.protocol.codec import short_id
from orchestrator.protocol.events import WarningEvent
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.summary import session_meta
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.bisect import Arrived, Bisect
from orchestrator.runtime.budget import nearly_used, warnings
from orchestrator.runtime.copies import Copies
from orchestrator.runtime.defects import (
    Undecided,
    given_up,
    instead_of,
    passed_over,
    submission_of,
    tries,
)
from orchestrator.runtime.deltas import Delta
from orchestrator.runtime.intake import Unreadable, judged_running
from orchestrator.runtime.journal import Step, Writer
from orchestrator.runtime.loader import Cache, Loaded, load
from orchestrator.runtime.log import log
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.runner_context import RunnerConfig, RunnerContext
from orchestrator.runtime.side_work import SideWork, call_of
from orchestrator.runtime.trees import looks_up
from orchestrator.telemetry.observer import CommittedStep

__all__ = ["Ended", "Runner", "RunnerConfig"]

MAX_STEP_ENTRIES = 128
MAX_STEP_BYTES = 256 << 10
"""A step is cut here; one more decision still fits the commit's bounds (256 entries, 1 MB)."""
_BEGUN_LATER = (OweRequest, AssessCall, ReadInstructions, LookUp)
"""Work that is owed and runs nowhere: the session's next holder decides it as well."""
ARCHIVE_S = 2.0
"""Seconds until an archive that could not be read is tried again."""


class Ended(StrEnum):
    """Why a runner let its session go."""

    PARKED = "parked"
    YIELDED = "yielded"
    LOST = "lost"
    HANDED_ON = "handed on"
    """A submission could not be decided here: the next worker is to try."""


class _Broken(Exception):
    """Deciding a command raised what no rule raises knowingly; the step is to be thrown away."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Runner:
    """The holder of one session. One runner serves one claim."""

    def __init__(self, ports: Ports, config: RunnerConfig, claimed: Claimed, cache: Cache) -> None:
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
        self._writer = Writer(claimed.claim.epoch, ports.random_bytes, config.chain_key, config.accounting)
        self._bisect = Bisect()
        self._warned: set[tuple[str, int | None]] = set()
        self._owing: tuple[State, tuple[Work, ...]] | None = None
        """The state that was last asked what it owes, and the answer."""
        self._rules_for: tuple[tuple[int, int], Rules] | None = None
        """The retries of the provider that was last asked for, and the rules with them."""
        self._summed_up: int | None = None
        """The entry up to which this runner wrote the session's summary."""
        self._fault_reported = False
        """Whether the log says already, or the next step does, that the rollout's file is not up to date."""
        self._lost = False
        self._fenced = False
        self._cut = False
        self._instead: c.Command | Note | None = None
        """The last substitute for a command that failed."""

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
        judgements = await judged_running(self._ports, self._journal.state, self.claim, self._workspace)
        if judgements is not None:
            self._arrivals.push(c.TookOver(judgements))
        if self._ports.observer is not None:
            took_over = judgements is not None
            self._ports.observer.began(self.claim, self._journal.state, took_over=took_over)
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
            step = Step(self._journal.position, self._writer, self._ports.broker.now_ms())
            if self._ports.observer is not None:
                step.taken = []
            self._bisect.begin()
            done = None
            try:
                self._decide_arrivals(step)
                await self._advance(step)
                done = await self._finish(step, self._release(step))
            except _Broken as broken:
                self._broke(broken.error)
            except CommitTooLarge as error:
                self._broke(error)
            if done is not None or not (self._arrivals or self._cut):
                return done
        log.warning("session %s: its claim is over", self.claim.session)
        return Ended.LOST

    # ── deciding ──────────────────────────────────────────────────────────────────────────────

    def _decide_arrivals(self, step: Step) -> None:
        while self._arrivals.inbox and not self._full(step):
            command, sq_id = self._arrivals.inbox.popleft()
            self._bisect.arrived.append((command, sq_id))
            self._decide(step, command)
            if sq_id is not None:
                self._arrivals.cursor = sq_id

    def _full(self, step: Step) -> bool:
        return step.weight >= MAX_STEP_ENTRIES or step.size >= MAX_STEP_BYTES or self._bisect.full

    def _decide(self, step: Step, command: Arrived) -> None:
        if isinstance(command, Delta):
            self._show(step, command)
            return
        try:
            step.take(self._decision(step, command))
        except Exception as error:
            # A part of it may be in the step: nothing of that may be committed.
            raise _Broken(error) from error
        if not isinstance(command, (Note, Unreadable)):
            self._side_work.settle(command)

    def _decision(self, step: Step, command: c.Command | Note | Unreadable) -> Decision:
        if isinstance(command, Note):
            return self._noted(step, command)
        if isinstance(command, Unreadable):
            raise command.error
        try:
            return decide(step.position.state, command, self._moment(step))
        except IllegalCommand as illegal:
            if isinstance(command, c.Submitted):
                return self._noted(step, given_up(command.id, str(illegal)))
            # What an effect still had to say of work that was stopped meanwhile.
            log.info("session %s: %s", self.claim.session, illegal)
            return Decision(step.position.state)

    def _noted(self, step: Step, note: Note) -> Decision:
        at = step.position
        return noted(at.state, note, c.Moment(step.at_ms, self.claim.epoch, at.seq))

    def _show(self, step: Step, delta: Delta) -> None:
        task = step.position.state.task
        if not delta.lasting and (task is None or task.id != delta.task_id):
            return
        if step.entries:
            step.show(delta.event(step.position.seq, step.position.head))
        else:
            self._writing.delta(delta, step.base)

    def _moment(self, step: Step) -> c.Moment:
        at = step.position
        return c.Moment(step.at_ms, self.claim.epoch, at.seq, self._rules(at.state), self._ports.jitter())

    def _rules(self, state: State) -> Rules:
        retries = self._ports.models.retries(state.in_force.model_provider)
        # Asked for at every step, and always the same as long as the provider is.
        if self._rules_for is None or self._rules_for[0] != retries:
            http, stream = retries
            rules = replace(self._config.rules, request_max_retries=http, stream_max_retries=stream)
            self._rules_for = retries, rules
        return self._rules_for[1]

    def _owed(self, state: State) -> tuple[Work, ...]:
        # A step asks before it decides, before it commits and behind the commit, mostly of one state.
        if self._owing is None or self._owing[0] is not state:
            self._owing = state, outstanding(state, self._rules(state))
        return self._owing[1]

    async def _advance(self, step: Step) -> None:
        """Decides what needs no news: calls whose turn it is, a request that is owed and due.

        A leaving runner ends what is to end in pieces, and begins nothing.
        """
        progressed, leaving = True, self._side_work.leaving()
        self._cut = False
        while progressed:
            self._cut = self._full(step)
            if self._cut:
                return
            progressed = False
            state = step.position.state
            for work in self._owed(state):
                match work:
                    case CloseCalls():
                        self._make(step, c.CloseCalls())
                        progressed = True
                    case EndChildren():
                        self._make(step, c.EndChildren())
                        progressed = True
                    case _ if leaving:
                        continue
                    case AssessCall() | OweRequest() | ReadInstructions() if (
                        fault := await self._workspace.fault(state)
                    ):
                        self._decide(step, c.TaskRefused(fault))
                        # A task with very many calls ends in several steps.
                        self._cut = CloseCalls() in self._owed(step.position.state)
                        return
                    case AssessCall(call_id) if step.concerns_tree and looks_up(call_of(state, call_id)):
                        # It looks at the tree, which does not show yet what this very step does to it.
                        self._cut = True
                        return
                    case AssessCall(call_id):
                        call = call_of(state, call_id)
                        # Large arguments of this very step are not stored yet.
                        self._ports.texts.remember(step.blobs)
                        assessment = await self._ports.tools.assess(call, self._side_work.site(state))
                        self._make(step, c.CallAssessed(call_id, assessment))
                        progressed = True
                    case ReadInstructions(folder):
                        text = await self._instructions(folder, state)
                        self._make(step, c.InstructionsRead(folder, text))
                        progressed = True
                    case OweRequest(not_before_ms) if not_before_ms <= step.at_ms:
                        self._make(step, c.BeginRequest())
                        progressed = True
                    case _:
                        continue
                break

    async def _instructions(self, folder: str, state: State) -> str | None:
        try:
            return await self._ports.library.instructions(folder, state.told_folders)
        except (OSError, ValueError) as error:
            # A session goes on without them, as one that began there would have.
            log.warning(
                "session %s: instructions of %s: %s", self.claim.session, folder, error or "no answer"
            )
            return None

    def _make(self, step: Step, command: c.Command) -> None:
        """Decides a command that the state owes and nobody sent."""
        self._bisect.made.append(command)
        self._decide(step, command)

    def _release(self, step: Step) -> Release:
        state = step.position.state
        if self._side_work.unsettled or self._arrivals:
            return "keep"
        owed = self._owed(state)
        if not owed:
            return "park"
        runs_nothing = all(isinstance(work, _BEGUN_LATER) for work in owed)
        return "yield" if self._side_work.leaving() and runs_nothing else "keep"

    # ── committing ────────────────────────────────────────────────────────────────────────────

    async def _finish(self, step: Step, release: Release) -> Ended | None:
        if step.export and (fault := await self._copies.export()) and not self._fault_reported:
            self._decide_again(c.FileNotWritten(fault, self._bisect.asks_for_file(step.base.state)))
            return None
        snapshot_due = self._copies.snapshot_due(step.position.seq)
        released = False
        # Work that ends without a step may be the last that kept the session: its summary is still owed.
        owes_summary = release == "park" and self._summed_up != step.position.seq
        if not step.empty or self._arrivals.moved or (owes_summary and not self._arrivals.unread):
            keep: Release = "keep" if snapshot_due else release
            meta = self._meta(step, release)
            began = self._ports.monotonic()
            answer = await self._writing.commit(step, self._arrivals.cursor, keep, meta)
            if isinstance(answer, Refused):
                if answer.reason == "cursor":
                    # Redis went back to before an entry that this step has read: there is none to consume.
                    return self._turned_away(None)
                await self._refused(answer)
                return None
            if not isinstance(answer, Committed):
                return self._turned_away(answer)
            self._observe(step, self._ports.monotonic() - began)
            self._committed(step, answer)
            self._summed_up = step.position.seq if meta is not None else self._summed_up
            released = answer.released
        if snapshot_due and not await self._copies.snapshot():
            return self._turned_away(None)
        if not released and release != "keep" and not self._arrivals.unread:
            released = await self._give_back(release)
        if released:
            # Whom the commit woke is asked for first, and answered while the file is written.
            await self._ports.sleep(0)
            await self._copies.export()
            self._cache.keep(self.claim.session, self._copies.left())
            return Ended.PARKED if release == "park" else Ended.YIELDED
        await self._start_owed()
        return None

    def _meta(self, step: Step, release: Release) -> bytes | None:
        renamed = step.position.state.name != step.base.state.name
        return session_meta(step.position, step.at_ms) if release != "keep" or renamed else None

    def _observe(self, step: Step, took_s: float) -> None:
        if self._ports.observer is not None:
            settled = step.budget.settlements if step.budget is not None else ()
            entries, at = step.taken or (), step.position
            self._ports.observer.committed(
                CommittedStep(
                    self.claim, step.base.state, at.state, entries, settled, at.seq, step.at_ms, took_s
                )
            )

    def _committed(self, step: Step, answer: Committed) -> None:
        self._bisect.committed()
        self.reached = step.position.seq
        self._fault_reported = self._fault_reported and not step.export
        self._warn(answer)
        self._copies.committed(step)
        if step.budget is not None and step.budget.settlements:
            self._config.settled(self.claim.pool, step.budget.settlements)
        self._journal.position = step.position
        self._arrivals.tip_is(answer.sq_tip)

    def _warn(self, answer: Committed) -> None:
        """Tells of budgets that are nearly used up, each once."""
        news = [a for a in nearly_used(answer.budget) if (a.kind, a.limit) not in self._warned]
        warned = warnings(self._journal.state, news)
        if warned is not None:
            self._warned.update((account.kind, account.limit) for account in news)
            self._arrivals.inbox.append((Note(tree=warned), None))

    def _decide_again(self, fault: c.FileNotWritten) -> None:
        """Puts the parts of an unsent step back, to be decided again behind `fault`."""
        self._fault_reported = True
        self._undecide()
        self._arrivals.inbox.extendleft(reversed([(fault, None), *self._bisect.arrived]))

    def _broke(self, error: Exception) -> None:
        """Has a step that cannot be committed decided part by part; a part that fails alone is replaced.

        Raises `Undecided` where another worker is to try the part first, `error` where nothing can take its
        place.
        """
        self._undecide()
        arrived, made = self._bisect.arrived, self._bisect.made
        if len(arrived) + len(made) != 1:
            if not (arrived or made):
                raise error
            self._arrivals.inbox.extendleft(reversed(arrived))
            self._bisect.singly = len(arrived) + len(made)
            return
        command, sq_id = arrived[0] if arrived else (made[0], None)
        if isinstance(command, (Delta, Note)) or command is self._instead:
            raise error
        self._instead = instead_of(command, error, self._journal.state)
        if self._instead is None:
            raise error
        if sq_id is not None and not isinstance(error, CommitTooLarge):
            self._try_again_elsewhere(command, error)
        log.error("session %s: %s was given up", self.claim.session, type(command).__name__, exc_info=error)
        self._arrivals.inbox.appendleft((self._instead, sq_id))

    def _try_again_elsewhere(self, command: c.Command | Unreadable, error: Exception) -> None:
        """Raises `Undecided` unless enough claims have come no further than the command."""
        tried, most = max(1, self._claimed.claims_without_progress), tries(self._max_tries)
        if tried < most:
            raise Undecided(submission_of(command), error, tried, most) from error

    async def _hand_on(self, error: Undecided) -> None:
        """Tells people, and releases the session to the worker that looks next; nothing of it runs here."""
        warning = e.event(short_id(error.submission), WarningEvent(message=str(error)))
        position = self._journal.position
        with suppress(BrokerError):
            await self._ports.broker.emit(
                self.claim, [NewEvent(encode_event(warning), position.seq, position.head[:4].hex())]
            )
        with suppress(BrokerError):
            await self._ports.broker.release(self.claim)

    def _undecide(self) -> None:
        """Takes back the step's decisions, of which nothing was written."""
        self._cut = True
        self._arrivals.rewind()
        for command, _ in self._bisect.arrived:
            if not isinstance(command, Unreadable):
                self._side_work.reopen(command)

    async def _refused(self, answer: Refused) -> None:
        """Lets the parts of the refused step be decided again."""
        log.info("session %s: refused: %s %s", self.claim.session, answer.reason, answer.detail)
        self._undecide()
        if answer.reason == "agent_taken":
            # Redis went back behind the reservation of its number: it is assessed again, with another one.
            self._side_work.forget_numbers()
            self._arrivals.inbox.extendleft(reversed(self._bisect.arrived))
        else:
            self._bisect.refused(answer, self._arrivals.inbox)

    def _turned_away(self, answer: Fenced | None) -> Ended:
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
            await self._ports.broker.release(self.claim)

    async def _give_back(self, release: Release) -> bool:
        """Releases the claim; False if it was given up meanwhile. A release sent twice finds it released."""
        end = self._journal.position if release == "park" else None
        answer = await self._writing.insist(lambda: self._ports.broker.release(self.claim, park_at=end))
        return answer is not None

    async def _start_owed(self) -> None:
        if not self._lost:
            await self._side_work.start(self._owed(self._journal.state))
