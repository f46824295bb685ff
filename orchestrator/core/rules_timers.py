"""A deadline has passed; a stale generation means that it was set anew or no longer matters."""

from __future__ import annotations

from orchestrator.core import entries as e
from orchestrator.core.commands import TimerFired
from orchestrator.core.draft import Draft
from orchestrator.core.rules_approval import resolve
from orchestrator.core.rules_task import RETRY_TIMER, approval_timer


def timer_fired(draft: Draft, command: TimerFired) -> None:
    """A retry's delay is over, or nobody answered an approval in time."""
    task = draft.state.task
    if task is None:
        return
    if command.id == RETRY_TIMER:
        if task.wait == command.generation:
            draft.add(e.retry_due())
        return
    for call in task.awaiting:
        if command.id == approval_timer(call.call_id) and call.spec.get("timer") == command.generation:
            resolve(draft, call, "denied", "timer")
