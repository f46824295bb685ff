"""An agent itself: its status, its folder, and how it is cancelled.

Roots have no status. Each change is an entry of the agent's own log, an event of the
tree log for its parent and the root, and a field of the registry, all in one commit. A
slot is given back by the very commit that ends the work.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from orchestrator.core import agent_views as views
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Call, CopyWork, Phase
from orchestrator.core.commands import ChildSpec, FolderCopied, Target
from orchestrator.core.commit_parts import (
    REAP_BELOW_TIMER,
    REAP_MS,
    REAP_TIMER,
    SLOTS,
    Debit,
    TreeNote,
    watchdog_timer,
)
from orchestrator.core.decide.draft import DoesNotFit, Draft, header_of, publish_depths, watchers
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import replace
from orchestrator.core.history import Item
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.core.sender import sender_of
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.core.tree import ACTIVE, AgentStatus, Child, TreeChanges, cancel_flag
from orchestrator.core.user_turns import Outcome
from orchestrator.core.workspace import Copied, Offer, write_offer
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import CancelEvidence, LifecycleChange, SubagentStatus, SubagentSummary

_STATUS_AFTER: Mapping[str, AgentStatus] = {"completed": "ready", "failed": "failed", "canceled": "canceled"}
"""An agent's status after a task; after any other end (an interrupt) the agent is ready, with nothing to
read."""


def change(draft: Draft, told: ev.SubagentLifecycle, changes: TreeChanges) -> None:
    """Records changes of the agent's status and informs those who watch it; `told` says what has changed."""
    draft.add(f.AgentChanged(changes))
    facts, tree = draft.state.facts, draft.state.tree
    record = views.record_of(facts, tree)
    who = {
        "agent_id": facts.agent_id,
        "session_id": facts.session_id,
        "subagent": views.event_summary(record),
    }
    event = told.model_copy(update=who)
    about: TreeNote = {"record": record}
    draft.tree.publish(facts.born_in, event, watchers(facts), inbox=facts.session_id, about=about)
    draft.tree.note(f"a:{facts.agent_id}", record)


def took_task(draft: Draft) -> None:
    """A task holds the agent from here; a restart that nobody paid for takes a slot beyond any limit."""
    facts, tree = draft.state.facts, draft.state.tree
    if facts.is_root:
        return
    draft.guard()
    if tree.evidence != tree.ended_below:
        draft.add(f.AgentChanged({"evidence": tree.ended_below}))
    if not tree.slot:
        draft.tree.debits.append(Debit(SLOTS, 1))
    if tree.status == "running":
        draft.add(f.AgentChanged({"slot": True}))
        return
    if tree.status != "queued" and not _asked_by_parent(draft):
        # The parent's await has to know that there is something to wait for again.
        again: views.StatusPayload = {**_opening(draft), "status": "running"}
        _send_to_parent(draft, "status", again, f"status:{tree.turns}:{draft.task.id}")
    told = ev.SubagentLifecycle(event=LifecycleChange.STATUS, status=SubagentStatus.RUNNING)
    change(draft, told, {"status": "running", "slot": True})


def _asked_by_parent(draft: Draft) -> bool:
    """Whether the parent wrote knowing of the last end; a message that crossed it was written before."""
    parent, tree = draft.state.facts.parent_session, draft.state.tree
    from_parent = [mail for mail in tree.inbox if mail.sender["session_id"] == parent]
    return any(mail.content.get("turn") == tree.turns for mail in from_parent)


def come_to_rest(draft: Draft) -> None:
    """The last task ended and none follows: the result goes to the parent, the slot back to the tree."""
    facts, tree, over = draft.state.facts, draft.state.tree, draft.over
    if facts.is_root or draft.state.task is not None or tree.ended:
        return
    if not tree.canceling:
        if over is not None:
            _rest(draft, over.outcome, over.message)
    elif tree.ending_children or draft.state.processes.living:
        # Its end is told when everything below it has ended: a cancel that is done is done for all.
        return
    elif tree.status not in ACTIVE:
        draft.add(f.AgentChanged({"ended": True}))
        send_ended(draft)
    else:
        _rest(draft, "canceled", over.message if over is not None else None)


def _rest(draft: Draft, outcome: Outcome, message: str | None) -> None:
    facts, tree = draft.state.facts, draft.state.tree
    status: AgentStatus = _STATUS_AFTER.get(outcome, "ready")
    turn = tree.turns + 1
    if tree.slot:
        draft.tree.debits.append(Debit(SLOTS, -1))
    told = ev.SubagentLifecycle(
        event=LifecycleChange.STATUS,
        status=SubagentStatus(status),
        cancel=CancelEvidence(tree.evidence) if status == "canceled" else None,
    )
    rest: TreeChanges = {"status": status, "slot": False, "turns": turn, "ended": bool(tree.canceling)}
    change(draft, told, rest)
    result: views.CompletionPayload = {
        **_opening(draft),
        "status": status,
        "turn": turn,
        "born_in": facts.born_in or "",
        "header": tree.header,
        "evidence": tree.evidence,
        "tokens": _tokens(draft),
        **_offered(draft.state),
        **_completion(outcome, views.told_result(message or tree.canceling or None)),
    }
    _send_to_parent(draft, "completion", result, f"done:{facts.session_id}:{turn}")


def _offered(state: State) -> views.Offered:
    offer = offered(state)
    return {} if offer is None else {"workspace": write_offer(offer)}


def send_ended(draft: Draft) -> None:
    """Nothing of this agent, or below it, is left; it had come to rest before it was cancelled."""
    facts, tree = draft.state.facts, draft.state.tree
    end: views.EndedPayload = {
        **_opening(draft),
        "evidence": tree.evidence,
        "status": tree.status,
        "turn": tree.turns,
        "born_in": facts.born_in or "",
    }
    _send_to_parent(draft, "ended", end, f"ended:{facts.session_id}:{draft.moment.at_ms}")


def send_rest(draft: Draft, key: str) -> None:
    """This agent rests, and a message of its parent has not started it: the parent waits for nothing."""
    facts, tree = draft.state.facts, draft.state.tree
    if tree.status is None or tree.status in ACTIVE or (tree.canceling and not tree.ended):
        # Its end is told when it comes.
        return
    rest: views.RestPayload = {
        **_opening(draft),
        "status": tree.status,
        "turn": tree.turns,
        "born_in": facts.born_in or "",
    }
    _send_to_parent(draft, "status", rest, f"rest:{facts.session_id}:{key}")


def _completion(outcome: str, text: str | None) -> views.Completion:
    match outcome:
        case "completed":
            return {"completion_status": "completed", "completion": {"Completed": {"last_message": text}}}
        case "failed":
            return {"completion_status": "failed", "completion": {"Failed": {"message": text or "failed"}}}
        case "canceled":
            return {"completion_status": "canceled", "completion": {"Canceled": {"reason": text}}}
        case _:
            return {"completion_status": None, "completion": None}


def _opening(draft: Draft) -> views.Envelope:
    return views.envelope(draft.state, draft.moment.at_ms)


def _send_to_parent(draft: Draft, kind: str, payload: views.ToParent, key: str) -> None:
    parent = draft.state.facts.parent_session
    assert parent is not None, "only a root has no parent, and no status"
    outbound = draft.tree.send(parent, kind, payload, key)
    if outbound.counted:
        facts = draft.state.facts
        watching = dict.fromkeys((facts.grandparent_session or parent, facts.tree_id))
        above = facts.ancestors[-1]
        publish_depths(draft, facts.born_in, above, parent, watching)


def _tokens(draft: Draft) -> int:
    tokens = draft.state.tokens
    return tokens.total.total_tokens if tokens is not None else 0


def heading(draft: Draft, item: Item) -> None:
    """The first bold words of an agent's reasoning are its header, for good."""
    if draft.state.facts.is_root or draft.state.tree.header is not None or item.get("type") != "reasoning":
        return
    if header := header_of(item):
        told = ev.SubagentLifecycle(event=LifecycleChange.REASONING_HEADER, reasoning_header=header)
        change(draft, told, {"header": header})


# ── the end of watchdogs ──────────────────────────────────────────────────────────────────────────


def end_watchdogs(draft: Draft) -> None:
    # A snapshot does not keep the order in which they were set.
    for agent_id in sorted(draft.state.tree.watchdogs):
        end_watchdog(draft, agent_id)


def end_watchdog(draft: Draft, agent_id: AgentId) -> None:
    """Ends the watchdog that this agent keeps on another one, if it does."""
    if agent_id in draft.state.tree.watchdogs:
        draft.clear_timer(watchdog_timer(agent_id))
        draft.add(f.WatchdogEnded(agent_id))


# ── child folder ──────────────────────────────────────────────────────────────────────────────────
# The folder of an agent: at first a copy of its parent's, and what it offers to its parent in the end.
#
# In a portable tree the copy is what the log names last. A folder of one machine is in no log: it is
# copied first, by a call that runs, and then the agents of that response are made, all from one copy.
#
#     to be made ──► running: the folder is copied, the store has the copy ──► to be made ──► made


NOT_SHARED = (
    "workspace: the agents of this tree work in a folder each, and none writes to another's; leave "
    '`workspace` out, or say "own"'
)
NOT_STORED = (
    "not made: the last changes of the folder are not stored yet, so no copy of it can be made. Try again "
    "when they are; a background event tells of it"
)


def unfit_folder(state: State, spec: ChildSpec) -> str | None:
    """The reason why an agent cannot be given such a folder now; None if it can."""
    if state.facts.portable is None:
        return None
    if spec.workspace == "shared":
        return NOT_SHARED
    return NOT_STORED if state.workspace.unsaved is not None else None


# ── copies of a folder of one machine ─────────────────────────────────────────────────────────────


def _is_copied(state: State, spec: ChildSpec) -> bool:
    """Whether the agent is to have a copy of a folder that only a machine has."""
    return state.facts.portable is None and spec.workspace == "own"


def copy_for(state: State, spec: ChildSpec) -> Copied | None:
    """The copy that the agent begins with: one that this response had taken; None where it needs none."""
    known, task = state.workspace.copied, state.task
    if not _is_copied(state, spec) or known is None or task is None:
        return None
    return known if (known.request, known.cwd) == (state.requests, task.settings.cwd) else None


def lacks_copy(state: State, spec: ChildSpec) -> bool:
    """Whether the folder is to be copied before the agent can be made."""
    return _is_copied(state, spec) and copy_for(state, spec) is None


def begin_copy(draft: Draft, call: Call) -> None:
    """Has the folder copied; the call is looked at again when the store has the copy."""
    draft.guard()
    work = CopyWork(draft.state.requests)
    draft.add(f.CallMoved(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, work=work))


def folder_copied(draft: Draft, command: FolderCopied) -> None:
    """The store has a copy of the folder: the call that asked for it is to be assessed again."""
    call = draft.task.call(command.call_id)
    if call is None or call.phase is not Phase.RUNNING or not isinstance(call.work, CopyWork):
        raise DoesNotFit(f"call {command.call_id} copies no folder")
    if draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} makes no agent: the task is being stopped")
    copied = replace(command.copied, request=call.work.request)
    draft.add(f.WorkspaceCopied(call.call_id, copied))
    if command.warning:
        draft.event(ev.WarningEvent(message=command.warning))
    draft.add(f.CallMoved(call.call_id, Phase.PROPOSED))


def moved(path: str, copied: Copied, tree: TreeId) -> str:
    """The path in an agent's copy of a path in the folder that was copied; others stay."""
    if path != copied.folder and not path.startswith(f"{copied.folder.rstrip('/')}/"):
        return path
    top = copied.portable.path(tree)
    return posixpath.normpath(f"{top}/{posixpath.relpath(path, copied.folder)}")


def facts_in_copy(facts: SessionFacts, copied: Copied) -> SessionFacts:
    return replace(facts, portable=copied.portable, workspace=None)


def settings_in_copy(settings: TurnSettings, copied: Copied, tree: TreeId) -> TurnSettings:
    """The settings of an agent in its copy: nothing outside of it is recorded, and nothing is written."""
    policy = {name: value for name, value in settings.sandbox_policy.items() if name != "writable_roots"}
    cwd = posixpath.normpath(f"{copied.portable.path(tree)}/{copied.within}")
    return replace(settings, cwd=cwd, sandbox_policy=policy)


# ── content and offers ────────────────────────────────────────────────────────────────────────────


def began_with(parent: State, copied: Copied | None) -> tuple[Entry, ...]:
    """The entry that names the content of a new agent's folder: the packs are its parent's, within one
    tree."""
    known = parent.workspace
    if copied is not None:
        return (e.fact(f.WorkspaceBegun(copied.snapshot, (copied.pack,), copied.omitted)),)
    if parent.facts.portable is None or known.snapshot is None:
        return ()
    return (e.fact(f.WorkspaceBegun(known.snapshot, known.packs, known.omitted)),)


def offered(state: State) -> Offer | None:
    """The folder that an agent tells its parent of as it comes to rest; None if it has none to merge."""
    known, facts = state.workspace, state.facts
    if facts.portable is None or facts.helper_call is not None or known.snapshot is None:
        return None
    packs = tuple(dict.fromkeys((*known.base_packs, *known.packs)))
    return Offer(known.snapshot, known.base, packs, known.change, known.unsaved is not None)


def takes_offers(state: State, child: AgentId) -> bool:
    """Whether what a child has changed can be merged into this session's folder."""
    return state.facts.portable is not None or str(child) in state.workspace.given


# ── cancel ────────────────────────────────────────────────────────────────────────────────────────
# Ending agents: who is marked, who is told, and who still owes word of the end.
#
# A cancel flag holds from its commit on, for the agent and all below it: nothing starts there any more.
# The message makes the agent stop what runs, and pass the word on. So it is enough to tell the uppermost
# ones; the others are told at once where they are few, because that is sooner.
#
# An agent may have a thousand children. Those that one commit does not tell are `to_end` in the state,
# which owes the next of them (`EndChildren`), and nothing above is over before all were told and ended.
# Results that a cancelled agent has not read leave its inbox in the same way, and input its queue.


MOST_TOLD = 96
"""Agents told by one decision: each is a message, an event of the tree log and a flag, a kilobyte and a half
in all."""


def cancel_children(draft: Draft, reason: str) -> None:
    """Marks and tells every child, to do the same to its own: below a finished child, some may work."""
    tree = draft.state.tree
    waiting = frozenset(tree.to_end)
    ending = [id for id, child in tree.children.items() if _may_be_told(child) and id not in waiting]
    if len(ending) <= MOST_TOLD and not waiting and not draft.apart:
        _tell(draft, ending, reason)
    elif ending:
        draft.add(f.ToEnd((*tree.to_end, *ending), reason or None, draft.sender))


def tell_next(draft: Draft) -> None:
    """The next of the children that are to end, as many as a commit carries."""
    tree = draft.state.tree
    draft.sender = sender_of(tree.end_by)
    draft.add(f.ToldToEnd(min(MOST_TOLD, len(tree.to_end))))
    telling = [id for id in tree.to_end[:MOST_TOLD] if _may_be_told(tree.children[id])]
    _tell(draft, telling, tree.end_reason or "")
    _clear_reap(draft)


def pass_over(draft: Draft, session: str) -> None:
    """Skips a child whose queue is gone: no message reaches it, and nothing of it starts."""
    tree = draft.state.tree
    left = tuple(id for id in tree.to_end if tree.children[id].session != session)
    draft.add(f.ToEnd(left, tree.end_reason, sender_of(tree.end_by)))
    _clear_reap(draft)


def _may_be_told(child: Child) -> bool:
    return child.status != "canceled" and not child.ending


def _tell(draft: Draft, agent_ids: Sequence[AgentId], reason: str) -> None:
    for id in agent_ids:
        child = draft.state.tree.children[id]
        flag_and_notify(draft, child.session, id, reason, views.child_summary(draft.state.facts, child))
    expect_ends(draft, agent_ids)


def cancel_line(draft: Draft, target: Target, below: Sequence[Target], reason: str) -> list[AgentId]:
    """Ends an agent and those at work below it; their numbers."""
    active = [agent for agent in (target, *below) if agent.at_work]
    # Where they are very many, the word goes down from one to the next.
    told = active if len(active) <= MOST_TOLD else [target]
    for agent in told:
        shown = SubagentSummary.model_validate(agent.record)
        flag_and_notify(draft, agent.session, agent.agent_id, reason, shown)
    for agent in active:
        end_watchdog(draft, agent.agent_id)
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
        _clear_reap(draft)


def _clear_reap(draft: Draft) -> None:
    """Clears the timer of reports that are owed, if no child owes one."""
    if not draft.state.tree.ending_children:
        draft.clear_timer(REAP_TIMER)


def flag_and_notify(
    draft: Draft, session: str, agent_id: AgentId, reason: str, shown: SubagentSummary | None = None
) -> None:
    """Sets the flag, which holds from this commit on; the message makes the agent stop what runs."""
    opening = views.envelope(draft.state, draft.moment.at_ms)
    payload: views.CancelPayload = {"from": opening["from"], "at_ms": opening["at_ms"], "reason": reason}
    if draft.sender is not None:
        payload["by"] = draft.sender.wire()
    key = f"cancel:{draft.state.facts.agent_id}:{agent_id}"
    draft.tree.send(session, "cancel", payload, key, interrupt=True)
    draft.tree.note(cancel_flag(agent_id), "1")
    message = ev.SubagentLifecycle(
        event=LifecycleChange.UPDATED, agent_id=agent_id, session_id=session, subagent=shown
    )
    targets = tuple(dict.fromkeys((draft.state.facts.session_id, draft.state.facts.tree_id)))
    draft.tree.publish(draft.task_id, message, targets, about={"agent_id": agent_id, "marked": True})


def stop_processes(draft: Draft) -> None:
    """Lets every process be killed; what stops waits for the proof."""
    living = [one.number for one in draft.state.processes.living if not one.stopping]
    if living:
        draft.add(f.ProcessesStopping(tuple(living)))
