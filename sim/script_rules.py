"""Scripts, read a second time: what people and the model are told of those that could not be read."""

from __future__ import annotations

from orchestrator.core.entries import EVENT_MSG, RESPONSE_ITEM, Entry
from sim.ledger import Ledger, Reading
from sim.observer import Observer

LOST_TWICE = "the command cannot be read: the process that reads scripts was lost twice with it, or too slow"
AGAIN = "retry without sandbox?"
NEVER = ", and the approval policy is never: not run"


class ScriptRules:
    """The rule `readings`; see `sim/invariants_of_processes.py`."""

    def __init__(self, watch: Observer, ledger: Ledger) -> None:
        self._watch, self._readings = watch, ledger.readings

    def entry(self, session: str, entry: Entry) -> None:
        """Called when the second reading of the log has taken the entry."""
        payload = entry.payload
        readings = self._readings.get(str(payload.get("call_id")))
        if not readings:
            return
        if entry.type == EVENT_MSG and payload["type"] == "exec_approval_request":
            reason = payload.get("reason") or ""
            if AGAIN not in reason:
                self._told(session, entry, readings, reason, "the command looks destructive")
        elif entry.type == RESPONSE_ITEM and payload.get("type") == "function_call_output":
            reason, never, _ = str(payload.get("output")).partition(NEVER)
            if never:
                self._told(session, entry, readings, reason, "the command is dangerous")

    def _told(
        self, session: str, entry: Entry, readings: list[Reading], reason: str, destructive: str
    ) -> None:
        """A reason names the one thing that is true: it destroys something, or nobody could read it."""
        told = destructive in reason, LOST_TWICE in reason
        wanted = {(one.destroys, one.unread and not one.destroys) for one in readings}
        if told not in wanted:
            seen = f"{session}: {entry.payload['call_id']} is told as {reason!r}; it was read as {readings}"
            self._watch.broken("readings", seen)
        if told[1]:
            self._watch.reach.saw("readings")
