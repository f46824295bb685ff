"""An agent's place in its tree, in a log that is read a second time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from orchestrator.core.entries import Entry
from sim.grammar_state import Reading
from sim.grammar_terms import check


class TreeGrammar(Reading):
    """The agent's status, its messages, its children and their watchdogs."""

    def __init__(self) -> None:
        super().__init__()
        self._results_read: defaultdict[int, set[int]] = defaultdict(set)
        """The turns of each child whose results have left the inbox."""
        self.old_result_read = False
        """Whether a result was read last whose child had worked since."""

    def _fact_agent(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        changes = fact["changes"]
        turns = changes.get("turns", self.agent["turns"])
        check(
            turns in (self.agent["turns"], self.agent["turns"] + 1),
            f"turn {turns} follows {self.agent['turns']}",
        )
        if turns != self.agent["turns"]:
            check(self.task is None, "an agent comes to rest while a task holds it")
            self.ends[turns] = {"outcome": "", "message": None, **self._ended, "status": changes["status"]}
            self.ends[turns] |= {"used": self.used, "evidence": self.agent.get("evidence", "proved")}
        if changes.get("status") == "running":
            check(self.task is not None, "an agent works without a task")
        self.agent |= changes

    def _fact_mail(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        key = fact["mail"]["key"]
        check(key not in self._mails, f"the letter {key} comes twice")
        self._mails.add(key)
        self.mails[key] = fact["mail"]
        self.inbox.append(key)

    def _fact_mail_taken(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        keys = list(fact["keys"])
        check(keys and set(keys) <= set(self.inbox), f"{keys} are taken of {self.inbox}")
        self.inbox = [key for key in self.inbox if key not in keys]
        self.old_result_read = False
        for mail in map(self.mails.__getitem__, keys):
            if mail["kind"] == "completion" and mail["content"]["completion"]:
                agent_id, turn = mail["sender"]["agent_id"], mail["content"]["turn"]
                self._results_read[agent_id].add(turn)
                child = self.children.get(agent_id)
                self.old_result_read |= child is not None and turn < child["turn"]

    def _fact_child(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        child = fact["child"]
        check(child["agent_id"] not in self.children, f"agent {child['agent_id']} is made twice")
        self.children[child["agent_id"]] = dict(child)

    def _fact_child_changed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        child = self.children.get(fact["agent_id"])
        check(child is not None, f"agent {fact['agent_id']} is not known")
        assert child is not None
        changes = fact["changes"]
        if "turn" in changes:
            check(
                changes["turn"] >= child["turn"],
                f"agent {fact['agent_id']} goes back to turn {changes['turn']}",
            )
        child |= changes

    def _fact_children_changed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        for agent_id in fact["agent_ids"]:
            check(agent_id in self.children, f"agent {agent_id} is not known")
            child = self.children[agent_id]
            if fact["changes"].get("status") == "idle":
                check(child["status"] == "ready", f"agent {agent_id} is {child['status']}, and becomes idle")
                read = child["turn"] in self._results_read[agent_id]
                check(read, f"agent {agent_id} becomes idle, and nobody has read of its turn {child['turn']}")
            child |= fact["changes"]

    def ready_ones_are_unread(self) -> None:
        """A child whose result was read is not ready any more."""
        for child in self.children.values():
            read = child["turn"] in self._results_read[child["agent_id"]]
            check(child["status"] != "ready" or not read, f"{child} is ready, and its result was read")

    def _fact_watchdog(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(
            fact["watchdog"]["generation"] == self.generation,
            "a watchdog has another generation than was taken",
        )
        known = self.watchdogs.get(fact["watchdog"]["agent_id"])
        if fact.get("sent") and known is not None:
            lasts = fact["watchdog"]["interval_ms"]
            check(lasts == known["interval_ms"], f"a watchdog goes on with {lasts} ms: {known}")
        self.watchdogs[fact["watchdog"]["agent_id"]] = fact["watchdog"]
        self.dogs[fact["watchdog"]["generation"]] = fact["watchdog"]

    def _fact_watchdog_ended(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["agent_id"] in self.watchdogs, "a watchdog ends that was never set")
        del self.watchdogs[fact["agent_id"]]
