"""Work on a portable folder under one claim: it is made, recorded, and stored when the store is back.

What is found is handed to the runner as commands, before the end of the calls that it is about. A session
without a portable folder passes through here untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.calls import Call, MergeWork
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
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.outstanding import MakeFolder, SaveFolder, Work
from orchestrator.core.state import State, lacks_setup, may_write, writing
from orchestrator.core.workspace import Unsaved
from orchestrator.protocol.ids import CallId
from orchestrator.runtime import log
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.effects import EffectKey, Effects
from orchestrator.runtime.runner_context import RunnerContext

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
        self._effects = Effects(context.ports, context.claim.session, self._ended)
        """Apart from the task's: a folder is made and saved whatever becomes of the task."""
        self._setup = Effects(context.ports, context.claim.session, self._ended)
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
                self._effects.start(MAKING, self._make())
            case SaveFolder() if SAVING not in self._effects:
                unsaved = self._state.workspace.unsaved
                assert unsaved is not None, "the state was just said to have it"
                self._effects.start(SAVING, self._save(unsaved))
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
        if now is None or self._is_written(state):
            # A snapshot now would hold half of what a call does; its end tries the store as well.
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
            self._setup.start(SETTING_UP, self._set_up(run))

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
