"""Warnings about rule files that were left out: each session hears of them once, until they change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from orchestrator.core.state import State
from orchestrator.protocol.events import WarningEvent
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.tools.rules.library import CommandRules

MOST_SHOWN: Final = 8
MOST_TOLD: Final = 10_000
"""Sessions of which a worker remembers what they heard."""


class RuleWarnings:
    """The warnings about rule files, and the sessions that have heard them."""

    def __init__(self, rules: CommandRules) -> None:
        self._rules = rules
        self._told: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def show(self, state: State, show: Callable[[JsonObject], None]) -> None:
        """Warns of files that are left out, if the session has not heard of them."""
        problems, session = self._rules.of(Path(state.in_force.cwd)).problems, state.facts.session_id
        if self._told.get(session, ()) == problems:
            return
        for problem in problems[:MOST_SHOWN]:
            show(written(WarningEvent(message=f"rules about commands: {problem}")))
        self._told[session] = problems
        while len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
