"""A deadline has passed; a stale generation means that it was set anew or no longer matters."""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.calls import AwaitWork, timer_of
from orchestrator.core.commands import TimerFired
from orchestrator.core.decide.agent_calls import watchdog_fired
from orchestrator.core.decide.approval import resolve
from orchestrator.core.decide.ask import BY_TIMER, give_up
from orchestrator.core.decide.budget import resume
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.elicitation import UNANSWERED, decide_elicitation
from orchestrator.core.decide.wait import timed_out
from orchestrator.core.decide.workspace import folder_timer_fired
from orchestrator.core.timers import (
    BUDGET_TIMER,
    FOLDER_TIMER,
    REAP_BELOW_TIMER,
    REAP_TIMER,
    RETRY_TIMER,
    approval_timer,
    wait_timer,
    watchdog_timer,
)
from orchestrator.core.turn_calls import Phase


def timer_fired(draft: Draft, command: TimerFired) -> None:
    """Decides the timer of a retry, an approval, a wait, a watchdog, a budget, a reap or a folder."""
    if command.id == FOLDER_TIMER:
        folder_timer_fired(draft)
        return
    if command.id == BUDGET_TIMER:
        resume(draft)
        return
    if command.id in (REAP_TIMER, REAP_BELOW_TIMER):
        # Claims were taken from those that did not act; the next workers may be lost as well, so it stands.
        left = draft.state.tree.ending_children if command.id == REAP_TIMER else command.left
        if not left:
            draft.clear_timer(command.id)
        return
    for watchdog in draft.state.tree.watchdogs.values():
        if command.id == watchdog_timer(watchdog.agent_id) and command.generation == watchdog.generation:
            watchdog_fired(draft, watchdog)
            return
    task = draft.state.task
    if task is None:
        return
    waiting = task.waiting
    if waiting is not None and command.id == wait_timer(waiting.call_id):
        wait = waiting.work
        if isinstance(wait, AwaitWork) and wait.timer == command.generation and not task.stopping:
            timed_out(draft, waiting, wait)
        return
    if command.id == RETRY_TIMER:
        if task.wait == command.generation:
            draft.add(f.RetryDue())
        return
    for asked in task.open_elicitations:
        if command.id == approval_timer(asked.id) and asked.timer == command.generation:
            decide_elicitation(draft, asked, UNANSWERED, BY_TIMER)
            return
    for call in task.requests:
        if command.id != approval_timer(call.call_id) or timer_of(call.work) != command.generation:
            continue
        if task.stopping and call.phase is Phase.ASKING:
            # Its task ends it; an approval is denied all the same, which starts nothing.
            continue
        if call.phase is Phase.ASKING:
            give_up(draft, call)
        else:
            resolve(draft, call, "denied", BY_TIMER)
