"""Making an agent: spawned blank, forked from this conversation, or a helper that only reads.

The child's whole beginning is in the parent's commit: its session, its first entries, its
slot, its place in the registry, its first submission. Either all of it is there or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import (
    SUMMARY_CHARS,
    agent_of,
    event_summary,
    one_line,
    record_of,
)
from orchestrator.core.birth import Birth, first_entries
from orchestrator.core.calls import HelperWork
from orchestrator.core.commands import Fork, Helper, Making, Spawn
from orchestrator.core.decide.helper_activity import STARTING
from orchestrator.core.decide.mail_delivery import inbox_event, watchers
from orchestrator.core.decide.wait import finish
from orchestrator.core.draft import SLOTS, SPAWNED, Debit, Draft, NewChild, TreeEvent
from orchestrator.core.entries import Entry
from orchestrator.core.history import call_output
from orchestrator.core.inheritance import bequest
from orchestrator.core.narrowing import helper_settings, narrowed
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import Call, Phase
from orchestrator.core.tree import AgentStatus, Child, TreeChanges, TreeView
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange, SubAgentInvocation
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.ops import UserInput
from orchestrator.protocol.wire import written


@dataclass(frozen=True, slots=True)
class Newborn:
    """A child about to be made."""

    making: Making
    origin: str
    facts: SessionFacts
    settings: TurnSettings
    inherited: tuple[Entry, ...] = ()
    inherited_items: int = 0

    @property
    def prompt(self) -> str:
        return self.making.prompt if self.making.prompt.strip() else ""


def make(draft: Draft, call: Call, asked: Spawn | Fork | Helper) -> None:
    """Makes the agent, or answers why not; `Widening` is the caller's to answer."""
    facts = draft.state.facts
    if facts.helper_call:
        finish(draft, call, "this agent only reads for another one: it cannot make agents")
        return
    if facts.depth >= facts.tree_rules.depth:
        most = facts.tree_rules.depth
        finish(draft, call, f"the tree's depth limit is {most}: an agent at this depth cannot make agents")
        return
    newborn = _newborn(draft, call, asked)
    _bear(draft, newborn)
    if isinstance(asked, Helper):
        _wait_for_helper(draft, call, asked)
    else:
        finish(draft, call, _result(draft, newborn, asked))


def _newborn(draft: Draft, call: Call, asked: Spawn | Fork | Helper) -> Newborn:
    making, turn = asked.making, draft.task.settings
    if isinstance(asked, Helper):
        settings = helper_settings(turn, making.model)
    else:
        settings = narrowed(turn, making.sandbox_mode, making.model)
    facts = replace(
        draft.state.facts,
        session_id=making.session,
        agent_id=making.agent_id,
        rollout_path=making.rollout_path,
        agent_path=f"{draft.state.facts.agent_path}/{making.agent_id}",
        parent_session=draft.state.facts.session_id,
        grandparent_session=draft.state.facts.parent_session,
        origin="fork" if isinstance(asked, Fork) else "spawn",
        born_in=draft.task.id,
        helper_call=call.call_id if isinstance(asked, Helper) else "",
    )
    newborn = Newborn(making, facts.origin, facts, settings)
    return _inheriting(draft, call, asked, newborn) if isinstance(asked, Fork) else newborn


def _inheriting(draft: Draft, call: Call, asked: Fork, newborn: Newborn) -> Newborn:
    forks = frozenset(other.call_id for other in draft.task.calls if other.name == call.name)
    content, items = bequest(draft.state.history, forks)
    parent = {"session": draft.state.facts.session_id, "seq": asked.seq, "chain": asked.head}
    told = call_output(call.item, _dumps(_fork_payload(draft, newborn, "child")))
    entries = (e.fact(f.Forked(parent, content)), e.item(dict(call.item)), e.item(told))
    return replace(newborn, inherited=entries, inherited_items=items)


def _fork_payload(draft: Draft, newborn: Newborn, role: str) -> dict[str, Any]:
    return {
        "role": role,
        "child_session_id": newborn.facts.session_id,
        "parent_session_id": draft.state.facts.session_id,
        "label": newborn.making.label,
        "summary": one_line(newborn.prompt, SUMMARY_CHARS),
        "prompt": newborn.prompt or None,
    }


def _bear(draft: Draft, newborn: Newborn) -> None:
    """The child, everywhere that it has to be known."""
    facts, making, prompt = newborn.facts, newborn.making, newborn.prompt
    draft.guard()
    status: AgentStatus = "queued" if prompt else "ready"
    tree = TreeView(
        status=status,
        slot=bool(prompt),
        label=making.label,
        summary=one_line(prompt, SUMMARY_CHARS),
        started_ms=draft.moment.at_ms,
    )
    if prompt:
        draft.tree.debits.append(Debit(SLOTS, 1, f"limit:{SLOTS}"))
    draft.tree.debits.append(Debit(SPAWNED, 1, f"limit:{SPAWNED}"))
    entries, title = _entries(draft, newborn, tree), tree.summary or ""
    draft.tree.children.append(NewChild(facts, entries, _first(newborn), newborn.settings, title))
    record = record_of(facts, tree)
    draft.tree.summary[f"a:{facts.agent_id}"] = record
    _tell(draft, facts, record)
    draft.add(f.ChildMade(_child(newborn, tree)))


def _child(newborn: Newborn, tree: TreeView) -> Child:
    return Child(
        agent_id=newborn.facts.agent_id,
        session=newborn.facts.session_id,
        origin=newborn.origin,
        status="queued" if newborn.prompt else "ready",
        started_ms=tree.started_ms,
        label=tree.label,
        summary=tree.summary,
        initial_messages=newborn.inherited_items,
        helper=bool(newborn.facts.helper_call),
    )


def _tell(draft: Draft, facts: SessionFacts, record: Mapping[str, Any]) -> None:
    created = ev.SubagentLifecycle(event=LifecycleChange.CREATED, subagent=event_summary(record))
    targets = watchers(facts)
    draft.tree.events += [
        TreeEvent(facts.born_in, created, targets, about={"record": record}),
        inbox_event(facts.born_in, facts.agent_id, facts.session_id, targets),
    ]


def _entries(draft: Draft, newborn: Newborn, tree: TreeView) -> tuple[Entry, ...]:
    """The child's log as it begins: who it is, what it inherits, its part in the tree, its standing."""
    meta = draft.state.meta
    birth = Birth(
        newborn.facts,
        newborn.settings,
        version=newborn.making.version,
        at_ms=draft.moment.at_ms,
        user_instructions=meta.get("instructions"),
        git=meta.get("git"),
    )
    own = first_entries(birth)
    if newborn.inherited:
        # What its model is told of the workspace stands in the conversation that it inherits.
        own = tuple(entry for entry in own if entry.type != e.RESPONSE_ITEM)
    role = Message(role="developer", content=(InputText(text=newborn.making.role),))
    standing: TreeChanges = {
        "status": "queued" if newborn.prompt else "ready",
        "slot": tree.slot,
        "label": tree.label,
        "summary": tree.summary,
        "started_ms": tree.started_ms,
    }
    return (*own, *newborn.inherited, e.item(role), e.fact(f.AgentChanged(standing)))


def _first(newborn: Newborn) -> dict[str, Any] | None:
    if not newborn.prompt:
        return None
    op = UserInput(items=(TextInput(text=newborn.prompt),))
    return {"id": f"spawn-{newborn.facts.agent_id}", "op": written(op)}


def _result(draft: Draft, newborn: Newborn, asked: Spawn | Fork) -> str:
    child = draft.state.tree.children[newborn.facts.agent_id]
    result = agent_of(draft.state.facts, child)
    result |= {"model": newborn.making.model, "pending_messages": 0, "pending_interrupts": 0}
    if isinstance(asked, Fork):
        result["payload"] = _fork_payload(draft, newborn, "parent")
    return _dumps(result)


def _wait_for_helper(draft: Draft, call: Call, asked: Helper) -> None:
    """Lets the call wait for its helper; no worker is held meanwhile."""
    making = asked.making
    # The wire knows no call without a label: clients that are strict could not read `null`.
    invocation = SubAgentInvocation(
        description=asked.description, label=making.label or "", prompt=making.prompt, model=making.model
    )
    call_id = CallId(call.call_id)
    work = HelperWork(making.agent_id, written(invocation), draft.moment.at_ms)
    draft.event(work.begin(call_id))
    draft.event(ev.SubAgentToolCallActivity(call_id=call_id, activity=STARTING))
    draft.add(f.CallMoved(call.call_id, Phase.WAITING, work=work))


def _dumps(value: Any) -> str:
    return orjson.dumps(value, default=dict).decode()
