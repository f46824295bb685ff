"""A decision under construction, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.commands import Moment
from orchestrator.core.entries import Entry
from orchestrator.core.evolve import evolve
from orchestrator.core.state import State, Task


@dataclass(frozen=True, slots=True)
class Timer:
    """A deadline that becomes an SQ entry when it has passed, unless it was cleared or set anew."""

    id: str
    generation: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """A request for the fleet's queue of approvals, under the call's id."""

    call_id: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """What one commit makes visible at once. Each `event_msg` entry is an event on the EQ too."""

    entries: tuple[Entry, ...] = ()
    timers_set: tuple[Timer, ...] = ()
    timers_clear: tuple[str, ...] = ()
    approvals_open: tuple[OpenApproval, ...] = ()
    approvals_close: tuple[str, ...] = ()
    export: bool = False
    """The rollout's file is to be brought up to date before this becomes visible."""


class Draft:
    """Collects entries and keeps the state that they lead to.

    `evolve` gets 0 for `seq` here: the real numbers are given by the commit, and no rule
    reads a number that its own decision produced.
    """

    __slots__ = ("_clear", "_close", "_entries", "_open", "_set", "export", "moment", "state")

    def __init__(self, state: State, moment: Moment) -> None:
        self.state = state
        self.moment = moment
        self.export = False
        self._entries: list[Entry] = []
        self._set: list[Timer] = []
        self._clear: list[str] = []
        self._open: list[OpenApproval] = []
        self._close: list[str] = []

    @property
    def task(self) -> Task:
        """The task that holds the session; a rule that needs one raises without it."""
        if self.state.task is None:
            raise ValueError("no task holds the session")
        return self.state.task

    def add(self, *entries: Entry) -> None:
        for entry in entries:
            self.state = evolve(self.state, entry, 0)
            self._entries.append(entry)

    def event(self, type: str, /, **fields: Any) -> None:
        """An event of the running task."""
        self.add(e.event(self.task.id, type, **fields))

    def emit(self, message: Mapping[str, Any]) -> None:
        """An event of the running task whose message is complete already."""
        self.add(Entry(e.EVENT_MSG, message, self.task.id))

    def next_generation(self) -> int:
        generation = self.state.timers + 1
        self.add(e.timer(generation))
        return generation

    def set_timer(self, id: str, at_ms: int) -> int:
        generation = self.next_generation()
        self._set.append(Timer(id, generation, at_ms))
        return generation

    def clear_timer(self, id: str) -> None:
        self._clear.append(id)

    def open_approval(self, call_id: str, request: Mapping[str, Any]) -> None:
        self._open.append(OpenApproval(call_id, request))

    def close_approval(self, call_id: str) -> None:
        self._close.append(call_id)

    def decision(self) -> Decision:
        return Decision(
            tuple(self._entries),
            tuple(self._set),
            tuple(self._clear),
            tuple(self._open),
            tuple(self._close),
            self.export,
        )
