"""Side work of a claimed session, beside its loop: requests and calls, from their start to their end.

The log says what is owed; it is started here once, and its results arrive as commands or deltas. Nothing is
decided or written here, and nothing is known of steps.

A session that is to be given back ends its side work first: after its quantum by starting no more, in a
drain by a grace, and then by stopping what still runs and recording it as stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core import commands as c
from orchestrator.core.calls import Call, CopyWork, MergeWork
from orchestrator.core.commands import (
    CallFinished,
    Command,
    FolderCommand,
    FolderCopied,
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotCopied,
    FolderNotMerged,
    FolderSettled,
    FolderUnsaved,
    SetupEnded,
)
from orchestrator.core.decide.draft import Note
from orchestrator.core.entries import EVENT_MSG, Entry
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.outstanding import (
    AnswerServer,
    FollowProcess,
    FollowRequest,
    LookUp,
    MakeFolder,
    OweRequest,
    RunCall,
    RunSetup,
    SaveFolder,
    StopAll,
    Work,
)
from orchestrator.core.state import Process, State, lacks_setup, may_write, writing
from orchestrator.core.workspace import Unsaved
from orchestrator.protocol.events import AgentReasoningRawContentDelta
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.wire import JsonObject, tag_of
from orchestrator.runtime import log
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.committing import Delta, event_id
from orchestrator.runtime.lookups import TreeLookups, look_up
from orchestrator.runtime.model_request import Prepared, follow_request, prepare_request
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.sq_entries import drained_call, failed_call, failed_process, refused_call
from orchestrator.tools.tool_context import CallSite, DeltaSink

SHUTTING_DOWN = "the worker is shutting down"
WORKER_LEFT = "its worker was shut down"
NOT_CONFIRMED = "replicas did not confirm the decision to run it in time"

LOOK_UP = "look_up"
PROCESS = "process"
RAW_DELTA = tag_of(AgentReasoningRawContentDelta)


class SideWork:
    """The effects of one session, the wait for a request that is not due yet, and the grace of a drain."""

    def __init__(self, context: RunnerContext, arrivals: Arrivals) -> None:
        self._context = context
        self._ports = context.ports
        self._claim = context.claim
        self._arrivals = arrivals
        self._effects = Effects(context.ports, context.claim.session)
        self._lookups = Effects(context.ports, context.claim.session)
        """Apart from the task's: what stops a task does not stop them."""
        self._processes = Effects(context.ports, context.claim.session)
        """The waits for the ends of processes, which outlive the task that started them."""
        self._elicitations = Elicitations(arrivals)
        self.folder = FolderWork(context, arrivals)
        self._agents: TreeLookups | None = None
        self._began = context.ports.monotonic()
        self._draining = False
        self._gives_way = False
        self._overdue = False
        """Whether a drain's grace is over: what is owed is answered, and not started."""
        self._delay: asyncio.Task[None] | None = None
        self._delayed_ms = 0
        """By Redis's clock, when it is over."""
        self._grace: asyncio.Task[None] | None = None
        self._prepared: Prepared | None = None

    @property
    def unsettled(self) -> bool:
        """Whether a result is still to come, or to be decided."""
        task_s = self._effects.unsettled or self._lookups.unsettled
        return task_s or self._processes.unsettled or self.folder.unsettled

    @property
    def follows_processes_only(self) -> bool:
        """Whether processes are all that the session does."""
        delayed = self._delay is not None and not self._delay.done()
        at_work = self._effects.unsettled or self._lookups.unsettled or self.folder.unsettled or delayed
        return self._processes.unsettled and not at_work

    # ── starting ──────────────────────────────────────────────────────────────────────────────

    def prepare(self, owed: Collection[Work], state: State) -> None:
        """Makes the request that a step begins, while its commit is on its way: nothing of it is sent."""
        self._prepared = None
        for work in owed:
            if isinstance(work, FollowRequest) and ("request", str(work.n)) not in self._effects:
                self._ports.spawn(self._prepare(state), f"{self._claim.session}:prepare")

    async def _prepare(self, state: State) -> None:
        # The commit goes first.
        await self._ports.sleep(0)
        try:
            self._prepared = prepare_request(self._ports, state)
        except Exception as error:
            # It is made again behind the commit, and fails there.
            log.info("session %s: its request was not prepared: %s", self._claim.session, error)

    async def start(self, owed: Collection[Work]) -> None:
        """Starts what the log owes and what does not run yet."""
        state = self._context.journal.state
        if self.folder.making and MakeFolder() not in owed:
            # What needed it is over.
            await self.folder.stop()
        for work in owed:
            match work:
                case StopAll():
                    await self._stop_all()
                case RunCall(call_id) if ("call", call_id) not in self._effects:
                    self._start_call(call_of(state, call_id), state)
                case FollowRequest(n) if ("request", str(n)) not in self._effects:
                    self._start_request(n, state)
                case AnswerServer(id, decision):
                    self._elicitations.decided(id, decision)
                case LookUp(key) if (LOOK_UP, key) not in self._lookups and not self.leaving():
                    self._lookups.start((LOOK_UP, key), self._run_lookup(key), self._ended)
                case FollowProcess(number, stopping=stopping):
                    self._follow(number, state, stopping=stopping)
                case MakeFolder() if not self.leaving():
                    self.folder.start(work)
                case RunSetup() if not self._draining:
                    self.folder.set_up(lambda: self._run_setup(state))
                case SaveFolder() if not self._draining:
                    self.folder.start(work)
                case OweRequest(not_before_ms) if not self.leaving():
                    self._wait_until(not_before_ms)
                case _:
                    pass

    def _start_call(self, call: Call, state: State) -> None:
        if self._overdue:
            self._arrivals.push(refused_call(call, "not run: the worker was shut down"))
        else:
            self._effects.start(("call", call.call_id), self._run_call(call, state), self._ended)

    def _follow(self, number: int, state: State, *, stopping: bool) -> None:
        process = state.processes.get(number)
        assert process is not None, "the state was just said to have it"
        if (PROCESS, str(number)) not in self._processes:
            self._processes.start((PROCESS, str(number)), self._run_process(process), self._ended)
        if stopping or (self._draining and not self._effects.unsettled):
            # A leaving worker takes its processes along as soon as no call of the session needs them.
            self._ports.tools.kill_process(number, self._claim.claim_id)

    async def _run_process(self, process: Process) -> None:
        over = await self._ports.tools.follow(process, self._claim.claim_id)
        await self.folder.record((process.call_id,))
        known = self._context.journal.state.processes.get(process.number)
        decided = known is not None and known.stopping
        lost = WORKER_LEFT if self._draining and not decided else ""
        self._arrivals.push(c.ProcessFinished(over, lost))

    def _start_request(self, n: int, state: State) -> None:
        if self._overdue:
            self._arrivals.push(c.ResponseBroken(n, "stream", SHUTTING_DOWN, delay_ms=0))
        else:
            ahead, self._prepared = self._prepared, None
            prepared = ahead if ahead is not None and ahead.state is state else None
            following = follow_request(self._ports, state, self._arrivals.push, self._delta, prepared)
            self._effects.start(("request", str(n)), following, self._ended)

    async def _stop_all(self) -> None:
        if self._overdue and self._grace is not None:
            # It has stopped the calls, and is still recording what they did to the folder.
            await asyncio.wait((self._grace,))
        elapsed = self._effects.elapsed("call")
        await self._effects.stop()
        await self.folder.stop_setup()
        await self.folder.record_stopped(elapsed)
        self._arrivals.push(c.Stopped(elapsed))

    def _wait_until(self, not_before_ms: int) -> None:
        async def delay() -> None:
            await self._ports.sleep(max(0, not_before_ms - self._ports.broker.now_ms()) / 1000)
            self._arrivals.wake()

        if self._delay is not None and not self._delay.done():
            if self._delayed_ms <= not_before_ms:
                return
            # It is of a task that is over, and the next one's request waits for less.
            self._delay.cancel()
        self._delayed_ms = not_before_ms
        self._delay = self._ports.spawn(delay(), f"{self._claim.session}:delay")

    async def _run_lookup(self, key: str) -> None:
        self._arrivals.push(await look_up(self._context, key))

    async def _run_call(self, call: Call, state: State) -> None:
        if fault := await self._context.workspace.fault(state):
            # An approval may have come to a machine that has not looked at the folder yet.
            self._arrivals.push(refused_call(call, f"not run: {fault}"))
            return
        if not await self._is_confirmed():
            self._arrivals.push(refused_call(call, f"not run: {NOT_CONFIRMED}"))
            return
        site = self.site(state)
        work = call.work
        if isinstance(work, CopyWork):
            self._arrivals.push(await self.folder.copy(call))
        elif isinstance(work, MergeWork):
            self._arrivals.push(await self.folder.around(call, lambda: self.folder.merge(call, work)))
        else:
            self._arrivals.push(await self.folder.around(call, lambda: self._ports.tools.run(call, site)))

    async def _is_confirmed(self) -> bool:
        """Whether a failover would remember what was decided: it would else be begun twice."""
        confirm = self._context.config.confirm_effects
        return confirm is None or await confirm(self._claim, self._context.journal.position.seq)

    async def _run_setup(self, state: State) -> SetupEnded:
        if not await self._is_confirmed():
            return SetupEnded("failed", message=NOT_CONFIRMED)
        return await self._ports.tools.set_up(self.site(state))

    def site(self, state: State) -> CallSite:
        """The site at which a call of this session is assessed and run."""
        if self._agents is None:
            self._agents = TreeLookups.of(self._ports, state.facts)
        position = self._context.journal.position
        return CallSite(
            self._claim.claim_id,
            state,
            self._delta,
            self._agents,
            position.seq,
            position.head.hex(),
            self._claim.session,
            self._claim.tree,
            self._lasting_deltas(state),
            self._elicitations.ask,
        )

    def forget_numbers(self) -> None:
        """Drops the reserved numbers of new agents, so that others are drawn."""
        self._agents = None

    # ── what comes of it ──────────────────────────────────────────────────────────────────────

    def _delta(self, message: JsonObject) -> None:
        task = self._context.journal.state.task
        raw = message["type"] == RAW_DELTA
        if task is None or (raw and not self._context.config.rules.show_raw_reasoning):
            return
        self._show(Delta(task.id, message))

    def _lasting_deltas(self, state: State) -> DeltaSink:
        """Shows what a process of the task says, also behind the task's end."""
        turn = state.task.id if state.task is not None else ""
        return lambda message: self._show(Delta(turn, message, lasting=True))

    def _show(self, delta: Delta) -> None:
        if self._context.config.log.rollout_deltas:
            id = event_id(delta.task_id, delta.message)
            self._arrivals.add((Note((Entry(EVENT_MSG, delta.message, id),)), None))
        elif self._arrivals.inbox or not self._arrivals.resting:
            # What happened before it (an item was done) is not in the log yet, and its event comes first.
            self._arrivals.add((delta, None))
        else:
            self._context.writing.delta(delta, self._context.journal.position)

    def _ended(self, key: EffectKey, error: BaseException | None) -> None:
        # Its result may be in the log already: then it was all that kept the session from being given back.
        self._arrivals.wake()
        if error is None:
            return
        log.error("session %s: %s %s failed", self._claim.session, *key, exc_info=error)
        text = f"internal error: {type(error).__name__}: {error}"
        if key[0] == "request":
            self._arrivals.push(c.ResponseBroken(int(key[1]), "fatal", text))
        elif key[0] == "call":
            self._arrivals.push(failed_call(call_of(self._context.journal.state, key[1]), text))
        elif key[0] == LOOK_UP:
            self._arrivals.push(c.LookedUp(key[1], error=text))
        elif key[0] == PROCESS:
            process = self._context.journal.state.processes.get(int(key[1]))
            assert process is not None
            self._arrivals.push(c.ProcessFinished(failed_process(process, text)))

    def settle(self, command: c.Command) -> None:
        """Settles the effect whose last result was decided, or found to be of no use any more."""
        self.folder.settle(command)
        if isinstance(command, c.Stopped):
            self._effects.settle_all()
        elif (key := _ended_by(command)) is not None:
            self._of(key).settle(key)

    def reopen(self, command: c.Command | Note | Delta) -> None:
        """Reopens the effect whose last result was decided in a step that was not committed."""
        self.folder.reopen(command)
        if (key := _ended_by(command)) is not None:
            self._of(key).reopen(key)

    def _of(self, key: EffectKey) -> Effects:
        match key[0]:
            case "look_up":
                return self._lookups
            case "process":
                return self._processes
            case _:
                return self._effects

    # ── ending ────────────────────────────────────────────────────────────────────────────────

    @property
    def draining(self) -> bool:
        """Whether the worker leaves."""
        return self._draining

    def leaving(self) -> bool:
        """Whether nothing new is to be begun, because the session is to be given back."""
        return self._draining or self.folder.given_up or self._gives_way

    def look_at_time(self) -> None:
        """Sees whether the session's time is over, which holds until the next look.

        It wakes nobody: what is not begun for it has to be given back in the same step.
        """
        config = self._context.config
        over = self._ports.monotonic() - self._began > config.worker.quantum_s
        # Elsewhere there are no processes of the session: it stays with its own.
        busy = self._effects or self._processes or self.folder.unsettled
        self._gives_way = bool(over and not busy and config.others_wait())

    def drain(self) -> None:
        """Begins to leave: effects that run have a grace to end by themselves."""
        if not self._draining:
            self._draining = True
            self._grace = self._ports.spawn(self._cut_short(), f"{self._claim.session}:grace")
            self._arrivals.wake()

    async def _cut_short(self) -> None:
        """Stops, after the grace, what still runs and records it as stopped; nothing is started any more."""
        await self._ports.sleep(self._context.config.worker.drain_grace_s)
        self._overdue = True
        # They are owed still, and the next holder does them.
        await self._lookups.stop()
        self._lookups.settle_all()
        await self.folder.stop()
        self._arrivals.wake()
        if not self._effects.unsettled:
            return
        elapsed = self._effects.elapsed("call")
        await self._effects.stop()
        await self.folder.record_stopped(elapsed, LEAVE_S)
        task = self._context.journal.state.task
        for call in task.running if task else ():
            if call.call_id in elapsed:
                self._arrivals.push(drained_call(call, elapsed[call.call_id]))
        if task is not None and task.request is not None:
            self._arrivals.push(c.ResponseBroken(task.request.n, "stream", SHUTTING_DOWN, delay_ms=0))

    def cancel(self) -> None:
        """Cancels every effect, without waiting for the proof."""
        self._effects.cancel()
        self._lookups.cancel()
        self._processes.cancel()
        self.folder.cancel()

    async def stop(self) -> None:
        """Cancels every effect and returns when all have ended."""
        self.cancel()
        await self._effects.stop()
        await self._lookups.stop()
        await self._processes.stop()
        await self.folder.stop()
        await self._ports.tools.abandon(self._claim.claim_id)

    def close(self) -> None:
        """Ends the waits for a request that is not due, and for the grace; lets go of tools."""
        self._ports.tools.release(self._claim.session)
        for timer in (self._delay, self._grace):
            if timer is not None:
                timer.cancel()


def call_of(state: State, call_id: str) -> Call:
    """The call that the state was just said to have."""
    call = state.task.call(call_id) if state.task else None
    assert call is not None
    return call


def _ended_by(command: c.Command | Note | Delta) -> EffectKey | None:
    """The effect whose last result a command is."""
    match command:
        case c.CallFinished(call_id) | FolderCopied(call_id):
            return ("call", call_id)
        case c.ResponseCompleted(n) | c.ResponseBroken(n):
            return ("request", str(n))
        case c.LookedUp(key):
            return (LOOK_UP, key)
        case c.ProcessFinished(over):
            return (PROCESS, str(over.number))
        case _:
            return None


# ── elicitations ──────────────────────────────────────────────────────────────────────────────────
# Questions of MCP servers in the middle of calls: each waits for the decision that the log will have.


class Elicitations:
    """The questions of one claimed session."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._waiting: dict[str, asyncio.Future[ElicitationAction]] = {}
        self._asked: Counter[str] = Counter()

    async def ask(self, call_id: CallId, server: str, message: str) -> ElicitationAction:
        """Puts a question to the person, and waits; cancelled, it is withdrawn."""
        self._asked[call_id] += 1
        id = f"{call_id}-q{self._asked[call_id]}"
        waits: asyncio.Future[ElicitationAction] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waits
        self._arrivals.push(c.Elicited(call_id, id, server, message))
        try:
            return await waits
        except asyncio.CancelledError:
            self._arrivals.push(c.ElicitationDropped(id))
            raise
        finally:
            del self._waiting[id]

    def decided(self, id: str, decision: str) -> None:
        """Tells whoever waits; a decision that was told is in the state until its call is over."""
        waits = self._waiting.get(id)
        if waits is not None and not waits.done():
            known = decision in tuple(ElicitationAction)
            waits.set_result(ElicitationAction(decision) if known else ElicitationAction.CANCEL)


# ── folder work ───────────────────────────────────────────────────────────────────────────────────
# Work on a portable folder under one claim: it is made, recorded, and stored when the store is back.
#
# What is found is handed to the runner as commands, before the end of the calls that it is about. A
# session without a portable folder passes through here untouched.


MAKING: EffectKey = ("folder", "make")
SAVING: EffectKey = ("folder", "save")
SETTING_UP: EffectKey = ("folder", "setup")
STOP_S = 1.0
"""Seconds that a stopped call's snapshot may take, before the folder counts as unsaved."""
LEAVE_S = 30.0
"""The same where a worker leaves: nobody waits for it then, and its machine may be gone for good."""
FIRST_TRY_S, LONGEST_TRY_S = 2.0, 30.0


@dataclass(slots=True)
class Holding:
    """The time since which the claim is kept for unsaved changes, and the pause before the next try."""

    since_ms: int
    began: float
    pause_s: float = field(default_factory=lambda: FIRST_TRY_S)


class FolderWork:
    """The folder of one claim."""

    def __init__(self, context: RunnerContext, arrivals: Arrivals) -> None:
        self._context, self._ports = context, context.ports
        self._folders, self._claim, self._arrivals = context.ports.folders, context.claim, arrivals
        self._effects = Effects(context.ports, context.claim.session)
        """Apart from the task's: a folder is made and saved whatever becomes of the task."""
        self._setup = Effects(context.ports, context.claim.session)
        """The set-up alone: it is stopped with the task, and nothing else of the folder is."""
        self._holding: Holding | None = None
        self.given_up = False
        """Whether this machine could not make the folder: the claim is given back."""

    @property
    def unsettled(self) -> bool:
        """Whether a result is still to come, or to be decided."""
        saving = SAVING in self._effects and self._state.workspace.unsaved is not None
        return saving or self.making or self.setting_up

    @property
    def making(self) -> bool:
        """Whether the folder is being made."""
        return MAKING in self._effects

    @property
    def setting_up(self) -> bool:
        """Whether the set-up runs, or its end is to be decided."""
        return SETTING_UP in self._setup

    # ── around what runs ──────────────────────────────────────────────────────────────────────

    async def around(self, call: Call, run: Callable[[], Awaitable[CallFinished]]) -> CallFinished:
        """Runs a call; what it did to the folder is handed over before its end is."""
        state = self._state
        if state.facts.portable is None or state.task is None:
            return await run()
        writes = may_write(call.work, state.task.settings)
        if writes:
            await self._folders.writing(state, self._claim)
        try:
            finished = await run()
        except Exception:
            if writes:
                await self.record((call.call_id,))
            raise
        if writes or finished.over is not None:
            await self._record_end(call, finished)
        return finished

    async def merge(self, call: Call, work: MergeWork) -> CallFinished:
        """Merges a child's changes, and tells of it as of a patch."""
        merged = await self._folders.merge(self._state, self._claim, work)
        written = isinstance(merged, FolderMerged)
        said = "\n".join(_merged(merged, work))
        end = work.end(call.call_id, said, written=written)
        return CallFinished(call.call_id, said, (end,), applied=written)

    async def copy(self, call: Call) -> FolderCopied | CallFinished:
        """Copies the session's own folder for the agents that the call's response makes."""
        told = await self._folders.copy(self._state, self._claim, call.call_id)
        if isinstance(told, FolderNotCopied):
            return CallFinished(call.call_id, f"not made: {told.reason}")
        return told

    async def _record_end(self, call: Call, finished: CallFinished) -> None:
        try:
            await self.record((call.call_id,))
        except asyncio.CancelledError:
            # It has ended, and its output is there: only its snapshot was stopped.
            await self.record((call.call_id,), STOP_S)
            self._arrivals.push(finished)
            raise

    async def record(
        self, call_ids: Sequence[CallId], within_s: float | None = None, *, setup: bool = False
    ) -> None:
        """Hands over what has become of the folder by the end of these calls, or of its set-up."""
        state = self._state
        if state.facts.portable is None or state.workspace.epoch != self._claim.epoch:
            return
        at_ms = self._ports.broker.now_ms()
        news = await self._folders.changed(state, self._claim, call_ids, at_ms, within_s)
        self._push(replace(news, setup=True) if setup and isinstance(news, WorkspaceSaved) else news)

    async def record_stopped(self, stopped: Iterable[str], within_s: float = STOP_S) -> None:
        """Hands over what stopped calls have done to the folder, before the end of their task is decided."""
        state = self._state
        if state.facts.portable is None or state.task is None:
            return
        named = frozenset(stopped)
        ids = [call.call_id for call in writing(state.task) if call.call_id in named]
        if ids:
            await self.record(ids, within_s)

    def _push(self, news: WorkspaceSaved | FolderUnsaved | None) -> None:
        state = self._state
        told: FolderCommand | WorkspaceSaved | None = news
        if news is None and state.workspace.unsaved is not None:
            told = FolderSettled()
        elif isinstance(news, WorkspaceSaved) and state.processes.living:
            told = replace(news, live=True)
        if told is not None:
            self._arrivals.push(told)

    def recorded(self) -> None:
        """Notes that the log has what was found of the folder so far.

        Without a snapshot of its last changes the folder is at none that the log names. One that lacks its
        set-up is no copy to go on with, either: clean, it would pass for one in which the script has run.
        """
        state = self._state
        if state.facts.portable is None:
            if state.workspace.given:
                self._folders.recorded(state, self._claim, resting=False)
            return
        if state.workspace.epoch != self._claim.epoch:
            return
        unsaved = state.workspace.unsaved
        ahead = unsaved is not None and unsaved.snapshot is None
        runs = bool(state.processes.living) or self._is_written(state)
        resting = not (runs or ahead or lacks_setup(state))
        self._folders.recorded(state, self._claim, resting=resting)

    def _is_written(self, state: State) -> bool:
        """Whether a call that runs, or the set-up, may be writing to the folder."""
        by_setup = state.workspace.setting_up == self._claim.epoch
        return by_setup or (state.task is not None and bool(writing(state.task)))

    # ── what is owed ──────────────────────────────────────────────────────────────────────────

    def start(self, work: Work) -> None:
        """Starts to make the folder, or to save it, unless that is under way."""
        match work:
            case MakeFolder() if MAKING not in self._effects:
                self._effects.start(MAKING, self._make(), self._ended)
            case SaveFolder() if SAVING not in self._effects:
                unsaved = self._state.workspace.unsaved
                assert unsaved is not None, "the state was just said to have it"
                self._effects.start(SAVING, self._save(unsaved), self._ended)
            case _:
                pass

    async def _make(self) -> None:
        made = await self._folders.make(self._state, self._claim)
        self.given_up = isinstance(made, FolderFailed) and made.elsewhere
        self._arrivals.push(made)

    async def _save(self, unsaved: Unsaved) -> None:
        """Tries the store once more, after a pause; what is still owed is started again."""
        if self._holding is None or self._holding.since_ms != unsaved.since_ms:
            self._holding = Holding(unsaved.since_ms, self._ports.monotonic())
        await self._ports.sleep(self._holding.pause_s)
        self._holding.pause_s = min(2 * self._holding.pause_s, LONGEST_TRY_S)
        state = self._state
        now = state.workspace.unsaved
        if now is None or now.since_ms != self._holding.since_ms or self._is_written(state):
            # A snapshot now would hold half of what a call does; its end tries the store as well. And an
            # outage that began in the pause has a time of its own.
            return
        news = await self._folders.changed(state, self._claim, (), now.at_ms)
        held_s = self._ports.monotonic() - self._holding.began
        if not isinstance(news, FolderUnsaved):
            self._push(news)
        elif (over := held_s > self._context.config.hold_s) or _unlike(news, now):
            self._push(replace(news, trying=not over))

    def set_up(self, run: Callable[[], Awaitable[SetupEnded]]) -> None:
        """Starts the set-up, unless it is under way."""
        if not self.setting_up:
            self._setup.start(SETTING_UP, self._set_up(run), self._ended)

    async def _set_up(self, run: Callable[[], Awaitable[SetupEnded]]) -> None:
        await self._folders.writing(self._state, self._claim)
        try:
            ended = await run()
        except Exception:
            await self.record((), setup=True)
            raise
        await self.record((), setup=True)
        self._arrivals.push(ended)

    async def stop_setup(self) -> None:
        """Stops the set-up, records what it has written, and hands over that it was stopped."""
        if not self._setup:
            # Its end is handed over already, or it never began.
            return
        await self._setup.stop()
        await self.record((), STOP_S, setup=True)
        self._arrivals.push(SetupEnded("stopped"))

    def _ended(self, key: EffectKey, error: BaseException | None) -> None:
        self._arrivals.wake()
        if key == SAVING:
            self._effects.settle(SAVING)
        if error is None:
            return
        log.error("session %s: %s %s failed", self._claim.session, *key, exc_info=error)
        why = f"internal error: {type(error).__name__}: {error}"
        if key == SETTING_UP:
            self._arrivals.push(SetupEnded("failed", message=why))
        elif key == MAKING:
            self.given_up = True
            self._arrivals.push(FolderFailed(self._folders.machine, why, elsewhere=True))
        else:
            at_ms = self._ports.broker.now_ms()
            self._arrivals.push(FolderUnsaved(self._folders.machine, why, (), at_ms, trying=False))

    def settle(self, command: Command) -> None:
        """Settles the work whose result was decided."""
        if isinstance(command, FolderMade | FolderFailed):
            self._effects.settle(MAKING)
        elif isinstance(command, SetupEnded):
            self._setup.settle(SETTING_UP)

    def reopen(self, command: object) -> None:
        """Reopens the work whose result was decided in a step that was not committed."""
        if isinstance(command, FolderMade | FolderFailed):
            self._effects.reopen(MAKING)
        elif isinstance(command, SetupEnded):
            self._setup.reopen(SETTING_UP)

    # ── ending ────────────────────────────────────────────────────────────────────────────────

    def cancel(self) -> None:
        self._effects.cancel()
        self._setup.cancel()

    async def stop(self) -> None:
        """Stops to make, to set up or to save the folder; all is owed still, and the next holder does it."""
        for effects in (self._effects, self._setup):
            await effects.stop()
            effects.settle_all()

    async def release(self) -> None:
        """Lets go of the folder."""
        if self._state.facts.portable is not None:
            await self.stop()
            await self._folders.release(self._claim.session, self._claim)

    @property
    def _state(self) -> State:
        return self._context.journal.state


def _merged(merged: FolderMerged | FolderNotMerged, work: MergeWork) -> Sequence[str]:
    """The lines that the model reads of a merge."""
    if isinstance(merged, FolderNotMerged):
        written = "a part may be written, so look at the files" if merged.partly else "nothing was written"
        return f"not merged, and {written}: {merged.reason}", *merged.conflicts
    files = merged.files
    counts = f"{files.added} files added, {files.modified} modified, {files.deleted} deleted"
    return f"merged the work of agent {work.agent_id}: {counts}", *merged.names


def _unlike(news: FolderUnsaved, known: Unsaved) -> bool:
    """Whether the log does not say what the machine has now."""
    return (news.snapshot, news.blocked) != (known.snapshot, known.blocked)


# ── effects ───────────────────────────────────────────────────────────────────────────────────────
# The side tasks of one session: started, named, watched and stopped in one place.
#
# An effect never writes. It hands what happened to the runner as commands, and what is to be shown
# meanwhile as deltas. An effect that dies of an unexpected error tells the runner so; nothing is
# swallowed.
#
# An effect that has ended is not over: until its result is decided, the log still says that it runs, and
# whoever asks the log alone would start it again. So a key stays here from its start until it is settled.


EffectKey = tuple[str, str]
"""(`request`, `call`, `look_up` or `process`, its number, id or key)."""
Ended = Callable[[EffectKey, BaseException | None], None]
"""Told of an effect's end, and of the error of one that failed."""


class Effects:
    """The running effects of one session, by key."""

    def __init__(self, ports: Ports, session: str) -> None:
        self._ports = ports
        self._session = session
        self._unsettled: set[EffectKey] = set()
        self._running: dict[EffectKey, tuple[asyncio.Task[None], float]] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def unsettled(self) -> bool:
        """Whether a result is still to come; an effect that is settled may still be ending."""
        return bool(self._unsettled)

    def __contains__(self, key: object) -> bool:
        """Whether the effect was started and its result is not decided yet."""
        return key in self._unsettled

    def start(self, key: EffectKey, work: Coroutine[Any, Any, None], notify: Ended) -> None:
        """Starts an effect once: a key that is not settled is an error of the caller.

        Its end is told to `notify`, which is not kept behind it: it belongs to who has these effects, and a
        session that a worker has given back is to leave its memory at once.
        """
        assert key not in self._unsettled
        self._unsettled.add(key)
        task = self._ports.spawn(work, f"{self._session}:{key[0]}:{key[1]}")
        self._running[key] = (task, self._ports.monotonic())
        task.add_done_callback(lambda done: self._ended(key, done, notify))

    def _ended(self, key: EffectKey, task: asyncio.Task[None], notify: Ended) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            notify(key, task.exception())
        else:
            # One that was not told to end broke off by itself: nobody else would say that it is over.
            notify(key, None if task.cancelling() else asyncio.CancelledError("it broke off by itself"))

    def settle(self, key: EffectKey) -> None:
        """Notes that an effect's result was decided: if the state asks for it now, that is a new decision."""
        self._unsettled.discard(key)

    def reopen(self, key: EffectKey) -> None:
        """Notes that the decision on an effect's result was not committed: it will be made again."""
        self._unsettled.add(key)

    def settle_all(self) -> None:
        """Notes that every effect was stopped, and that this was decided."""
        self._unsettled.clear()

    def elapsed(self, kind: str) -> dict[str, float]:
        """Seconds that each running effect of a kind has run."""
        now = self._ports.monotonic()
        return {key[1]: now - began for key, (_, began) in self._running.items() if key[0] == kind}

    def cancel(self) -> None:
        """Cancels every effect, without waiting for the proof."""
        for task, _ in self._running.values():
            # A second cancel would end the wait for the proof that what ran is dead.
            if not task.cancelling():
                task.cancel()

    async def stop(self) -> None:
        """Cancels every effect and returns when all have ended; commands are proved dead by then."""
        tasks = [task for task, _ in self._running.values()]
        self.cancel()
        await _ended_all(tasks)


async def _ended_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        await asyncio.wait([task])
