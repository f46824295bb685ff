"""Tree logs, read as they grow: the registry is what they tell, and what becomes of an agent is told where it
must be.

A part of `Watch` (`sim/watch.py`), which knows the sessions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.broker.records import TreeEntry
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import tree_entry
from orchestrator.core.registry import RegistryView, projected
from orchestrator.rollouts.tree_log import tree_fact
from sim.agent_messages import Surfaced, untrue_event
from sim.archive_moves import DECIDED_S, Entry
from sim.double import Double
from sim.reach import Reach
from sim.shown import Shown, expected_of

if TYPE_CHECKING:
    from sim.agent_rules import AgentRules
    from sim.cancels import Cancels
    from sim.seen import Seen

_NO_AGENTS = RegistryView(), 0


class TreeLogs:
    """The trees of one simulation."""

    sessions: dict[str, Seen]
    keys: Keys
    reach: Reach
    cancels: Cancels
    agent_rules: AgentRules
    shown: Shown
    _double: Double

    def __init__(self) -> None:
        super().__init__()
        self.trees: dict[str, tuple[RegistryView, int]] = {}
        """Each tree's registry as its log tells it, and the log's last number."""
        self.surfaced = Surfaced()
        self.stored: dict[str, list[Entry]] = {}
        """Each tree's log as it grew."""

    @abstractmethod
    def broken(self, rule: str, seen: str) -> None:
        """Ends the simulation."""

    def _tree(self, session: str, eqs: Mapping[str, int]) -> None:
        """The registry is what the tree log tells, after every entry of it."""
        tree = self.sessions[session].tree
        # Behind a moment to which Redis went back, all of it is read anew.
        anew = tree not in self.trees
        if anew:
            self.surfaced.anew(tree)
            self.stored[tree] = []
        view, at = self.trees.get(tree, _NO_AGENTS)
        entries = self._double.tree_after(self.keys, tree, at)
        if not entries:
            return
        self.stored[tree] += entries
        self.reach.saw("registry")
        shown, before = [], view
        for entry_id, fields in entries:
            entry = tree_entry(entry_id, fields)
            view, at = view.after(tree_fact(entry)), entry.tree_seq
            event = orjson.loads(entry.payload)
            message = event["msg"]
            about = orjson.loads(entry.about or b"{}")
            takeover = about.get("takeover")
            self.agent_rules.told(str(entry.session), message)
            if about.get("marked"):
                self.agent_rules.marked(about["agent_id"])
            if takeover is None:
                self._ended(view, message)
            self.surfaced.heard(tree, event["id"], message)
            wrong = (
                untrue_event(message) if takeover is None else self._untrue_takeover(entry, takeover, message)
            )
            if wrong:
                self.broken("kin", f"{tree} at {at}: {wrong}")
            shown.append((at, self.shown.watchers(tree, view, message, str(entry.session))))
        self.trees[tree] = (view, at)
        self.agent_rules.changed(tree, RegistryView() if anew else before, view)
        if not anew:
            self.shown.told(tree, expected_of(shown), self.sessions, eqs)
        flat = {name.decode(): value for name, value in self._double.hash(self.keys.agents(tree)).items()}
        known = projected(flat)
        if known.agents != view.agents:
            told = {str(agent) for agent in view.agents.values()}
            says = {str(agent) for agent in known.agents.values()}
            only = f"only the log: {sorted(told - says)}; only the registry: {sorted(says - told)}"
            self.broken("registry", f"{tree} at {at}: {only}")

    def _tree_is_sealed(self, tree: str, least_s: float | None) -> None:
        """The log is as it grew, what was sealed has left the stream, and the tree has rested for long."""
        self.reach.saw("tree_sealed")
        if tree not in self.trees:
            # Redis went back, and nobody has written since.
            return
        there, stored = self._double.tree_after(self.keys, tree, 0), self.stored[tree]
        if there != stored:
            numbers = [entry_id.decode() for entry_id, _ in there]
            self.broken("sealed", f"{tree}: segments and stream hold {numbers} of {len(stored)} entries")
        rested_s = self._double.now_s() - int(stored[-1][1][b"t"]) / 1000
        if least_s is None or rested_s < least_s - DECIDED_S:
            self.broken("sealed", f"{tree}: its log is sealed {rested_s:.1f} s after it grew")

    def _untrue_takeover(self, entry: TreeEntry, epoch: int, message: Mapping[str, Any]) -> str:
        """The error in an entry that tells of a takeover: it is the agent's own, under its claim."""
        self.reach.saw("takeover_told")
        seen = self.sessions[str(entry.session)]
        told = {name: value for name, value in message.items() if value is not None}
        wanted = {
            "type": "subagent_lifecycle",
            "event": "updated",
            "agent_id": seen.state.facts.agent_id,
            "session_id": str(entry.session),
        }
        if told != wanted:
            return f"a takeover of {wanted} is told as {told}"
        return "" if epoch <= seen.epoch else f"a takeover under epoch {epoch} is told at {seen.epoch}"

    def ending(self) -> list[str]:
        """Agents that were told to end, and have not."""
        return [
            f"agent {agent.agent_id} of {tree}"
            for tree, (view, _) in self.trees.items()
            for agent in view.agents.values()
            if agent.marked and agent.active
        ]

    def slots(self, tree: str) -> tuple[int, int]:
        """Slots that are held by the registry's count, and by its agents."""
        held = self._double.hash(self.keys.agents(tree)).get(b"slots", b"0")
        return int(held), self.trees[tree][0].slots

    def _ended(self, view: RegistryView, message: Mapping[str, Any]) -> None:
        if message.get("event") == "updated":
            self.cancels.marked(view, message)
        elif message.get("event") == "status" and message.get("status") == "canceled":
            self.cancels.canceled(view, message)
