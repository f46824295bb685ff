"""Rights to hold a session and to run something for it, seen from outside of the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.core.calls import Call, PatchWork, Phase
from orchestrator.core.state import State
from orchestrator.tools.tool_context import CallSite
from sim.commits import reply_fields
from sim.double import EPOCH_S
from sim.folders import SETUP
from sim.ledger import Ledger, Run
from sim.network import sessions_of
from sim.observer import Observer
from sim.seen import Seen

TRUST_S = 4.1
"""After Redis went back, a holder of the lost branch believes in its claim so long."""


class Rights:
    """The rules of claims and of what runs under them."""

    def __init__(self, watch: Observer, ledger: Ledger) -> None:
        self._watch = watch
        self._ledger = ledger
        self.lives: Callable[[str], bool] = lambda worker: False
        """Whether a worker of this name lives."""
        self._orphans: list[Run] = []
        """Runs by decisions that Redis has forgotten."""

    def claimed(self, session: str, args: Sequence[Any]) -> None:
        """Called before the session is looked at: what is known of it is what the claim met."""
        claim = str(args[3 + int(args[2]) + 3])
        seen = self._watch.sessions.get(session)
        if seen is not None and seen.claim != claim:
            self._not_robbed(session, seen)
        if seen is not None and seen.claim not in ("", claim):
            self._taken_over(session, seen)
        old = [run for run in self._ledger.running(session) if run.claim != claim]
        if missed := {(session, run.call_id) for run in old if not self._ledger.kept(run)}:
            self._watch.reach.saw("supervisor_missed")
            self._ledger.missed |= missed
        old = [run for run in old if self._ledger.kept(run)]
        if old and self._watch.now_s > self._watch.forgot_s + TRUST_S:
            self._watch.broken("alone", f"{session} was claimed while {[run.call_id for run in old]} run")

    def buried(self, session: str, args: Sequence[Any]) -> None:
        """Called before the session is looked at: it was given back for a worker that is said to be dead."""
        worker, claim = map(str, args[3 + int(args[2]) + 2 :][:2])
        seen, watch = self._watch.sessions.get(session), self._watch
        what = f"{session} was given back for {worker}"
        if self.lives(worker):
            watch.broken("buried", f"{what}, which lives")
        if left := [run.call_id for run in self._ledger.running(session) if run.machine == worker]:
            watch.broken("buried", f"{what} while {left} run")
        if seen is not None and seen.claim not in ("", claim):
            watch.broken("buried", f"{what}, and another claim of it stands")
        if (tries := watch.tries_of(session)) > 1:
            watch.broken("buried", f"{what} at the claim number {tries} without progress")
        if any(run.ended_s > watch.now_s - 10.0 for run in self._ledger.killed(session)):
            watch.reach.saw("buried")
        if seen is not None and not seen.claim:
            watch.reach.saw("buried_revoked")

    def turned_away(self, session: str) -> None:
        """A claim was refused: its worker asked for a session and was not given it."""
        seen = self._watch.sessions.get(session)
        if seen is not None and (seen.lease_ms or 0.0) > self._now_ms:
            self._watch.reach.saw("leases")

    def _taken_over(self, session: str, seen: Seen) -> None:
        """The session's holder has been silent for longer than its lease."""
        reach, task = self._watch.reach, seen.state.task
        reach.saw("owner")
        self._not_trusted(session, seen.claim)
        if any(run.ended_s > self._watch.now_s - 10.0 for run in self._ledger.killed(session)):
            reach.saw("alone")
        if task is not None and task.stopping:
            reach.saw("stopping_taken_over")
        if seen.state.tree.canceling and not seen.state.tree.ended:
            reach.saw("cancel_taken_over")

    def _not_trusted(self, session: str, claim: str) -> None:
        """The session's former holder, which may live, does not trust its claim any more."""
        watch, supervisor = self._watch, self._ledger.supervisors.get(claim)
        if supervisor is None:
            return
        if watch.parted is not None and watch.parted(supervisor.machine):
            watch.reach.saw("outlived")
        left_s = supervisor.trusted_until_s(claim) - watch.now_s
        if left_s > 0.0 and watch.now_s > watch.forgot_s + TRUST_S:
            told = f"{supervisor.machine} trusts its own claim for {left_s:.1f} s more"
            watch.broken("trusted", f"{session} was claimed, and {told}")

    @property
    def _now_ms(self) -> float:
        return (EPOCH_S + self._watch.redis_s) * 1000

    def _not_robbed(self, session: str, seen: Seen) -> None:
        left_ms = (seen.lease_ms or 0.0) - self._now_ms
        if left_ms > 1.0:
            self._watch.broken("leases", f"{session} was taken {left_ms:.0f} ms before its lease ran out")

    def revoked(self, args: Sequence[Any], reply: Sequence[Any]) -> None:
        """A revoked claim is gone: the session has an owner to wait for, and nobody who may write."""
        found = reply_fields("revoke", reply)["found"]
        for session, (state, _, _) in zip(sessions_of(args), found, strict=True):
            held = self._watch.sessions.get(session)
            if state == "revoked" and held is not None and (held.lease_ms or 0.0) > self._now_ms:
                self._watch.reach.saw("revoked")
            if state == "revoked" and self._watch.claim_of(session):
                self._watch.broken("revoked", f"{session} was revoked, and a claim of it stands")

    def running(self, session: str, claim: str = "") -> list[Run]:
        """Runs that this branch of the log decided on: a lost branch's die when their worker learns of it.

        Those of a claim, if one is given, whatever their supervisor does: whoever has it waits for their end.
        """
        running = self._ledger.running(session)
        return [run for run in running if self.stands(run) or (claim and run.claim == claim and not run.lost)]

    def stands(self, run: Run) -> bool:
        """Whether Redis still has the decision to start it, and who runs it knows what his claim is worth.

        A renewal that Redis lost with its last second is one that its sender goes by.
        """
        forgot_s, now_s = self._watch.forgot_s, self._watch.now_s
        if run.lost or not self._ledger.kept(run):
            return False
        return run.began_s > forgot_s and now_s > forgot_s + TRUST_S

    def went_back(self) -> None:
        """Called when the sessions were read anew: some of what runs may never have been decided on now."""
        # A pool's jobs belong to no session, and no log decides on them.
        running = [run for run in self._ledger.running() if run.session]
        self._orphans = [run for run in running if not self._decided(run.session, run.call_id)]

    def look(self) -> None:
        """Called after every write: nobody believes for long in what Redis has forgotten."""
        if self._orphans and self._watch.now_s > self._watch.forgot_s + TRUST_S:
            running = [run for run in self._orphans if run.state == "running"]
            # A supervisor that stands still kills as soon as it goes on.
            self._orphans = [run for run in running if not self._ledger.kept(run)]
            if left := [f"{run.session} {run.call_id}" for run in running if self._ledger.kept(run)]:
                self._watch.broken("begun_in_log", f"Redis forgot the decisions to run {left}, and they run")

    def _decided(self, session: str, call_id: str) -> bool:
        state = self._watch.sessions[session].state if session in self._watch.sessions else State()
        if call_id == SETUP:
            return state.workspace.setting_up != 0
        known = state.task.call(call_id) if state.task else None
        if any(process.call_id == call_id for process in state.processes.living):
            return True
        return known is not None and known.phase is Phase.RUNNING

    def starting(self, call: Call, site: CallSite) -> bool:
        """A tool is about to start a call; whether its decision is of a branch that Redis has lost."""
        session, watch = str(site.session), self._watch
        if not self._decided(session, call.call_id):
            if watch.now_s < watch.forgot_s + TRUST_S:
                return True
            watch.broken("begun_in_log", f"{session}: {call.call_id} starts, and its log does not say so")
        runs = self._ledger.by_call[session, call.call_id]
        starts = 1 + sum(not run.lost and run.began_s > watch.forgot_s for run in runs)
        # A patch can be judged by what it left. A command is decided on again where the sandbox stopped it.
        patch = isinstance(call.work, PatchWork)
        most = 1 + sum(run.denied for run in runs)
        if starts > (watch.sessions[session].running[call.call_id] if patch else most):
            watch.broken("started_once", f"{session}: {call.call_id} was started {starts} times")
        return False
