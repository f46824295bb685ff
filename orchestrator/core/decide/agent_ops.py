"""Ops of people about agents of a tree: a message to one, its end, a stop for all.

A person speaks through the root's queue, so that everything has one order there; the root sends the op on
by message, whatever its model is doing. `decide.agent_calls` has what a model may do with its tools. An agent
that a person wakes needs no slot: it is at work at once.
"""

from __future__ import annotations

from orchestrator.core import entries as e
from orchestrator.core.agent_views import MESSAGE_BYTES, envelope, one_line
from orchestrator.core.commands import Submitted, Target
from orchestrator.core.decide.cancel import cancel_line
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.mail_delivery import key_of_person, publish_depths
from orchestrator.core.message_payloads import InterruptPayload, MessagePayload, Said
from orchestrator.protocol.ops import CancelAgent, MessageAgent

REASON_CHARS = 200


def message_agent(draft: Draft, command: Submitted, op: MessageAgent) -> None:
    """A message to the agent, which reads it as an instruction."""
    target = _target(draft, command, op.agent_id)
    if target is None:
        return
    if target.marked or target.status == "canceled":
        draft.add(e.error(command.id, f"agent {target.agent_id} was cancelled: it takes no more input"))
        return
    if not op.text.strip():
        draft.add(e.error(command.id, "there is nothing to say: the text is empty"))
        return
    if len(op.text.encode()) > MESSAGE_BYTES:
        text = f"too long: a message has at most {MESSAGE_BYTES:,} bytes; write it to a file and name that"
        draft.add(e.error(command.id, text))
        return
    said: Said = {"prompt": op.text, "person": command.who or command.client}
    content: MessagePayload = {**envelope(draft.state, draft.moment.at_ms), **said}
    key = key_of_person(command.client, command.id)
    draft.tree.send(target.session, "message", content, key, op.interrupt)
    _publish_inbox(draft, command.id, target)


def _publish_inbox(draft: Draft, id: str, target: Target) -> None:
    parent = target.record.get("parent_session_id") or target.session
    watching = tuple(dict.fromkeys((parent, draft.state.facts.tree_id)))
    publish_depths(draft, id, target.agent_id, target.session, watching)


def cancel_agent(draft: Draft, command: Submitted, op: CancelAgent) -> None:
    """Marks and tells the agent and everything at work below it."""
    if op.agent_id == 0:
        draft.add(e.error(command.id, "the root is not cancelled: `shutdown` ends it, and its tree first"))
        return
    target = _target(draft, command, op.agent_id)
    if target is None:
        return
    reason = one_line(op.reason, REASON_CHARS) or f"cancelled by {command.who or 'a person'}"
    cancel_line(draft, target, command.agents[1:], reason)


def _target(draft: Draft, command: Submitted, agent_id: int) -> Target | None:
    if not draft.state.facts.is_root:
        draft.add(
            e.error(command.id, f"{command.op.type} is for the root of a tree; this is an agent of one")
        )
        return None
    if not command.agents:
        draft.add(e.error(command.id, f"there is no agent {agent_id} in this tree"))
        return None
    return command.agents[0]


def interrupt_below(draft: Draft, key: str) -> None:
    """Stops what the agents below do, from above to below: none of them is cancelled.

    A finished agent is told as well: below it, some may be at work.
    """
    for child in draft.state.tree.children.values():
        if child.status != "canceled":
            told, when = f"{key}:{child.agent_id}", InterruptPayload(at_ms=draft.moment.at_ms)
            draft.tree.send(child.session, "interrupt", when, told, interrupt=True)
