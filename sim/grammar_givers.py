"""Senders of ops, read a second time. Ids of people begin with their names: that is all that is believed.

A fact that an op led to names the one who sent it, as the door knew them. Which op that was is told by the
id in the fact, or by the input whose turn it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from orchestrator.core.entries import DENDRO, Entry
from sim.grammar_terms import REDACTED, check, named
from sim.grammar_tree import TreeGrammar

NAMED = ("named", "instructed", "queue_ordered", "queue_edited", "lookup", "answer")
"""Facts that only an op of somebody leads to; an answer may be a timer's as well."""
TIMER = "timer"
OWN = ("auto-", "spawn-")
"""Tasks that no submission of a person began."""


def _is_redaction(entry: Entry) -> bool:
    return entry.type == DENDRO and bool(entry.payload["kind"] == "redacted")


def sent_by(id: str, by: Mapping[str, Any] | None) -> None:
    """Holds the sender of what an op led to against the op's id; raises `Wrong`."""
    begin, dot, _ = id.partition(".")
    owner = begin.rpartition(":")[2]
    if id.startswith(OWN):
        check(by is None, f"{id} is nobody's, and the log says {by}")
    elif dot:
        check(by is not None, f"{id} was sent by {owner}, and the log says by nobody")
        assert by is not None
        check(by["via"] != "cli" or by["who"] == owner, f"{id} was sent by {owner}, and the log says {by}")


class GiverGrammar(TreeGrammar):
    """Facts with the sender of their op."""

    behalf: Mapping[str, Any] | None = None
    """The one who gave the last task that somebody gave; of an agent: of the root's task that led to it."""

    def __init__(self) -> None:
        super().__init__()
        self.made_for: dict[str, Mapping[str, Any] | None] = {}
        """For whom the agents work that were made here, by their sessions."""
        self.made_under: dict[str, Mapping[str, Any]] = {}
        """The settings of the turns that made them."""
        self.texts: set[str] = set()
        self._named: set[str] = set()
        self._epoch = 0
        self._changed_by: Mapping[str, Any] | None = None
        """By whom settings changed while inputs waited, until the next fact: an input's own change stands
        before its task. Where none waits it may be that of a person before."""

    def _begins_epoch(self, entry: Entry, epoch: int) -> None:
        """The first entry of each claim says who writes; texts that it names stand in the log."""
        fact = entry.payload if entry.type == DENDRO else {}
        if fact.get("kind") == "text":
            check(fact["sha256"] not in self.texts, "a text is kept a second time")
            is_its = fact["content"] == REDACTED or _digest(fact["content"]) == fact["sha256"]
            check(is_its, "a text has another digest")
            self.texts.add(fact["sha256"])
            return
        check(self._named <= self.texts, "a text that a claim names is not in the log")
        if epoch != self._epoch and epoch:
            check(fact.get("kind") == "claimed", f"epoch {epoch} begins with {named(entry)}")
            self._named = {fact[name] for name in ("settings", "rules") if fact.get(name)}
            if not self._named:
                # Who redacts has no worker's settings, and does nothing else.
                self._due.append(("what is redacted", _is_redaction))
            check(fact["worker"].startswith(fact["machine"]), f"{fact['worker']} writes on {fact['machine']}")
        else:
            check(fact.get("kind") != "claimed", f"epoch {epoch} begins twice")
        self._epoch = epoch

    def _is_given(self, fact: Mapping[str, Any]) -> None:
        """Takes a fact with its sender; raises `Wrong` if it cannot be that one."""
        kind, by = fact["kind"], fact.get("by")
        changed_by, self._changed_by = self._changed_by, None
        if kind == "configured":
            self.behalf = fact["session"].get("behalf")
            check(by is not None or fact["session"]["agent_id"], "a session was made by nobody")
        elif kind in ("task", "queued", "steered"):
            sent_by(fact["id"], by)
            if kind == "task" and changed_by is not None:
                sent_by(fact["id"], changed_by)
            if kind == "task" and not self.facts.get("behalf"):
                self.behalf = by or self.behalf
        elif kind in ("stopping", "closing"):
            sent_by(str(fact.get("by") or ""), fact.get("sender"))
        elif kind == "settings":
            check(by is not None, "settings were changed by nobody")
            self._changed_by = by if self.task is None and self.queue else None
        elif kind == "child":
            self.made_for[fact["child"]["session"]] = self.behalf
            self.made_under[fact["child"]["session"]] = self._task["settings"]
        elif kind == "answer" and fact["who"] != TIMER:
            check(
                by is not None and by["who"] == fact["who"], f"{fact['who']} answered, and the log says {by}"
            )
        elif kind in NAMED and kind != "answer":
            check(by is not None, f"{kind} is by nobody")

    def _event_session_configured(self, message: Mapping[str, Any], entry: Entry) -> None:
        """A client configured the session, and what it replaced has ended: the next input is of anybody."""
        self._changed_by = None
        wanted = {
            "session_id": self.facts["session_id"],
            "model": self.settings["model"],
            "reasoning_effort": self.settings["effort"],
            "thread_name": self.name or None,
        }
        told = {name: message.get(name) for name in wanted}
        check(told == wanted, f"a client is told {told}, and {wanted} holds")


def _digest(content: str | Mapping[str, Any]) -> str:
    return hashlib.sha256(content.encode()).hexdigest() if isinstance(content, str) else str(content["$blob"])


def works_for(session: str, configured: Entry, parent: GiverGrammar | None) -> None:
    """Holds for whom an agent works against the log of the one above it; raises `Wrong`."""
    behalf = configured.payload["session"].get("behalf")
    if parent is not None and session in parent.made_for:
        wanted = parent.made_for[session]
        check(behalf == wanted, f"an agent works for {behalf}, and the one above it for {wanted}")
        _works_under(configured.payload, parent.made_under[session])


def _works_under(fact: Mapping[str, Any], turn: Mapping[str, Any]) -> None:
    """An agent begins under the settings of the turn that made it; a helper under narrower ones."""
    own, reads = fact["settings"], bool(fact["session"].get("helper_call"))
    for name in ("model", "effort", "summary"):
        check(own.get(name) == turn.get(name), f"{name} of an agent is {own.get(name)}, not {turn.get(name)}")
    wanted = ("never", "read-only") if reads else (turn["approval_policy"], turn["sandbox_policy"]["mode"])
    found = own["approval_policy"], own["sandbox_policy"]["mode"]
    check(found == wanted, f"an agent works under {found}, and the turn that made it under {wanted}")
    check(not own.get("collaboration_mode"), "an agent has a mode that its maker agreed with a person")
