"""The folder of a log that is read a second time: which snapshot follows which, and what it is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.entries import Entry
from orchestrator.core.state import State
from sim.folders import RULES, UNTRUSTED
from sim.grammar_state import Reading
from sim.grammar_terms import Item, check, text_of

MOST_PACKS = 33
REPLACED = "These instructions replace all that were given before them."


def _instructions(item: Item) -> Iterator[str]:
    """The texts of an item that may hold instructions: its own, or those of a conversation inherited."""
    told = item.get("instructions", ()) if item.get("type") == "inherited" else (item,)
    yield from map(text_of, told)


class FolderGrammar(Reading):
    """The order of what is said of a portable folder."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = ""
        self.packs: list[str] = []
        self.unsaved: list[str] | None = None
        """The calls whose changes the store has not got."""
        self.lost: set[str] = set()
        """Calls whose changes were lost with their holder."""
        self.set_up = False
        """Whether the set-up has run in the folder as its machine has it."""
        self._unsaved_since = 0
        self._setting_up = 0
        self._machine = ""
        self._here = ""
        """The snapshot of them on their machine."""
        self._made = 0
        self._offered: dict[int, Mapping[str, Any]] = {}
        self._merged: dict[int, str] = {}
        self._copied = ""
        """The last copy of a folder that the session works in as it is."""
        self._given: dict[str, str] = {}

    def folder_agrees(self, state: State) -> bool:
        """Whether the product's state of the same log knows the same folder."""
        known = state.workspace
        calls = None if known.unsaved is None else [*known.unsaved.call_ids]
        marked = (known.set_up, dict(known.given))
        told = (known.snapshot or "", [pack.name for pack in known.packs], calls, *marked)
        return told == (self.snapshot, self.packs, self.unsaved, self.set_up, self._given)

    def folder_is_told(self) -> None:
        """The model of a task in the folder is told of its instructions, once there is a folder to read."""
        portable = self.facts.get("portable") or {}
        if portable.get("untold") and self.snapshot and self._task["kind"] in ("user", "plan"):
            told = [text for item in self.conversation for text in _instructions(item)]
            # A compaction drops what a person has replaced.
            known = any(RULES in text or REPLACED in text for text in told)
            check(known, "a model works in a folder and has not got its rules")

    def _fact_workspace_base(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(not self.snapshot, "a session begins with two folders")
        self.snapshot, self.packs = fact["snapshot"], [pack["name"] for pack in fact["packs"]]
        check(self.packs and fact["packs"][0]["whole"], "a folder begins with a pack that lacks others")
        if self.task is not None:
            # A worker has fetched it. An agent is born with its own, before it has a task.
            self._is_warned_of(self.facts["portable"])

    def _fact_workspace_made(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["epoch"] == epoch, f"the folder is made by epoch {fact['epoch']} in {epoch}")
        check(not self.gone, f"the folder goes on, and what the processes {self.gone} wrote may be lost")
        self._made, self._setting_up = epoch, 0
        if fact.get("anew") or fact["machine"] != self._machine:
            self.set_up = False
        self._machine = fact["machine"]

    def _fact_workspace_setup_begun(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check((self.facts.get("portable") or {}).get("setup"), "a set-up begins that the session has not got")
        check(fact["epoch"] == epoch == self._made, f"a set-up begins in {epoch}, made by {self._made}")
        check(not self.set_up and not self._setting_up, "a folder that is set up, or is being, is set up")
        self._setting_up = epoch

    def _fact_workspace_setup_ended(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(self._setting_up == epoch, f"a set-up ends in {epoch} that began in {self._setting_up}")
        self._setting_up, self.set_up = 0, fact["result"] == "done"

    def _fact_workspace(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["parent"] == self.snapshot, f"a snapshot after {fact['parent']} follows {self.snapshot}")
        check(self._made == epoch, f"epoch {epoch} records a folder that epoch {self._made} made")
        whole = fact["pack"].get("whole", False)
        self.packs = [*([] if whole else self.packs), fact["pack"]["name"]]
        check(len(self.packs) <= MOST_PACKS, f"{len(self.packs)} packs make a folder")
        self.snapshot, self.unsaved = fact["snapshot"], None

    def _fact_workspace_unsaved(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        told = self.unsaved or []
        check(fact["call_ids"][: len(told)] == told, f"unsaved calls {told} are forgotten")
        since = self._unsaved_since if self.unsaved is not None else fact["since_ms"]
        check(fact["since_ms"] == since, f"what is unsaved since {since} is so since {fact['since_ms']}")
        self.unsaved, self._here = [*fact["call_ids"]], fact["snapshot"]
        self._unsaved_since = fact["since_ms"]

    def _fact_workspace_settled(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(self.unsaved is not None, "a folder is settled that was not unsaved")
        self.unsaved = None

    def _fact_workspace_rolled_back(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(self.facts.get("portable"), "a folder goes back that is not portable")
        kept = self.unsaved is not None and fact["to"] and fact["to"] == self._here
        check(kept or fact["to"] == self.snapshot, f"a folder goes back to {fact['to']}")
        check(self._made != epoch, "a folder that this very claim has made goes back")
        if not kept:
            check(set(self.unsaved or ()) <= set(fact["lost"]), "calls are lost that nobody is told of")
            self.unsaved = None
        check(self.gone <= set(fact["lost"]), f"of the processes {self.gone} not all are named as lost")
        self.gone.clear()
        self.lost |= set(fact["lost"])
        self._made = 0

    def _fact_workspace_copied(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(not self.facts.get("portable"), "a folder that is in the log is copied")
        call = self._task["calls"][fact["call_id"]]
        check(call["phase"] == "running", "a copy is taken by a call that does not run")
        self._copied = fact["copied"]["snapshot"]
        self._is_warned_of(fact["copied"]["portable"])

    def _is_warned_of(self, portable: Mapping[str, Any]) -> None:
        """People are told next of the folder's own set-up, which is not run."""
        if not portable.get("setup"):
            self._due.append(("a warning", lambda entry: entry.payload.get("message") == UNTRUSTED))

    def _fact_workspace_given(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        number = fact["agent_id"]
        check(number not in self.children, f"agent {number} is given a folder after it was made")
        check(fact["snapshot"] == self._copied, f"agent {number} begins with a copy that is not the last one")
        self._given[str(number)] = fact["folder"]

    def _fact_workspace_offered(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["agent_id"] in self.children, f"agent {fact['agent_id']} offers its folder to a stranger")
        self._offered[fact["agent_id"]] = fact["offer"]

    def _fact_workspace_merged(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        number = fact["agent_id"]
        offer = self._offered.get(number, {})
        check(self._task["calls"][fact["call_id"]]["phase"] == "running", "a merge that does not run is done")
        base = self._merged.get(number, offer.get("base"))
        check(fact["base"] == base, f"a merge of agent {number} counts from {fact['base']} and not {base}")
        self._merged[number] = fact["snapshot"]
