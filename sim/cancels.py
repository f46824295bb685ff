"""Cancelled agents: nothing begins in them, nothing of them runs on, and what is said of the proof is so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.calls import Phase
from orchestrator.core.entries import Entry
from orchestrator.core.registry import Agent, RegistryView
from orchestrator.core.state import State
from sim.ledger import Ledger
from sim.observer import Observer
from sim.rights import Rights
from sim.seen import Seen

BEGINNINGS = frozenset({"task", "request_begun", "child"})
TRUST_S = 4.0
"""A holder that has not been answered for so long has stopped its own work."""


class Cancels:
    """The rules `marked`, `cancelled` and `evidence`."""

    def __init__(self, watch: Observer, rights: Rights, ledger: Ledger) -> None:
        self._watch = watch
        self._rights = rights
        self._ledger = ledger
        self._unseen: dict[str, float] = {}
        """Agents whose holder was lost while commands ran, in their present task: how long it was silent."""
        self._told: dict[str, str] = {}
        """The evidence that each agent's log names last."""
        self._heard_s: dict[str, float] = {}
        """When each claim was given or renewed last."""

    def went_back(self) -> None:
        """All logs are read anew; who was silent for how long is what it was."""
        self._unseen.clear()
        self._told.clear()

    def heard(self, claim: str) -> None:
        """Redis told a holder that its claim stands."""
        self._heard_s[claim] = self._watch.now_s

    def stopped(self, claim: str) -> None:
        """A holder said that nothing of its runs any more."""
        self._heard_s[claim] = -1e9

    # ── what an entry says ────────────────────────────────────────────────────────────────────

    def entry(self, session: str, seen: Seen, entry: Entry, epoch: int) -> None:
        """Called before the entry is folded: `seen` is what its writer met."""
        fact = entry.payload
        if fact["kind"] in BEGINNINGS or (fact["kind"] == "call" and fact["phase"] == Phase.RUNNING):
            self._begins(session, seen, fact)
        if fact["kind"] == "task":
            self._unseen.pop(session, None)
        elif _are_lost(seen.state, epoch):
            claims = {run.claim for run in self._ledger.runs if run.session == session}
            heard_s = [self._heard_s.get(claim, -1e9) for claim in claims - {seen.claim}]
            self._unseen.setdefault(session, self._watch.now_s - max(heard_s, default=-1e9))
        if fact["kind"] == "agent":
            self._ends(session, fact["changes"])

    def _ends(self, session: str, changes: Mapping[str, Any]) -> None:
        """Holds what an agent tells its parent of its end, also of one that was done before its cancel."""
        if "evidence" in changes:
            self._told[session] = changes["evidence"]
        if changes.get("ended") and session in self._unseen and self._told.get(session) != "presumed":
            seen = "is told as proved, and nobody saw its processes end"
            self._watch.broken("evidence", f"the end of {session} {seen}")

    def _begins(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        facts = seen.state.facts
        if not facts.agent_id or self._watch.reads_anew:
            return
        marks = self._watch.marks(seen.tree)
        above = [b"cancel:%d" % id for id in (*facts.ancestors, facts.agent_id) if id]
        if standing := [mark for mark in (*above, b"x:%d" % facts.agent_id) if mark in marks]:
            self._watch.broken("marked", f"{session}: {fact['kind']} begins under the marks of {standing}")

    # ── what the tree is told ─────────────────────────────────────────────────────────────────

    def marked(self, view: RegistryView, message: Mapping[str, Any]) -> None:
        """An agent was cancelled, and will be told."""
        agent = view.agents.get(message.get("agent_id", -1))
        if agent is not None and any(self._rights.running(one.session) for one in _line(view, agent)):
            self._watch.reach.saw("cancelled")

    def canceled(self, view: RegistryView, message: Mapping[str, Any]) -> None:
        """An agent is reported canceled: it has ended, and so has everything below it."""
        agent = view.agents.get(message["agent_id"])
        if agent is None:
            return
        for one in _line(view, agent):
            if left := self._rights.running(one.session):
                told = f"agent {agent.agent_id} is canceled, {one.agent_id} runs {[r.call_id for r in left]}"
                self._watch.broken("cancelled", told)
        self._evidence(agent, message.get("cancel"))

    def _evidence(self, agent: Agent, told: str | None) -> None:
        silent_s = self._unseen.get(agent.session)
        below = self._presumed_below(agent)
        if told == "presumed":
            self._watch.reach.saw("evidence")
        if told == "proved" and silent_s is not None:
            self._watch.broken(
                "evidence", f"the end of agent {agent.agent_id} is proved, and nobody saw its commands end"
            )
        if told == "proved" and below:
            seen = f"the end of agent {agent.agent_id} is proved, and that of {below} below it is not"
            self._watch.broken("evidence", seen)
        if told == "presumed" and silent_s is None and not below:
            self._watch.broken("evidence", f"the end of agent {agent.agent_id} is presumed, and it was seen")
        if silent_s is not None and silent_s < TRUST_S and not self._watch.went_back_s > 0:
            told_of = f"agent {agent.agent_id}'s host was silent for {silent_s:.1f} s only"
            self._watch.broken("evidence", f"the end is presumed, and {told_of}")

    def _presumed_below(self, agent: Agent) -> list[str]:
        """Sessions below an agent whose ends are presumed, also of those that were taken off the list."""
        tree = self._watch.sessions[agent.session].tree
        return [
            session
            for session, seen in self._watch.sessions.items()
            if seen.tree == tree
            and agent.agent_id in seen.state.facts.ancestors
            and seen.state.tree.evidence == "presumed"
        ]


def _are_lost(state: State, epoch: int) -> bool:
    """Whether an earlier claim has left something that the end of the agent's work is proved by."""
    task = state.task
    if task is not None and any(call.epoch != epoch for call in task.running):
        return True
    ends = task is not None or bool(state.tree.canceling)
    return ends and any(process.epoch != epoch for process in state.processes.living)


def _line(view: RegistryView, agent: Agent) -> list[Agent]:
    """The agent and all below it."""
    return [agent, *(other for other in view.agents.values() if other.below(agent.agent_id))]
