"""The lines of `dendro exec --json`, held against a second reading of the turn that they tell of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.compaction import COMPACTED_MESSAGE
from orchestrator.gateways.exec_json import INTERRUPTED, ExecWriter
from orchestrator.views.turns import turn_records as r
from sim.told_turns import LoggedTurn

OF_NO_TURN = (r.StatusChanged, r.NameChanged, r.TurnsDropped, r.QueueChanged)
STATUSES = {"interrupted": "failed"}


def turn_of(change: r.Change) -> str:
    """The turn that a change is of; empty for those of the session."""
    if isinstance(change, OF_NO_TURN):
        return ""
    turn = change.turn
    return str(turn.id if isinstance(turn, r.Turn) else turn)


class ExecLines:
    """The lines of one turn, as a run writes them that hears it from its beginning."""

    def __init__(self) -> None:
        self._writer = ExecWriter()
        self._lines: list[Mapping[str, Any]] = []

    def takes(self, change: r.Change) -> None:
        self._lines += self._writer.receive(change)

    def unlike(self, logged: LoggedTurn) -> str:
        """How they tell the turn otherwise than its log has it; empty if they do not."""
        ended = [n for n, line in enumerate(self._lines) if line["type"] in ("turn.completed", "turn.failed")]
        begun = [n for n, line in enumerate(self._lines) if line["type"] == "turn.started"]
        if begun != [0] or len(ended) != (logged.status != "in_progress"):
            return f"it begins at {begun}, and ends at {ended}"
        if ended and (wrong := self._end(self._lines[ended[0]], logged)):
            return wrong
        items = [line["item"] for line in self._lines if "item" in line]
        numbers = list(dict.fromkeys(item["id"] for item in items if item["type"] != "web_search"))
        if numbers != sorted(numbers, key=lambda id: int(id.removeprefix("item_"))):
            return f"its items are numbered {numbers}"
        whole = [line["item"] for line in self._lines if line["type"] == "item.completed"]
        told = [item["text"] for item in whole if item["type"] == "agent_message"]
        # A compaction tells of its end in words, too.
        told = [text for text in told if text != COMPACTED_MESSAGE]
        if told != (said := [one[1] for one in logged.shown if one[0] == "message"]):
            return f"{told} were said instead of {said}"
        return self._commands(whole, logged)

    def _commands(self, whole: list[Mapping[str, Any]], logged: LoggedTurn) -> str:
        told = [
            (item["status"], item["exit_code"], item["aggregated_output"] or None)
            for item in whole
            if item["type"] == "command_execution"
        ]
        own = [
            (STATUSES.get(call[1], call[1]), call[2], call[3])
            for call in logged.calls.values()
            if call[0] == "command" and call[1] != "in_progress"
        ]
        key = repr
        if len(told) == len(own) and sorted(told, key=key) != sorted(own, key=key):
            return f"its commands are told as {told}, and are {own}"
        return "" if len(told) >= len(own) else f"{len(told)} commands are told of {len(own)}"

    def _end(self, line: Mapping[str, Any], logged: LoggedTurn) -> str:
        if (line["type"] == "turn.completed") != (logged.status == "completed"):
            return f"{line['type']} ends a turn that {logged.status}"
        if line["type"] == "turn.failed" and line["error"]["message"] != (logged.fault or INTERRUPTED):
            return f"it fails with {line['error']['message']!r}, not with {logged.fault!r}"
        return ""
