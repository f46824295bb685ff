"""An agent's own status in its tree: how it begins, and how it comes to rest.

Roots have no status. Each change is an entry of the agent's own log, an event of the
tree log for its parent and the root, and a field of the registry, all in one commit. A
slot is given back by the very commit that ends the work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.core import facts as f
from orchestrator.core.agent_views import envelope, event_summary, record_of, told_result
from orchestrator.core.commit_parts import SLOTS, Debit, TreeNote
from orchestrator.core.decide.child_folder import offered
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.mail_delivery import publish_depths, watchers
from orchestrator.core.history import Item
from orchestrator.core.message_payloads import (
    Completion,
    CompletionPayload,
    EndedPayload,
    Envelope,
    Offered,
    StatusPayload,
    ToParent,
)
from orchestrator.core.state import State
from orchestrator.core.task_kinds import Outcome
from orchestrator.core.timers import watchdog_timer
from orchestrator.core.tree import ACTIVE, AgentStatus, TreeChanges
from orchestrator.core.workspace import write_offer
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import CancelEvidence, LifecycleChange, SubagentStatus

_STATUS_AFTER: Mapping[str, AgentStatus] = {"completed": "ready", "failed": "failed", "canceled": "canceled"}
"""An agent's status after a task; after any other end (an interrupt) the agent is ready, with nothing to
read."""
_HEADING = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
HEADER_CHARS = 120


def change(draft: Draft, told: ev.SubagentLifecycle, changes: TreeChanges) -> None:
    """Records changes of the agent's status and informs those who watch it; `told` says what has changed."""
    draft.add(f.AgentChanged(changes))
    facts, tree = draft.state.facts, draft.state.tree
    record = record_of(facts, tree)
    who = {"agent_id": facts.agent_id, "session_id": facts.session_id, "subagent": event_summary(record)}
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
    if tree.evidence != "proved":
        draft.add(f.AgentChanged({"evidence": "proved"}))
    if not tree.slot:
        draft.tree.debits.append(Debit(SLOTS, 1))
    if tree.status == "running":
        draft.add(f.AgentChanged({"slot": True}))
        return
    if tree.status != "queued" and not _asked_by_parent(draft):
        # The parent's await has to know that there is something to wait for again.
        again: StatusPayload = {**_opening(draft), "status": "running"}
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
    result: CompletionPayload = {
        **_opening(draft),
        "status": status,
        "turn": turn,
        "born_in": facts.born_in or "",
        "header": tree.header,
        "evidence": tree.evidence,
        "tokens": _tokens(draft),
        **_offered(draft.state),
        **_completion(outcome, told_result(message or tree.canceling or None)),
    }
    _send_to_parent(draft, "completion", result, f"done:{facts.session_id}:{turn}")


def _offered(state: State) -> Offered:
    offer = offered(state)
    return {} if offer is None else {"workspace": write_offer(offer)}


def send_ended(draft: Draft) -> None:
    """Nothing of this agent, or below it, is left; it had come to rest before it was cancelled."""
    facts, tree = draft.state.facts, draft.state.tree
    end: EndedPayload = {
        **_opening(draft),
        "evidence": tree.evidence,
        "status": tree.status,
        "turn": tree.turns,
        "born_in": facts.born_in or "",
    }
    _send_to_parent(draft, "ended", end, f"ended:{facts.session_id}:{draft.moment.at_ms}")


def _completion(outcome: str, text: str | None) -> Completion:
    match outcome:
        case "completed":
            return {"completion_status": "completed", "completion": {"Completed": {"last_message": text}}}
        case "failed":
            return {"completion_status": "failed", "completion": {"Failed": {"message": text or "failed"}}}
        case "canceled":
            return {"completion_status": "canceled", "completion": {"Canceled": {"reason": text}}}
        case _:
            return {"completion_status": None, "completion": None}


def _opening(draft: Draft) -> Envelope:
    return envelope(draft.state, draft.moment.at_ms)


def _send_to_parent(draft: Draft, kind: str, payload: ToParent, key: str) -> None:
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


def header_of(reasoning: Item) -> str:
    """The first bold words of a reasoning item; empty without any."""
    found = (_HEADING.search(str(part.get("text", ""))) for part in reasoning.get("summary") or ())
    return next((" ".join(one[1].split())[:HEADER_CHARS] for one in found if one), "")


# ── watchdogs ───────────────────────────────────────────────────────────────────────


def end_watchdogs(draft: Draft) -> None:
    # A snapshot does not keep the order in which they were set.
    for agent_id in sorted(draft.state.tree.watchdogs):
        draft.clear_timer(watchdog_timer(agent_id))
        draft.add(f.WatchdogEnded(agent_id))
