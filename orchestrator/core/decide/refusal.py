"""Refused commits: the decision in place of a command of which nothing was written.

A refusal comes from what only the tree knows at that moment: a slot, a budget, a cancel flag, a
target. A call's refusal is its output, which the model reads; a cancel flag ends the agent.
"""

from __future__ import annotations

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commit_parts import SLOTS, SPAWNED
from orchestrator.core.decide.agent_calls import arm
from orchestrator.core.decide.budget import pause, unpriced
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.cancel import pass_over
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.mail import cancel, mail_arrived
from orchestrator.core.decide.takeover import took_over
from orchestrator.core.decide.task_end import fail
from orchestrator.core.timers import watchdog_timer
from orchestrator.core.tree import pruned_flag
from orchestrator.core.turn_calls import Phase

ENDED = "this agent was cancelled or pruned: it takes no more input"

_WHY = {
    SLOTS: "no slot is free: {detail} agents of this tree are at work; wait for one to finish, or cancel one",
    SPAWNED: "this tree may make {detail} agents in all, and it has; go on with those that there are",
    "unknown_target": "no such agent; refresh with subagent_list",
    "archived_target": "that agent is archived: nothing can be sent to it",
    "budget_spent": "the tree's budget of {detail} is spent: no agent can be made until more is added",
    "queue_full": "that agent's queue is full; try again later",
}


def commit_refused(draft: Draft, command: c.CommitRefused) -> None:
    """Decides anew, in the state that the refused command met."""
    refused = command.command
    if command.reason == "marked":
        _ended(draft, refused, command.detail)
        return
    match refused:
        case c.CallAssessed(call_id):
            _call_refused(draft, call_id, _why(command))
        case c.TimerFired(id):
            _watchdog_refused(draft, id, command.reason)
        case c.EndChildren():
            pass_over(draft, command.detail)
        case c.BeginRequest() if command.reason in {"budget_spent", "budget_reserved"}:
            pause(draft, command)
        case c.BeginRequest() if command.reason == "budget_unpriced":
            fail(draft, unpriced(draft.task.settings.model))
        case c.BeginRequest():
            fail(draft, _why(command))
        case c.Submitted(id):
            # A word to an agent that is gone, or too busy to be told.
            draft.add(e.error(id, _why(command)))
        case _:
            raise DoesNotFit(f"{type(refused).__name__} was refused: {_why(command)}")


def _why(command: c.CommitRefused) -> str:
    text = _WHY.get(command.reason)
    return text.format(detail=command.detail) if text else f"refused: {command.reason} {command.detail}"


def _ended(draft: Draft, refused: c.Command, mark: str) -> None:
    """An agent that was cancelled ends; one that was only taken off the list stays as it is."""
    if draft.state.task is None and mark == pruned_flag(draft.state.facts.agent_id):
        draft.add(f.AgentChanged({"pruned": True}))
    else:
        cancel(draft, "cancelled from above")
    if isinstance(refused, c.Submitted):
        draft.add(e.error(refused.id, ENDED))
    elif isinstance(refused, c.MailArrived):
        # It starts nothing any more, but what it brought (a slot, a place in the inbox) is given back.
        mail_arrived(draft, refused)
    elif isinstance(refused, c.TookOver):
        # What the lost holder had begun is in doubt all the same, and nobody saw it end.
        took_over(draft, refused)


def _call_refused(draft: Draft, call_id: str, text: str) -> None:
    call = draft.task.call(call_id)
    if call is None or call.phase is not Phase.PROPOSED:
        raise DoesNotFit(f"call {call_id} cannot be refused now")
    close(draft, call, text)


def _watchdog_refused(draft: Draft, timer: str, reason: str) -> None:
    """A watchdog whose target is gone ends; one whose target has a full queue skips this message."""
    for agent_id, watchdog in draft.state.tree.watchdogs.items():
        if timer == watchdog_timer(agent_id):
            if reason == "queue_full":
                arm(draft, watchdog)
            else:
                draft.add(f.WatchdogEnded(agent_id))
            return
