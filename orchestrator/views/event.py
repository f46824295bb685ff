"""An event as a reader gets it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from orchestrator.broker.follow import EqCursor
from orchestrator.core.frozen import record


@record
class Event:
    """An event as a client reads it: large texts are put back in."""

    id: str
    msg: dict[str, Any]
    cursor: EqCursor | None = field(default=None, compare=False)
    """Where to come back after it; None inside a replay."""
    at_ms: int = field(default=0, compare=False)
    """When it happened: the same live and in the log; 0 for a warning of the client's own."""
    seq: int = field(default=0, compare=False)
    """The entry of the log that it is, or that was the last one when it came up; 0 as for `at_ms`."""

    @property
    def type(self) -> str:
        return str(self.msg.get("type", ""))
