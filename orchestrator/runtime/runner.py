"""One claimed session, from its claim to its release.

Every step is the same: gather what happened (SQ entries, results of effects), decide each,
commit all of it at once, and only then start what the new state owes. Nothing runs that is
not first in the log; a step that is fenced changed nothing and ends the runner.

What may end a runner: it parks (nothing can go on without news), yields (others wait and
its quantum is over), drains (the worker is leaving), or loses its claim.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.broker.records import (
    START,
    Claimed,
    Committed,
    Fenced,
    Refused,
    Release,
    SqEntry,
    Stored,
    StoredEntry,
)
from orchestrator.core import commands as c
from orchestrator.core.chain import ChainKey
from orchestrator.core.decide import IllegalCommand, decide
from orchestrator.core.draft import Decision
from orchestrator.core.entries import EVENT_MSG, Entry
from orchestrator.core.ids import SessionId
from orchestrator.core.outstanding import (
    AssessCall,
    FollowRequest,
    OweRequest,
    RunCall,
    StopAll,
    outstanding,
)
from orchestrator.core.replacing import replace
from orchestrator.core.rules_standing import REAP_TIMER
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.core.state import Call, State
from orchestrator.protocol.ops import CancelAgent, ExecApproval, MessageAgent, PatchApproval
from orchestrator.runtime.budget import Accounting, nearly_used, warnings
from orchestrator.runtime.commits import Writing
from orchestrator.runtime.deltas import Delta
from orchestrator.runtime.effects import EffectKey, Effects
from orchestrator.runtime.export import RolloutFile
from orchestrator.runtime.intake import (
    command_of,
    drained_call,
    failed_call,
    judged_running,
    refused_call,
    with_images,
)
from orchestrator.runtime.journal import Position, Step, Writer
from orchestrator.runtime.loading import Cache, Loaded, load
from orchestrator.runtime.log import log
from orchestrator.runtime.ports import CallSite, Ports
from orchestrator.runtime.requests import follow_request
from orchestrator.runtime.summary import session_meta
from orchestrator.runtime.trees import TreeLookups, looks_up
from orchestrator.runtime.trial import Arrival, Trial
from orchestrator.runtime.workspace import Workspace

MAX_STEP_ENTRIES = 128
MAX_STEP_BYTES = 256 << 10
"""A step is cut here; one more decision still fits the commit's bounds (256 entries, 1 MB)."""
SQ_PAGE = 100
QUEUE_FULL_S = 0.2
"""Until a letter to a full queue is tried again."""
SHUTTING_DOWN = "the worker is shutting down"


class Ended(StrEnum):
    """Why a runner let its session go."""

    PARKED = "parked"
    YIELDED = "yielded"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What one worker asks of each of its runners."""

    rules: Rules = field(default_factory=Rules)
    chain_key: ChainKey | None = None
    accounting: Accounting = field(default_factory=Accounting)
    """What model requests cost."""
    snapshot_every: int = 256
    keep_deltas: bool = False
    """Whether deltas join the rollout as well."""
    quantum_s: float = 30.0
    drain_grace_s: float = 10.0
    others_wait: Callable[[], bool] = lambda: False
    """Whether sessions of the pool are due while this worker has no room."""
    confirm_effects: Callable[[], Awaitable[bool]] | None = None
    """Under `effects = wait`: whether replicas have the last commit."""


class Runner:
    """The holder of one session. One runner serves one claim."""

    def __init__(self, ports: Ports, config: RunnerConfig, claimed: Claimed, cache: Cache) -> None:
        self.claim = claimed.claim
        self._ports = ports
        self._config = config
        self._claimed = claimed
        self._cache = cache
        self._writer = Writer(claimed.claim.epoch, ports.random_bytes, config.chain_key, config.accounting)
        self._writing = Writing(ports, claimed.claim)
        self._effects = Effects(ports, claimed.claim.session, self._effect_ended)
        self._workspace = Workspace(ports.workspace)
        self._inbox: deque[Arrival] = deque()
        self._trial = Trial()
        self._warned: set[tuple[str, int | None]] = set()
        self._agents: TreeLookups | None = None
        self._wake = asyncio.Event()
        self._cursor = claimed.cursor
        self._read_to = claimed.cursor
        self._unread = claimed.sq_tip != claimed.cursor
        self._snapshot_seq = claimed.snapshot_seq
        self._began = ports.monotonic()
        self._draining = False
        self._lost = False
        self._cut = False
        self._stepping = True
        self._overdue = False
        self._delay: asyncio.Task[None] | None = None
        self._grace: asyncio.Task[None] | None = None
        self._unexported: list[StoredEntry] = []
        self._position: Position

    # ── what the worker tells its runner ──────────────────────────────────────────────────────

    def poke(self, tip: str | None = None) -> None:
        """Something may be in the SQ; `tip`, if known, is its last entry."""
        if tip is None or _number(tip) > _number(self._read_to):
            self._unread = True
            self._wake.set()

    def lose(self) -> None:
        """The claim is over, or can no longer be trusted: whatever runs is to stop now."""
        self._lost = True
        self._writing.give_up()
        # The loop may be waiting for an answer from Redis; what runs must not wait with it.
        self._effects.cancel()
        self._wake.set()

    def drain(self) -> None:
        """The worker leaves: give the session back as soon as nothing of it runs."""
        if not self._draining:
            self._draining = True
            self._grace = self._ports.spawn(self._cut_short(), f"{self.claim.session}:grace")
            self._wake.set()

    # ── the loop ──────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Ended:
        """Runs the session until it can be given back or is lost."""
        loaded = await self._writing.insist(
            lambda: load(self._ports, self._claimed, self._cache, self._writer.secret)
        )
        if loaded is None:
            return Ended.LOST
        self._position, self._unexported = loaded.position, list(loaded.unexported)
        try:
            await self._begin()
            while True:
                self._stepping = True
                ended = await self._step()
                if ended is not None:
                    return ended
                self._stepping = False
                await self._wake.wait()
                self._wake.clear()
        finally:
            if self._lost or self._effects.unsettled:
                await self._effects.stop()
            # Else a response's connection may be reading its last bytes, to be used again.
            self._writing.close()
            for timer in (self._delay, self._grace):
                if timer is not None:
                    timer.cancel()

    @property
    def _state(self) -> State:
        return self._position.state

    async def _begin(self) -> None:
        judgements = await judged_running(self._ports, self._state, self.claim, self._workspace)
        if judgements is not None:
            self._push(c.TookOver(judgements))
        await self._accept(self._claimed.first)

    async def _step(self) -> Ended | None:
        """One turn of the loop; None means that the runner goes on."""
        while not self._lost:
            await self._read_sq()
            step = Step(self._position, self._writer, self._ports.broker.now_ms())
            self._trial.begin()
            self._decide_arrivals(step)
            await self._advance(step)
            release = self._release(step)
            done = await self._finish(step, release)
            if done is not None or not (self._inbox or self._unread or self._cut):
                return done
        log.warning("session %s: its claim is over", self.claim.session)
        return Ended.LOST

    async def _read_sq(self) -> None:
        while self._unread and len(self._inbox) < SQ_PAGE:
            self._unread = False
            page = await self._writing.insist(
                lambda: self._ports.broker.read_sq(self.claim.session, self._read_to, SQ_PAGE)
            )
            if page is None:
                return
            # A poke during the read may be about an entry that came after it.
            self._unread = self._unread or len(page) == SQ_PAGE
            await self._accept(page)

    async def _accept(self, entries: tuple[SqEntry, ...]) -> None:
        for entry in entries:
            command = await self._with_lookups(command_of(entry), entry)
            self._inbox.append((await with_images(command), entry.id))
            self._read_to = entry.id
        if _number(self._read_to) >= _number(self._claimed.sq_tip) and entries is self._claimed.first:
            self._unread = False

    async def _with_lookups(self, command: c.Command | Decision, entry: SqEntry) -> c.Command | Decision:
        """What a person says may be meant for an agent below: who and what is there is looked up for it."""
        if isinstance(command, c.TimerFired) and command.id == REAP_TIMER:
            await self._reap()
        facts = self._state.facts
        if not isinstance(command, c.Submitted) or not facts.is_root:
            return command
        lookups = TreeLookups.of(self._ports, facts)
        match command.op:
            case ExecApproval() | PatchApproval() if self._state.tree.children:
                below = await self._writing.insist(lambda: lookups.pending_below(entry.at_ms))
                return replace(command, below=below or ())
            case MessageAgent(agent_id=agent_id) | CancelAgent(agent_id=agent_id):
                agents = await self._writing.insist(lambda: lookups.target_and_below(agent_id))
                return replace(command, agents=agents or ())
            case _:
                return command

    async def _reap(self) -> None:
        """Takes cancelled agents from workers that do nothing with them: the next one finds the cancel."""
        children = self._state.tree.children.values()
        stuck = [SessionId(child.session) for child in children if child.ending]
        if stuck:
            await self._writing.insist(lambda: self._ports.broker.revoke_tree(self.claim.tree, stuck))

    def _push(self, command: c.Command) -> None:
        """An effect's result."""
        self._inbox.append((command, None))
        self._wake.set()

    # ── deciding ──────────────────────────────────────────────────────────────────────────────

    def _decide_arrivals(self, step: Step) -> None:
        while self._inbox and not self._full(step):
            command, sq_id = self._inbox.popleft()
            self._trial.arrived.append((command, sq_id))
            self._decide(step, command)
            if sq_id is not None:
                self._cursor = sq_id

    def _full(self, step: Step) -> bool:
        return step.weight >= MAX_STEP_ENTRIES or step.size >= MAX_STEP_BYTES or self._trial.full

    def _decide(self, step: Step, command: c.Command | Decision | Delta) -> None:
        if isinstance(command, Delta):
            self._show(step, command)
            return
        if isinstance(command, Decision):
            step.take(command)
            return
        try:
            step.take(decide(step.position.state, command, self._moment(step)))
        except IllegalCommand as illegal:
            # What an effect still had to say of work that was stopped meanwhile.
            log.info("session %s: %s", self.claim.session, illegal)
        self._settle(command)

    def _settle(self, command: c.Command) -> None:
        """An effect's last word was decided, or found to be of no use any more."""
        match command:
            case c.CallFinished(call_id):
                self._effects.settle(("call", call_id))
            case c.ResponseCompleted(n) | c.ResponseBroken(n):
                self._effects.settle(("request", str(n)))
            case c.Stopped():
                self._effects.settle_all()
            case _:
                pass

    def _show(self, step: Step, delta: Delta) -> None:
        task = step.position.state.task
        if task is None or task.id != delta.task_id:
            return
        if step.entries:
            step.show(delta.event(step.position.seq, step.position.head))
        else:
            self._writing.delta(delta, step.base)

    def _moment(self, step: Step) -> c.Moment:
        return c.Moment(step.at_ms, self.claim.epoch, self._rules(step.position.state), self._ports.jitter())

    def _rules(self, state: State) -> Rules:
        settings = state.task.settings if state.task else state.settings
        http, stream = self._ports.models.retries(settings.model_provider)
        return replace(self._config.rules, request_max_retries=http, stream_max_retries=stream)

    async def _advance(self, step: Step) -> None:
        """Decides what needs no news: calls whose turn it is, a request that is owed and due."""
        progressed = not self._leaving()
        self._cut = False
        while progressed:
            self._cut = self._full(step)
            if self._cut:
                return
            progressed = False
            state = step.position.state
            for work in outstanding(state, self._rules(state)):
                match work:
                    case AssessCall() | OweRequest() if fault := await self._fault(state):
                        self._decide(step, c.TaskRefused(fault))
                        return
                    case AssessCall(call_id) if step.tree and looks_up(_call(state, call_id)):
                        # It looks at the tree, which does not show yet what this very step does to it.
                        self._cut = True
                        return
                    case AssessCall(call_id):
                        call = _call(state, call_id)
                        # Large arguments of this very step are not stored yet.
                        self._ports.texts.remember(step.blobs)
                        assessment = await self._ports.tools.assess(call, self._site(state))
                        self._make(step, c.CallAssessed(call_id, assessment))
                        progressed = True
                    case OweRequest(not_before_ms) if not_before_ms <= step.at_ms:
                        self._make(step, c.BeginRequest())
                        progressed = True
                    case _:
                        continue
                break

    async def _fault(self, state: State) -> str:
        """Why the task cannot go on here; empty if it can."""
        model = self._config.accounting.lacks_price(state)
        if model:
            return f"the tree has a cost budget and model {model} has no price: set model_prices.{model!r}"
        return await self._workspace.fault(state) or ""

    def _make(self, step: Step, command: c.Command) -> None:
        """A command that nobody sent: the state owes it."""
        self._trial.made.append(command)
        self._decide(step, command)

    def _leaving(self) -> bool:
        over = self._ports.monotonic() - self._began > self._config.quantum_s
        return self._draining or (over and not self._effects and self._config.others_wait())

    def _release(self, step: Step) -> Release:
        state = step.position.state
        if self._effects.unsettled or self._inbox or self._unread:
            return "keep"
        owed = outstanding(state, self._rules(state))
        if not owed:
            return "park"
        starts_nothing = all(isinstance(work, (OweRequest, AssessCall)) for work in owed)
        return "yield" if self._leaving() and starts_nothing else "keep"

    # ── committing ────────────────────────────────────────────────────────────────────────────

    async def _finish(self, step: Step, release: Release) -> Ended | None:
        if step.export:
            await self._export()
        snapshot_due = step.position.seq - self._snapshot_seq >= self._config.snapshot_every
        moved = self._cursor != self._writing.cursor(self._claimed.cursor)
        released = False
        if not step.empty or moved:
            keep: Release = "keep" if snapshot_due else release
            answer = await self._writing.commit(step, self._cursor, keep, self._meta(step, release))
            if isinstance(answer, Refused):
                await self._refused(answer)
                return None
            if not isinstance(answer, Committed):
                return self._turned_away(answer)
            self._committed(step, answer)
            released = answer.released
        if snapshot_due and not await self._snapshot():
            return self._turned_away(None)
        if not released and release != "keep" and not self._unread:
            released = await self._give_back(release)
        if released:
            await self._export()
            self._cache.keep(self.claim.session, Loaded(self._position, tuple(self._unexported)))
            return Ended.PARKED if release == "park" else Ended.YIELDED
        await self._start_owed()
        return None

    def _meta(self, step: Step, release: Release) -> bytes | None:
        return session_meta(step.position, step.at_ms) if release != "keep" else None

    def _committed(self, step: Step, answer: Committed) -> None:
        self._trial.committed()
        self._warn(answer)
        first = self._position.seq + 1
        self._unexported += [
            StoredEntry(seq, self.claim.epoch, entry.payload, entry.salt, entry.chain)
            for seq, entry in enumerate(step.entries, first)
        ]
        self._position = step.position
        if _number(answer.sq_tip) > _number(self._read_to):
            self._unread = True

    def _warn(self, answer: Committed) -> None:
        """Tells of budgets that are nearly used up, each once."""
        news = [a for a in nearly_used(answer.budget) if (a.kind, a.limit) not in self._warned]
        told = warnings(self._state, news)
        if told is not None:
            self._warned.update((account.kind, account.limit) for account in news)
            self._inbox.append((Decision(tree=told), None))

    async def _refused(self, answer: Refused) -> None:
        """Nothing of the step was written: its parts are decided again."""
        log.info("session %s: refused: %s %s", self.claim.session, answer.reason, answer.detail)
        self._cursor = self._writing.cursor(self._claimed.cursor)
        for command, _ in self._trial.arrived:
            self._unsettle(command)
        if answer.reason == "queue_full" and not self._trial.made:
            # A letter that has to arrive: its reader is busy, and makes room.
            self._inbox.extendleft(reversed(self._trial.arrived))
            await self._ports.sleep(QUEUE_FULL_S)
        else:
            self._trial.refused(answer, self._inbox)
        self._cut = True

    def _unsettle(self, command: c.Command | Decision | Delta) -> None:
        match command:
            case c.CallFinished(call_id):
                self._effects.reopen(("call", call_id))
            case c.ResponseCompleted(n) | c.ResponseBroken(n):
                self._effects.reopen(("request", str(n)))
            case _:
                pass

    def _turned_away(self, answer: Fenced | None) -> Ended:
        if answer is not None:
            log.warning(
                "session %s was lost to epoch %d: %s", self.claim.session, answer.holder_epoch, answer.reason
            )
        self._lost = True
        return Ended.LOST

    async def _give_back(self, release: Release) -> bool:
        """Whether the claim is gone now; a release that was sent twice finds it gone already."""
        answer = await self._writing.insist(
            lambda: self._ports.broker.release(self.claim, park=release == "park")
        )
        return answer is not None

    async def _snapshot(self) -> bool:
        """False if the claim is over, or Redis went back behind the commit that it had just taken."""
        data = encode_snapshot(self._state, self._position.seq, self._position.head)
        seq = self._position.seq
        stored = await self._writing.insist(lambda: self._ports.broker.snapshot(self.claim, seq, data))
        if isinstance(stored, Stored):
            self._snapshot_seq = self._position.seq
        elif stored is not None and (isinstance(stored, Fenced) or stored.reason == "ahead"):
            log.warning("session %s was lost: its snapshot of entry %d was refused", self.claim.session, seq)
            return False
        return True

    async def _export(self) -> None:
        path = self._state.facts.rollout_path
        if not path or not self._state.native:
            self._unexported.clear()
            return
        file = RolloutFile(Path(path), self.claim.session, self.claim.tree)
        through = await file.bring_up_to(self._ports, self._position.seq, self._unexported)
        self._unexported = [entry for entry in self._unexported if entry.seq > through]

    # ── starting what is owed ─────────────────────────────────────────────────────────────────

    async def _start_owed(self) -> None:
        if self._lost:
            return
        state = self._state
        for work in outstanding(state, self._rules(state)):
            match work:
                case StopAll():
                    await self._stop_all()
                case RunCall(call_id) if self._overdue and ("call", call_id) not in self._effects:
                    self._push(refused_call(_call(state, call_id), "not run: the worker was shut down"))
                case RunCall(call_id) if ("call", call_id) not in self._effects:
                    self._effects.start(("call", call_id), self._run_call(_call(state, call_id), state))
                case FollowRequest(n) if self._overdue and ("request", str(n)) not in self._effects:
                    self._push(c.ResponseBroken(n, "stream", SHUTTING_DOWN, delay_ms=0))
                case FollowRequest(n) if ("request", str(n)) not in self._effects:
                    self._effects.start(
                        ("request", str(n)), follow_request(self._ports, state, self._push, self._delta)
                    )
                case OweRequest(not_before_ms) if not self._leaving():
                    self._wait_until(not_before_ms)
                case _:
                    pass

    async def _stop_all(self) -> None:
        elapsed = self._effects.elapsed("call")
        await self._effects.stop()
        self._push(c.Stopped(elapsed))

    def _wait_until(self, not_before_ms: int) -> None:
        async def delay() -> None:
            await self._ports.sleep(max(0, not_before_ms - self._ports.broker.now_ms()) / 1000)
            self._wake.set()

        if self._delay is None or self._delay.done():
            self._delay = self._ports.spawn(delay(), f"{self.claim.session}:delay")

    async def _run_call(self, call: Call, state: State) -> None:
        if fault := await self._workspace.fault(state):
            # An approval may have come to a machine that has not looked at the folder yet.
            self._push(refused_call(call, f"not run: {fault}"))
            return
        confirm = self._config.confirm_effects
        if confirm is not None and not await confirm():
            # A failover could forget that it was begun; then it would run twice.
            self._push(refused_call(call, "not run: replicas did not confirm the decision to run it in time"))
            return
        self._push(await self._ports.tools.run(call, self._site(state)))

    def _site(self, state: State) -> CallSite:
        if self._agents is None:
            self._agents = TreeLookups.of(self._ports, state.facts)
        return CallSite(
            self.claim.session,
            self.claim.tree,
            self.claim.claim_id,
            state,
            self._delta,
            self._agents,
            self._position.seq,
            self._position.head.hex(),
        )

    def _delta(self, message: dict[str, Any]) -> None:
        task = self._state.task
        if task is None:
            return
        if self._config.keep_deltas:
            self._inbox.append((Decision((Entry(EVENT_MSG, message, task.id),)), None))
            self._wake.set()
        elif self._inbox or self._stepping:
            # What happened before it (an item was done) is not in the log yet, and its event comes first.
            self._inbox.append((Delta(task.id, message), None))
            self._wake.set()
        else:
            self._writing.delta(Delta(task.id, message), self._position)

    def _effect_ended(self, key: EffectKey, error: BaseException | None) -> None:
        # Its result may be in the log already: then it was all that kept the session from being given back.
        self._wake.set()
        if error is None:
            return
        log.error("session %s: %s %s failed", self.claim.session, *key, exc_info=error)
        text = f"internal error: {type(error).__name__}: {error}"
        if key[0] == "request":
            self._push(c.ResponseBroken(int(key[1]), "fatal", text))
        elif key[0] == "call":
            self._push(failed_call(_call(self._state, key[1]), text))

    async def _cut_short(self) -> None:
        """After the grace what runs is stopped and recorded as such, and nothing is started any more."""
        await self._ports.sleep(self._config.drain_grace_s)
        self._overdue = True
        if not self._effects.unsettled:
            return
        elapsed = self._effects.elapsed("call")
        await self._effects.stop()
        task = self._state.task
        for call in task.running if task else ():
            if call.call_id in elapsed:
                self._push(drained_call(call, elapsed[call.call_id]))
        if task is not None and task.request is not None:
            self._push(c.ResponseBroken(task.request.n, "stream", SHUTTING_DOWN, delay_ms=0))


def _call(state: State, call_id: str) -> Call:
    call = state.task.call(call_id) if state.task else None
    assert call is not None
    return call


def _number(sq_id: str) -> int:
    return int((sq_id or START).partition("-")[0])
