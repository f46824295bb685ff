"""Ending agents: who is marked, who is told, and who still owes word of the end.

A cancel flag holds from its commit on, for the agent and all below it: nothing starts there any more. The
message makes the agent stop what runs, and pass the word on. So it is enough to tell the uppermost
ones; the others are told at once where they are few, because that is sooner.

An agent may have a thousand children. Those that one commit does not tell are `to_end` in the state,
which owes the next of them (`EndChildren`), and nothing above is over before all were told and ended.
Their results that a cancelled agent has not read leave its inbox in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core import facts as f
from orchestrator.core.agent_views import child_summary, envelope
from orchestrator.core.commands import Target
from orchestrator.core.decide.agent_status import end_watchdogs
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.mail_delivery import publish_undelivered, take
from orchestrator.core.decide.process import stop_processes
from orchestrator.core.ids import AgentId
from orchestrator.core.message_payloads import CancelPayload
from orchestrator.core.timers import REAP_BELOW_TIMER, REAP_MS, REAP_TIMER
from orchestrator.core.tree import Child, cancel_flag
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary

MOST_TOLD = 96
"""Agents told by one decision: each is a message, an event of the tree log and a flag, a kilobyte and a half
in all."""


def begin_canceling(draft: Draft, reason: str) -> bool:
    """Keeps anything from starting in this agent from here on; False if it was cancelled before.

    The caller stops what runs. Mail that will not be read any more leaves the inbox.
    """
    tree = draft.state.tree
    if tree.canceling:
        return False
    draft.add(f.AgentChanged({"canceling": reason or "canceled"}))
    _leave_unread(draft)
    end_watchdogs(draft)
    stop_processes(draft)
    cancel_children(draft, reason)
    return True


def cancel_children(draft: Draft, reason: str) -> None:
    """Marks and tells every child, to do the same to its own: below a finished child, some may work."""
    tree = draft.state.tree
    waiting = frozenset(tree.to_end)
    ending = [id for id, child in tree.children.items() if _may_be_told(child) and id not in waiting]
    if len(ending) <= MOST_TOLD and not waiting:
        _tell(draft, ending, reason)
    elif ending:
        draft.add(f.ToEnd((*tree.to_end, *ending), reason or None))


def end_next(draft: Draft) -> None:
    """The next of the children that are to end, as many as a commit carries; then unread mail, the same."""
    tree = draft.state.tree
    if not tree.ends_in_pieces:
        raise DoesNotFit("no child is to be told of its end")
    if not tree.to_end:
        _leave_unread(draft)
        return
    draft.add(f.ToldToEnd(min(MOST_TOLD, len(tree.to_end))))
    telling = [id for id in tree.to_end[:MOST_TOLD] if _may_be_told(tree.children[id])]
    _tell(draft, telling, tree.end_reason or "")


def _leave_unread(draft: Draft) -> None:
    """Empties the inbox, as far as one commit carries it; people are told whose words these were."""
    mails = draft.state.tree.inbox[:MOST_TOLD]
    take(draft, mails)
    publish_undelivered(draft, [mail.key for mail in mails])


def pass_over(draft: Draft, session: str) -> None:
    """Skips a child whose queue is gone: no message reaches it, and nothing of it starts."""
    tree = draft.state.tree
    left = tuple(id for id in tree.to_end if tree.children[id].session != session)
    draft.add(f.ToEnd(left, tree.end_reason))


def _may_be_told(child: Child) -> bool:
    return child.status != "canceled" and not child.ending


def _tell(draft: Draft, agent_ids: Sequence[AgentId], reason: str) -> None:
    for id in agent_ids:
        child = draft.state.tree.children[id]
        flag_and_notify(draft, child.session, id, reason, child_summary(draft.state.facts, child))
    expect_ends(draft, agent_ids)


def cancel_line(draft: Draft, target: Target, below: Sequence[Target], reason: str) -> list[AgentId]:
    """Ends an agent and those at work below it; their numbers."""
    active = [agent for agent in (target, *below) if agent.at_work]
    # Where they are very many, the word goes down from one to the next.
    told = active if len(active) <= MOST_TOLD else [target]
    for agent in told:
        shown = SubagentSummary.model_validate(agent.record)
        flag_and_notify(draft, agent.session, agent.agent_id, reason, shown)
    expect_ends(draft, [agent.agent_id for agent in told])
    return [agent.agent_id for agent in active]


def expect_ends(draft: Draft, agent_ids: Sequence[AgentId]) -> None:
    """Makes these agents, as far as they are children, owe a report of their end.

    The timers are for agents that cannot report it: their worker renews its claim and does nothing else, or
    no worker serves their pool any more.
    """
    owing = [id for id in agent_ids if id in draft.state.tree.children]
    if len(owing) < len(agent_ids):
        draft.set_timer(REAP_BELOW_TIMER, draft.moment.at_ms + REAP_MS)
    if owing:
        draft.add(f.ChildrenChanged(tuple(owing), {"ending": True}))
        draft.set_timer(REAP_TIMER, draft.moment.at_ms + REAP_MS)


def heard_end(draft: Draft, agent_id: AgentId) -> None:
    """Notes that a child has ended as it was told to."""
    if draft.state.tree.children[agent_id].ending:
        draft.add(f.ChildChanged(agent_id, {"ending": False}))
        if not draft.state.tree.ending_children:
            draft.clear_timer(REAP_TIMER)


def flag_and_notify(
    draft: Draft, session: str, agent_id: AgentId, reason: str, shown: SubagentSummary | None = None
) -> None:
    """Sets the flag, which holds from this commit on; the message makes the agent stop what runs."""
    opening = envelope(draft.state, draft.moment.at_ms)
    payload: CancelPayload = {**opening, "reason": reason}
    key = f"cancel:{draft.state.facts.agent_id}:{agent_id}"
    draft.tree.send(session, "cancel", payload, key, interrupt=True)
    draft.tree.note(cancel_flag(agent_id), "1")
    message = ev.SubagentLifecycle(
        event=LifecycleChange.UPDATED, agent_id=agent_id, session_id=session, subagent=shown
    )
    targets = tuple(dict.fromkeys((draft.state.facts.session_id, draft.state.facts.tree_id)))
    draft.tree.publish(draft.task_id, message, targets, about={"agent_id": agent_id, "marked": True})
