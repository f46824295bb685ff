"""Types and times of stored lines, for who reads a log by its JSON and imports neither facts nor events."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

EVENT_MSG = "event_msg"
DENDRO = "dendro"


@lru_cache(maxsize=64)
def milliseconds(timestamp: str) -> int:
    """The moment that a line's `timestamp` says."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
