"""Pages of an agent's log for a model: by time as the protocol has it, or by entry number.

Times page by the newest events and can skip some; a cursor cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from orchestrator.tools.subagents.arguments import LOGS_BYTES, LogsArguments
from orchestrator.tools.subagents.port import LoggedEvent


def page(session: str, events: Sequence[LoggedEvent], asked: LogsArguments) -> dict[str, Any]:
    """The part of a log that was asked for (LOGS), with where to go on."""
    in_time = [event for event in events if _within(event, asked)]
    limit = max(1, asked.limit)
    chosen = in_time[-limit:] if asked.cursor is None else in_time[:limit]
    shown = _fitting(chosen, min(asked.max_bytes or LOGS_BYTES, LOGS_BYTES))
    return {
        "session_id": session,
        "returned": len(shown),
        "total_available": len(in_time),
        "more_available": len(shown) < len(in_time),
        "earliest_ms": shown[0][1] if shown else None,
        "latest_ms": shown[-1][1] if shown else None,
        "cursor": shown[-1][0] if shown else asked.cursor,
        "events": [{"timestamp_ms": at_ms, "event": event} for _, at_ms, event in shown],
    }


def _within(event: LoggedEvent, asked: LogsArguments) -> bool:
    seq, at_ms, _ = event
    return (
        (asked.since_ms is None or at_ms > asked.since_ms)
        and (asked.before_ms is None or at_ms < asked.before_ms)
        and (asked.cursor is None or seq > asked.cursor)
    )


def _fitting(events: Sequence[LoggedEvent], most: int) -> list[LoggedEvent]:
    """As many as fit, from the oldest on."""
    shown, size = [], 0
    for event in events:
        size += len(orjson.dumps(event[2], default=dict))
        if size > most:
            break
        shown.append(event)
    return shown
