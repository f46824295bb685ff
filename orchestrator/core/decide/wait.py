"""Waiting for agents: a phase of a call, decided from the session's own log.

No worker is held while it lasts. What may end it arrives in the session's queue: a message, or
the deadline's timer.
"""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.calls import Await, AwaitWork
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.mail_delivery import await_result, collect, in_order, is_instruction
from orchestrator.core.state import State
from orchestrator.core.timers import wait_timer
from orchestrator.core.tree import Mail
from orchestrator.core.turn_calls import Call, Phase


def await_agents(draft: Draft, call: Call, asked: Await) -> None:
    """Lets the call wait; it ends at once if something is there, or nothing can come (`end_wait`)."""
    children = draft.state.tree.listed_children
    if not children:
        close(draft, call, "there is no agent to wait for; spawn or fork one first")
        return
    unknown = [id for id in asked.agent_ids if id not in children]
    if unknown:
        close(draft, call, f"not a child of yours: {unknown}; refresh with subagent_list")
        return
    deadline = draft.moment.at_ms + asked.timeout_ms
    generation = draft.next_generation()
    work = AwaitWork(asked.agent_ids, generation, deadline)
    draft.add(f.CallMoved(call.call_id, Phase.WAITING, work=work))
    draft.set_timer_of(wait_timer(call.call_id), generation, deadline)


def end_wait(draft: Draft) -> None:
    """Ends the task's wait for agents if there is a reason to."""
    task = draft.state.task
    call = task.waiting if task is not None and not task.stopping else None
    if call is None or not isinstance(call.work, AwaitWork):
        return
    mails = _matching(draft.state, call.work)
    if mails or _instructed(draft.state) or not _something_to_come(draft.state, call.work):
        _end(draft, call, mails, timed_out=False)


def timed_out(draft: Draft, call: Call, wait: AwaitWork) -> None:
    """The deadline passed first."""
    _end(draft, call, _matching(draft.state, wait), timed_out=True)


def _end(draft: Draft, call: Call, mails: list[Mail], *, timed_out: bool) -> None:
    ready = collect(draft, mails) if mails else []
    draft.clear_timer(wait_timer(call.call_id))
    close(draft, call, await_result(draft.state, ready, injected=False, timed_out=timed_out and not ready))


def _matching(state: State, wait: AwaitWork) -> list[Mail]:
    """The messages that this await returns. Those of agents that it does not name stay where they are."""
    named = wait.agent_ids
    mails = [mail for mail in in_order(state.tree.inbox) if not is_instruction(state.facts, mail)]
    if not named:
        return mails
    return [mail for mail in mails if mail.agent_id in named or mail.agent_id not in state.tree.children]


def _instructed(state: State) -> bool:
    """A message from above: the next request carries it, so the wait is over."""
    return any(is_instruction(state.facts, mail) for mail in state.tree.inbox)


def _something_to_come(state: State, wait: AwaitWork) -> bool:
    named = wait.agent_ids
    return any(not named or child.agent_id in named for child in state.tree.active_children)
