"""The names of a session's timers; each becomes an SQ entry when its time has passed."""

from __future__ import annotations

from collections.abc import Mapping

RETRY_TIMER = "retry"
"""A model request is to be tried again."""
BUDGET_TIMER = "budget"
"""The timer that a commit makes due when it makes room in the tree's budget."""
REAP_TIMER = "reap"
REAP_BELOW_TIMER = "reap-below"
"""The reap timer for agents further below, whose end is told to their own parents alone."""
REAP_MS = 30_000
"""Milliseconds until the claim of a cancelled agent that has not reported its end is taken from its
worker."""
FOLDER_TIMER = "folder"
"""A folder's changes that the store has not got are to be tried again."""
FOLDER_MS = 600_000
"""Milliseconds until then."""
STANDING_TIMERS: Mapping[str, int] = {REAP_TIMER: REAP_MS, REAP_BELOW_TIMER: REAP_MS}
"""Timers that fire again, after so many milliseconds, until they are cleared: the worker that one woke may be
lost before it has read why, and another must then be woken."""


def approval_timer(call_id: str) -> str:
    return f"approval:{call_id}"


def wait_timer(call_id: str) -> str:
    """The deadline of a call that waits for agents."""
    return f"wait:{call_id}"


def watchdog_timer(agent_id: int) -> str:
    return f"watchdog:{agent_id}"
