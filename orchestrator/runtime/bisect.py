"""Bisection of a refused step: when the tree refuses it, its parts are decided again, one by one.

A step holds several decisions, and its commit is taken or refused as a whole. Refused, it
is thrown away: what arrived goes back to the front, in order, and is decided one command a
step, until the one that the tree does not take is alone. That one becomes `CommitRefused`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from orchestrator.broker.records import Refused
from orchestrator.core import commands as c
from orchestrator.core.decide.draft import Note
from orchestrator.core.state import State
from orchestrator.protocol.ops import GetPath, Shutdown
from orchestrator.runtime.deltas import Delta
from orchestrator.runtime.intake import Unreadable

Arrived = c.Command | Note | Delta | Unreadable
Arrival = tuple[Arrived, str | None]
"""Something to decide (or decided already, or only to be shown), and the place of its entry in the SQ."""


class RefusedTwice(RuntimeError):
    """The decision in the place of a refused command was refused as well: a rule is wrong."""


@dataclass(slots=True)
class Bisect:
    """The commands of the step at hand, in the order in which they were decided."""

    arrived: list[Arrival] = field(default_factory=list)
    made: list[c.Command] = field(default_factory=list)
    """Commands that the runner made itself; it would make them again."""
    singly: int = 0
    """How many more commands are decided one a step."""

    def begin(self) -> None:
        self.arrived, self.made = [], []

    @property
    def full(self) -> bool:
        """Whether the step may take no more commands."""
        return bool(self.singly) and bool(self.arrived or self.made)

    def asks_for_file(self, before: State) -> str:
        """The first submission because of which the rollout's file is to be brought up to date."""
        ops = (command for command, _ in self.arrived if isinstance(command, c.Submitted))
        asked = (command.id for command in ops if isinstance(command.op, GetPath | Shutdown))
        return next(asked, before.closing or "")

    def committed(self) -> None:
        self.singly = max(0, self.singly - 1)

    def refused(self, answer: Refused, inbox: deque[Arrival]) -> None:
        """Puts back what arrived, or what it became."""
        decided = [*self.arrived, *((command, None) for command in self.made)]
        commands = [arrival for arrival in decided if not isinstance(arrival[0], (Delta, Note, Unreadable))]
        if len(commands) != 1:
            inbox.extendleft(reversed(self.arrived))
            self.singly = len(decided)
            return
        (command, sq_place) = commands[0]
        assert not isinstance(command, (Delta, Note, Unreadable))
        if isinstance(command, c.CommitRefused) and answer.reason == "budget_free":
            # Room was made between the two commits: it is tried once more.
            inbox.appendleft((command.command, sq_place))
            return
        if isinstance(command, c.CommitRefused):
            raise RefusedTwice(f"{command.reason}, then {answer.reason} {answer.detail}")
        refused = c.CommitRefused(command, answer.reason, answer.detail, _budget(answer))
        instead: Arrival = (refused, sq_place)
        kept = [instead if arrival is commands[0] else arrival for arrival in self.arrived]
        inbox.extendleft(reversed(kept if self.arrived else [instead]))


def _budget(answer: Refused) -> dict[str, Any]:
    """The account that refused, as events tell of it."""
    found = next((account for account in answer.budget if account.kind == answer.detail), None)
    return {} if found is None else {"kind": found.kind, "limit": found.limit, "used": found.spent}
