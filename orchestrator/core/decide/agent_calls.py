"""Calls of the `subagent_*` tools, and what each leads to; the assessment has done all look-ups."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.agent_views import SENT_CHARS, SUMMARY_CHARS, agent_of, envelope, one_line
from orchestrator.core.calls import Await
from orchestrator.core.commit_parts import SLOTS, Debit
from orchestrator.core.counts import counted
from orchestrator.core.decide.agent_create import make
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.cancel import cancel_line, flag_and_notify
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.mail_delivery import forget_children, publish_depths, take
from orchestrator.core.decide.variants import propose_variants
from orchestrator.core.decide.wait import await_agents
from orchestrator.core.ids import AgentId
from orchestrator.core.message_payloads import MessagePayload, Said
from orchestrator.core.narrowing import Widening
from orchestrator.core.timers import watchdog_timer
from orchestrator.core.tree import ACTIVE, ROOT, ChildChanges, Watchdog, pruned_flag
from orchestrator.core.turn_calls import Call
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.wire import json_text

MOST_PRUNED = 256
"""Agents that one call prunes: each is an event of the tree log, and may be a message and a flag."""


def agent_call(draft: Draft, call: Call, asked: c.AgentAssessment) -> None:
    """Carries out one call; a refusal that the state itself gives is the call's output."""
    try:
        _carry_out(draft, call, asked)
    except Widening as error:
        close(draft, call, str(error))


def _carry_out(draft: Draft, call: Call, asked: c.AgentAssessment) -> None:
    match asked:
        case c.Spawn() | c.Fork() | c.Helper():
            make(draft, call, asked)
        case c.Variants():
            propose_variants(draft, call, asked)
        case c.SendMessage():
            _send(draft, call, asked)
        case Await():
            await_agents(draft, call, asked)
        case c.SetWatchdog():
            _watchdog(draft, call, asked)
        case c.CancelAgent():
            _cancel(draft, call, asked)
        case c.Prune():
            _prune(draft, call, asked)
        case _:
            assert_never(asked)


# ── messages ──────────────────────────────────────────────────────────────────────────────────


def _send(draft: Draft, call: Call, asked: c.SendMessage) -> None:
    target, prompt = asked.target, asked.prompt if asked.prompt.strip() else ""
    child = draft.state.tree.children.get(target.agent_id)
    if target.marked or "canceled" in (target.status, child.status if child is not None else ""):
        close(draft, call, f"agent {target.agent_id} was canceled, for good: spawn another one")
        return
    draft.guard()
    _follow_up(draft, asked, prompt)
    sent = None
    if prompt or asked.interrupt or asked.label:
        payload: Said = {"prompt": prompt or None}
        if child is not None:
            payload["turn"] = child.turn
        if asked.label:
            payload["label"] = asked.label
        if prompt and target.finished and target.agent_id != ROOT:
            # The message will start it: the slot is paid for here, where it can be refused.
            draft.tree.debits.append(Debit(SLOTS, 1, f"limit:{SLOTS}"))
            payload["slot"] = True
        key = f"message:{draft.state.facts.agent_id}:{draft.state.requests}:{call.call_id}"
        post(draft, target, payload, key, interrupt=asked.interrupt)
        sent = sent_message(target.agent_id, one_line(prompt, SENT_CHARS), interrupt=asked.interrupt)
    close(draft, call, json_text(_described(draft, target)), sent=sent)


def post(draft: Draft, target: c.Target, payload: Said, key: str, interrupt: bool = False) -> None:
    """A message to another agent, and the event that tells of its inbox."""
    content: MessagePayload = {**envelope(draft.state, draft.moment.at_ms), **payload}
    draft.tree.send(target.session, "message", content, key, interrupt)
    parent = target.record.get("parent_session_id") or target.session
    targets = tuple(dict.fromkeys((parent, draft.state.facts.tree_id)))
    publish_depths(draft, draft.task_id, target.agent_id, target.session, targets)


def _follow_up(draft: Draft, asked: c.SendMessage, prompt: str) -> None:
    """New work for a child: a result that was not read is void, or it would answer for the new work."""
    child = draft.state.tree.children.get(asked.target.agent_id)
    if child is None:
        return
    changes: ChildChanges = {"label": asked.label} if asked.label else {}
    if prompt:
        stale = [m for m in draft.state.tree.inbox if m.kind == "completion" and m.agent_id == child.agent_id]
        take(draft, stale)
        changes["status"] = "running"
        changes["summary"] = one_line(prompt, SUMMARY_CHARS)
    if changes:
        draft.add(f.ChildChanged(child.agent_id, changes))


def _described(draft: Draft, target: c.Target) -> dict[str, object]:
    if target.agent_id == ROOT:
        named = ("label", "summary")
        known = {name: target.record.get(name) for name in named}
        return {"session_id": target.session, "agent_id": ROOT, **known}
    child = draft.state.tree.children.get(target.agent_id)
    if child is not None:
        agent = agent_of(draft.state.facts, child)
        if child.active and target.status in ACTIVE:
            # No message says that a child has begun; the registry does.
            agent["status"] = target.status
        shown: dict[str, object] = {**agent}
    else:
        hidden = {"turn", "agent_path", "reasoning_header"}
        shown = {name: value for name, value in target.record.items() if name not in hidden}
    regular, interrupts = target.pending
    return {**shown, "pending_messages": regular, "pending_interrupts": interrupts}


# ── watchdogs ─────────────────────────────────────────────────────────────────────────────────


def _watchdog(draft: Draft, call: Call, asked: c.SetWatchdog) -> None:
    id = asked.target.agent_id
    had = id in draft.state.tree.watchdogs
    if asked.cancel:
        if had:
            draft.clear_timer(watchdog_timer(id))
            draft.add(f.WatchdogEnded(id))
        action = "canceled" if had else "not_found"
    elif not had and len(draft.state.tree.watchdogs) >= draft.state.facts.tree_rules.watchdogs:
        most = draft.state.facts.tree_rules.watchdogs
        close(draft, call, f"an agent keeps at most {counted(most, 'watchdog')}; cancel one first")
        return
    else:
        arm(draft, Watchdog(id, asked.target.session, asked.interval_ms, asked.message, 0))
        action = "replaced" if had else "started"
    result = {
        "agent_id": id,
        "interval_s": asked.interval_ms / 1000,
        "message": asked.message,
        "action": action,
    }
    close(draft, call, json_text(result))


def sent_message(agent_id: AgentId, text: str | None, *, interrupt: bool) -> f.SentMessage:
    return {"agent_id": agent_id, "text": text, "interrupt": interrupt}


def arm(draft: Draft, watchdog: Watchdog, sent: f.SentMessage | None = None) -> None:
    due = draft.moment.at_ms + watchdog.interval_ms
    generation = draft.set_timer(watchdog_timer(watchdog.agent_id), due)
    draft.add(f.WatchdogSet(replace(watchdog, generation=generation), sent))


def watchdog_fired(draft: Draft, watchdog: Watchdog) -> None:
    """Sends the watchdog's message and sets its next time, in one decision."""
    target = c.Target(watchdog.agent_id, watchdog.session, "", "")
    payload: Said = {"prompt": watchdog.message, "watchdog": True}
    post(draft, target, payload, f"watchdog:{draft.state.facts.agent_id}:{watchdog.generation}")
    sent = sent_message(watchdog.agent_id, one_line(watchdog.message, SENT_CHARS), interrupt=False)
    arm(draft, watchdog, sent)


# ── cancel and prune ──────────────────────────────────────────────────────────────────────────


def _cancel(draft: Draft, call: Call, asked: c.CancelAgent) -> None:
    """Marks and tells the agent and all below it; each reports when what it ran is dead."""
    reason = one_line(asked.reason, 200) or "canceled"
    active = cancel_line(draft, asked.target, asked.below, reason)
    described = _described(draft, asked.target)
    names = (
        "session_id",
        "origin",
        "status",
        "label",
        "summary",
        "parent_session_id",
        "started_at_ms",
        "initial_message_count",
    )
    result: dict[str, object] = {name: described.get(name) for name in names}
    result["canceling"] = active
    close(draft, call, json_text(result))


def _prune(draft: Draft, call: Call, asked: c.Prune) -> None:
    chosen = [target for target in asked.targets if target.finished or not asked.completed_only]
    skipped = [target for target in asked.targets if target not in chosen]
    gone, left = chosen[:MOST_PRUNED], len(chosen[MOST_PRUNED:])
    errors = [f"at most {MOST_PRUNED} at once: {left} are left, ask again for them"] if left else []
    for target in gone:
        _take_off(draft, target)
    forget_children(draft, [t.agent_id for t in gone if t.agent_id in draft.state.tree.children])
    result = {
        "request": dict(asked.echo),
        "pruned": [target.session for target in gone],
        "skipped_active": [target.session for target in skipped],
        "unknown": list(asked.unknown),
        "errors": errors,
        "counts": {
            "pruned": len(gone),
            "skipped_active": len(skipped),
            "unknown": len(asked.unknown),
            "errors": len(errors),
        },
    }
    close(draft, call, json_text(result))


def _take_off(draft: Draft, target: c.Target) -> None:
    """Takes an agent off the list, for good: the flag keeps a late message from starting it again."""
    shown = SubagentSummary.model_validate(target.record)
    if not target.finished:
        flag_and_notify(draft, target.session, target.agent_id, "pruned", shown)
    draft.tree.note(pruned_flag(target.agent_id), "1")
    if target.agent_id in draft.state.tree.watchdogs:
        draft.clear_timer(watchdog_timer(target.agent_id))
        draft.add(f.WatchdogEnded(target.agent_id))
    if target.agent_id not in draft.state.tree.children:
        parent = str(target.record["parent_session_id"])
        key = f"gone:{draft.state.facts.agent_id}:{target.agent_id}"
        draft.tree.send(parent, "gone", {"agent_id": target.agent_id}, key)
    message = ev.SubagentLifecycle(
        event=LifecycleChange.DELETED,
        agent_id=target.agent_id,
        session_id=target.session,
        subagent=shown,
    )
    parent = target.record.get("parent_session_id") or draft.state.facts.session_id
    targets = tuple(dict.fromkeys((parent, draft.state.facts.tree_id)))
    draft.tree.publish(draft.task_id, message, targets)
