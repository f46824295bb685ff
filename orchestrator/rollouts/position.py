"""A place in a session's log, with all that was folded up to it."""

from __future__ import annotations

from orchestrator.core.frozen import record
from orchestrator.core.state import State


@record
class Position:
    """A session's state and where in the log it was folded up to."""

    state: State
    seq: int
    head: bytes
