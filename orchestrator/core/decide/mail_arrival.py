"""Mail that arrives: messages of other sessions, and what each leads to."""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.agent_views import one_line
from orchestrator.core.commands import MailArrived
from orchestrator.core.commit_parts import SLOTS, Debit
from orchestrator.core.decide import agent, mail_delivery
from orchestrator.core.decide.agent_calls import (
    end_helper_call,
    helper_done,
    interrupt_below,
    variant_done,
)
from orchestrator.core.decide.call import routed_answer
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.task import stop, turn_away
from orchestrator.core.ids import AgentId
from orchestrator.core.sender import sender_of
from orchestrator.core.tree import ACTIVE, ChildChanges, Mail, MailKind, TreeChanges
from orchestrator.core.workspace import read_offer
from orchestrator.protocol.agents import LifecycleChange
from orchestrator.protocol.events import SubagentLifecycle
from orchestrator.protocol.wire import JsonMapping


def mail_arrived(draft: Draft, command: MailArrived) -> None:
    """Decides one message, in the order of the queue."""
    draft.sender = sender_of(command.payload.get("by"))
    match command.kind:
        case "message":
            _message(draft, command)
        case "completion":
            _completion(draft, command)
        case "status":
            _child_status(draft, command.payload)
        case "gone":
            mail_delivery.forget_children(draft, [AgentId(int(command.payload["agent_id"]))])
        case "ended":
            _ended(draft, command.payload)
        case "interrupt":
            interrupt_below(draft, command.key)
            stop(draft, "interrupted", command.key)
        case "cancel":
            end_agent(draft, str(command.payload.get("reason") or ""))
        case "answer":
            routed_answer(draft, command)
        case _:
            # A newer version's message: nothing here depends on it.
            pass


def _message(draft: Draft, command: MailArrived) -> None:
    content, tree = command.payload, draft.state.tree
    over = bool(tree.canceling or tree.pruned or draft.state.closing)
    over = over or (draft.state.closed and draft.state.facts.is_root)
    if content.get("slot"):
        _take_slot(draft, refused=over)
    if content.get("label") and not over:
        _rename(draft, content)
    prompt = content.get("prompt")
    if over or not prompt:
        draft.tree.take(command.interrupt)
        mail_delivery.publish_inbox(draft, draft.state.facts)
        if over:
            mail_delivery.publish_undelivered(draft, [command.key])
            if prompt and content["from"]["session_id"] == draft.state.facts.parent_session:
                agent.send_rest(draft, command.key)
        elif command.interrupt:
            stop(draft, "interrupted", command.key)
        return
    draft.add(f.MailReceived(_mail(command)))
    if command.interrupt:
        # What runs is stopped; the message begins the task that follows.
        stop(draft, "interrupted", command.key)


def _take_slot(draft: Draft, refused: bool) -> None:
    """Takes the slot that the sender paid for, in case the message starts this agent."""
    if refused or draft.state.tree.slot:
        draft.tree.debits.append(Debit(SLOTS, -1))
    else:
        draft.add(f.AgentChanged({"slot": True}))


def _rename(draft: Draft, content: JsonMapping) -> None:
    changes: TreeChanges = {"label": content["label"]}
    if content.get("prompt"):
        changes["summary"] = one_line(content["prompt"], 80)
    if draft.state.facts.is_root:
        draft.add(f.AgentChanged(changes))
    else:
        agent.change(draft, SubagentLifecycle(event=LifecycleChange.UPDATED), changes)


def _mail(command: MailArrived) -> Mail:
    sender = dict(command.payload["from"])
    content = {name: value for name, value in command.payload.items() if name not in {"from", "at_ms"}}
    if "workspace" in content:
        # What its packs are is in the state.
        content["workspace"] = {k: v for k, v in content["workspace"].items() if k != "packs"}
    kind: MailKind = "completion" if command.kind == "completion" else "message"
    at_ms = command.payload["at_ms"]
    return Mail(command.key, kind, command.n, command.interrupt, at_ms, sender, content)


def _completion(draft: Draft, command: MailArrived) -> None:
    """Records that a child came to rest; its result waits until it is read."""
    content = command.payload
    id, tree = content["from"]["agent_id"], draft.state.tree
    changes: ChildChanges = {
        "status": content["status"],
        "turn": content["turn"],
        "header": content.get("header"),
    }
    draft.add(f.ChildChanged(id, changes))
    if content.get("workspace") and agent.takes_offers(draft.state, id):
        draft.add(f.WorkspaceOffered(id, read_offer(content["workspace"])))
    if content["status"] == "canceled":
        _ended(draft, content)
    child = draft.state.tree.children[id]
    if child.pruned or tree.pruned or tree.canceling or draft.state.closing or draft.state.closed:
        draft.tree.take(command.interrupt)
        mail_delivery.publish_inbox(draft, draft.state.facts)
        if child.helper:
            # Somebody above has pruned it: the call that asked it waits for nothing else.
            end_helper_call(draft, child, content)
            variant_done(draft, child, content)
    elif child.helper:
        draft.tree.take(command.interrupt)
        mail_delivery.publish_inbox(draft, draft.state.facts)
        helper_done(draft, child, content)
        variant_done(draft, child, content)
    else:
        draft.add(f.MailReceived(_mail(command)))


def _ended(draft: Draft, content: JsonMapping) -> None:
    """Records that a child that was told to end has, with everything below it."""
    id = content["from"]["agent_id"]
    agent.heard_end(draft, id)
    _correct(draft, id, content)
    if content["evidence"] == "presumed" and not draft.state.facts.is_root:
        # This agent may be cancelled later than the one below: the proof of its end is of that one, too.
        draft.add(f.AgentChanged({"evidence": "presumed", "ended_below": "presumed"}))


def _correct(draft: Draft, agent_id: AgentId, content: JsonMapping) -> None:
    """Corrects the status of a child that a message did not start, and ends a wait for it."""
    tree, status = draft.state.tree, content.get("status", "running")
    child = tree.children[agent_id]
    if status in ACTIVE or not child.active:
        return
    unread = any(mail.kind == "completion" and mail.agent_id == agent_id for mail in tree.inbox)
    if status == "ready" and content["turn"] and not unread:
        status = "idle"
        mail_delivery.publish_read(draft, child, content)
    draft.add(f.ChildChanged(agent_id, {"status": status}))


def _child_status(draft: Draft, content: JsonMapping) -> None:
    id, tree = content["from"]["agent_id"], draft.state.tree
    child = tree.children.get(id)
    if child is None:
        return
    if content["status"] in ACTIVE:
        draft.add(f.ChildChanged(id, {"status": content["status"]}))
    else:
        _correct(draft, id, content)


def end_agent(draft: Draft, reason: str) -> None:
    """Ends this agent, and everything below it."""
    if draft.state.facts.is_root:
        return
    if not _begin_canceling(draft, reason):
        if draft.state.tree.ended:
            # Another agent asks now, which was not told.
            agent.send_ended(draft)
        return
    stop(draft, "canceled")


def _begin_canceling(draft: Draft, reason: str) -> bool:
    """Keeps anything from starting in this agent from here on; False if it was cancelled before.

    The caller stops what runs. Mail that will not be read any more leaves the inbox.
    """
    tree = draft.state.tree
    if tree.canceling:
        return False
    draft.add(f.AgentChanged({"canceling": reason or "canceled"}))
    mail_delivery.leave_unread(draft)
    agent.end_watchdogs(draft)
    agent.stop_processes(draft)
    agent.cancel_children(draft, reason)
    return True


def end_next(draft: Draft) -> None:
    """The next children that are to end, as many as a commit carries; then mail and input, the same."""
    tree = draft.state.tree
    if not draft.state.ends_in_pieces:
        raise DoesNotFit("no child is to be told of its end")
    if tree.to_end:
        agent.tell_next(draft)
    elif tree.canceling and tree.inbox:
        mail_delivery.leave_unread(draft)
    else:
        turn_away(draft)
