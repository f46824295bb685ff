"""The processes of a log that is read a second time: when one may begin, and that each ends once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.entries import Entry
from orchestrator.core.state import State
from sim.grammar_state import Reading
from sim.grammar_terms import check

MOST = 16


class ProcessGrammar(Reading):
    """The order of what is said of processes."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, dict[str, Any]] = {}
        self.unread: dict[int, str] = {}
        """The last words of ended processes, as far as the model has not read them."""
        self._number = 0

    def names_its_processes(self, text: str) -> None:
        """A conversation that was compacted names the processes that it goes on with."""
        left = [number for number in (*self.living, *self.unread) if f"session ID {number}:" not in text]
        check(not left or "$blob" in text, f"processes {left} are named nowhere any more")

    def processes_agree(self, state: State) -> bool:
        """Whether the product's state of the same log knows the same processes."""
        known = {one.number: one.stopping for one in state.processes.living}
        ended = {one.number: one.unread for one in state.processes.ended}
        own = {number: one["stopping"] for number, one in self.living.items()}
        return (known, ended) == (own, self.unread)

    def begins(self, what: str, epoch: int) -> None:
        """Work begins under a claim: nothing is left of an earlier one's processes."""
        left = [number for number, one in self.living.items() if one["epoch"] != epoch]
        check(not left, f"{what} begins in epoch {epoch}, and processes {left} are of an earlier one")

    def task_is_over(self, outcome: str) -> None:
        if outcome in ("interrupted", "canceled"):
            check(not self.living, f"a task was {outcome}, and processes {[*self.living]} live on")

    def session_is_closed(self) -> None:
        check(not self.living, f"the session is closed, and processes {[*self.living]} live on")

    def _fact_process_numbered(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["number"] == self._number + 1, f"number {fact['number']} follows {self._number}")
        self._number = fact["number"]

    def _fact_process(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        call = self._task["calls"].get(fact["call_id"])
        running = call is not None and call["phase"] == "running"
        check(running, f"process {fact['number']} goes on behind a call that does not run")
        check(fact["number"] == self._number, f"process {fact['number']} goes on, and {self._number} began")
        check((fact["epoch"], fact["turn"]) == (epoch, self._task["id"]), "a process of another turn")
        self.living[fact["number"]] = {**fact, "stopping": False}
        check(len(self.living) <= MOST, f"{len(self.living)} processes live")
        assert call is not None
        call["kept"] = True

    def _fact_processes_stopping(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        for number in fact["numbers"]:
            check(not self.living[number]["stopping"], f"process {number} is stopped twice")
            self.living[number]["stopping"] = True

    def _fact_process_over(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        process = self.living.pop(fact["number"], None)
        check(process, f"process {fact['number']} ends, and does not live")
        assert process is not None
        end = self._last
        assert end is not None
        told = (end.id, end.payload.get("type"), end.payload.get("call_id"))
        wanted = (process["turn"], "exec_command_end", process["call_id"])
        check(told == wanted, f"the end of process {fact['number']} is told as {told}")
        if process["epoch"] != epoch:
            self.gone.add(process["call_id"])
            self.doubted.append(f"process {fact['number']}")
        if fact.get("exit_code") is not None:
            self.unread[fact["number"]] = fact.get("unread", "")
            self.unread = dict([*self.unread.items()][-MOST:])

    def _fact_process_read(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["number"] in self.unread, f"process {fact['number']} is read twice")
        del self.unread[fact["number"]]

    def _event_terminal_interaction(self, message: Mapping[str, Any], entry: Entry) -> None:
        process = self.living.get(int(message["process_id"]))
        fits = process is not None and not process["stopping"] and process["tty"]
        check(fits, f"something is typed to process {message['process_id']}")
        assert process is not None
        check(message["call_id"] == process["call_id"], "typed words are told under another call")
