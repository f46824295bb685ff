"""The product's state of a log in the words of the log's second reading (`sim/grammar.py`)."""

from __future__ import annotations

from typing import Any

from orchestrator.core.state import State, Task


def told(state: State) -> dict[str, Any]:
    """The numbers and names that the fold knows of a session."""
    folded = state.task
    branch = folded.branch if folded is not None else None
    return {
        "task": folded and folded.id,
        "requests": state.requests,
        "queue": [waiting.id for waiting in state.queue],
        "closed": state.closed,
        "closing": state.closing or "",
        "generation": state.timers,
        "inbox": [mail.key for mail in state.tree.inbox],
        "children": {id: (child.status, child.turn) for id, child in state.tree.children.items()},
        "watchdogs": set(state.tree.watchdogs),
        "approved": set(state.approved),
        "status": state.tree.status or "",
        "turns": state.tree.turns,
        "used": state.tokens.total.total_tokens if state.tokens else 0,
        "items": len(state.conversation),
        "kept": len(branch.kept_user_texts if branch else state.kept_user_texts),
        "aside": len(state.history) if branch else None,
        "pinned": state.pinned,
        "shown": folded and folded.pinned,
        "earlier": list(state.earlier_turns),
        "looks_back": next(((one.client, one.id) for one in state.lookups if one.turn is not None), None),
        "rate_limits": state.rate_limits,
    }


def told_of_task(folded: Task) -> dict[str, Any]:
    """Those that it knows of a session's task."""
    return {
        "calls": {call.call_id: str(call.phase) for call in folded.calls},
        "retries": folded.stream_retries,
        "wait": folded.wait,
        "stopping": folded.stopping or "",
        "steered": len(folded.steered),
        "message": folded.last_message,
    }
