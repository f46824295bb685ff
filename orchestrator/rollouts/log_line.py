"""An entry of a log with its JSON, which is read once: for those who look at a line several times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.broker.records import StoredEntry
from orchestrator.core.entries import DENDRO
from orchestrator.core.entries.stored import Kind, stored_kind


class LogLine:
    """A stored entry; its JSON is read when somebody first asks for it, and changed by nobody."""

    __slots__ = ("_value", "stored")

    def __init__(self, stored: StoredEntry) -> None:
        self.stored = stored
        self._value: Mapping[str, Any] | None = None

    @property
    def value(self) -> Mapping[str, Any]:
        """The whole line: timestamp, type, payload, and the event's id if it is one."""
        if self._value is None:
            self._value = orjson.loads(self.stored.payload)
        return self._value

    @property
    def kind(self) -> Kind:
        """The record that the line is read as, known without its JSON."""
        return stored_kind(self.stored.payload)

    @property
    def is_fact(self) -> bool:
        """Whether the line's type is `dendro`, Dendro's own, which Codex's format has no line for."""
        return bool(self.value["type"] == DENDRO)
