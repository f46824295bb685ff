"""Creates an agent: spawned blank, forked from this conversation, or a helper that only reads.

The child's whole beginning is in the parent's commit: its session, its first entries, its
slot, its place in the registry, its first submission. Either all of it is there or none.
"""

from __future__ import annotations

from dataclasses import replace

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
from orchestrator.core.commands import ChildSpec, Fork, Helper, Spawn
from orchestrator.core.commit_parts import SLOTS, SPAWNED, Debit, NewSubmission, TreeNote, new_session
from orchestrator.core.compaction import newest_texts, stored_texts
from orchestrator.core.context import context_told, standing_instructions
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.child_folder import (
    began_with,
    begin_copy,
    copy_for,
    facts_in_copy,
    lacks_copy,
    moved,
    settings_in_copy,
    unfit_folder,
)
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.helper_activity import STARTING
from orchestrator.core.decide.mail_delivery import publish_depths, watchers
from orchestrator.core.entries import Entry
from orchestrator.core.entries.stored import encode_json
from orchestrator.core.frozen import record
from orchestrator.core.history import call_output
from orchestrator.core.inheritance import inherited_history
from orchestrator.core.lines import given
from orchestrator.core.modes import back_to_code, child_settings, task_settings
from orchestrator.core.narrowing import helper_settings, narrowed
from orchestrator.core.settings import Origin, SessionFacts, TurnSettings
from orchestrator.core.tree import AgentRecord, AgentStatus, Child, TreeChanges, TreeView
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.core.workspace import Copied
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange, SubAgentInvocation
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.ops import UserInput
from orchestrator.protocol.wire import json_text, written

CLIENT = "tree"
"""The client of the submission that an agent begins with."""


@record
class ChildSession:
    """A child about to be made."""

    spec: ChildSpec
    origin: Origin
    facts: SessionFacts
    settings: TurnSettings
    inherited: tuple[Entry, ...] = ()
    inherited_items: int = 0
    copied: Copied | None = None
    """The copy of a folder of one machine that it works in."""

    @property
    def prompt(self) -> str:
        return self.spec.prompt if self.spec.prompt.strip() else ""


def make(draft: Draft, call: Call, asked: Spawn | Fork | Helper) -> None:
    """Makes the agent, or answers why not; `Widening` is the caller's to answer."""
    if (why := may_not_make(draft) or unfit_folder(draft.state, asked.spec)) is not None:
        close(draft, call, why)
    elif lacks_copy(draft.state, asked.spec):
        begin_copy(draft, call)
    elif isinstance(asked, Helper):
        begin_helper(draft, asked, call.call_id)
        work = HelperWork(asked.spec.agent_id, written(invocation_of(asked)), draft.moment.at_ms)
        draft.add(f.CallMoved(call.call_id, Phase.WAITING, work=work))
    else:
        created = _child_session(draft, asked)
        created = _inheriting(draft, call, asked, created) if isinstance(asked, Fork) else created
        _create(draft, created)
        close(draft, call, _result(draft, created, asked))


def may_not_make(draft: Draft) -> str | None:
    """The reason why this agent makes no others; None if it may."""
    facts = draft.state.facts
    if facts.helper_call is not None:
        return "this agent only reads for another one: it cannot make agents"
    if facts.depth >= (most := facts.tree_rules.depth):
        return f"the tree's depth limit is {most}: an agent at this depth cannot make agents"
    return None


def begin_helper(draft: Draft, asked: Helper, call_id: CallId) -> None:
    """Makes a helper whose events are told under `call_id`; no worker is held while it works."""
    _create(draft, _child_session(draft, asked, call_id))
    work = HelperWork(asked.spec.agent_id, written(invocation_of(asked)), draft.moment.at_ms)
    draft.event(work.begin(call_id))
    draft.event(ev.SubAgentToolCallActivity(call_id=call_id, activity=STARTING))


def invocation_of(asked: Helper) -> SubAgentInvocation:
    """The request to a helper, as events tell it."""
    spec = asked.spec
    # The wire knows no call without a label: clients that are strict could not read `null`.
    return SubAgentInvocation(
        description=asked.description, label=spec.label or "", prompt=spec.prompt, model=spec.model
    )


def _child_session(
    draft: Draft, asked: Spawn | Fork | Helper, helper_call: CallId | None = None
) -> ChildSession:
    spec, turn = asked.spec, child_settings(draft.task.settings)
    origin: Origin = "fork" if isinstance(asked, Fork) else "spawn"
    if isinstance(asked, Helper):
        settings = helper_settings(turn, spec.model)
    else:
        settings = narrowed(turn, spec.sandbox_mode, spec.model)
    facts = replace(
        draft.state.facts,
        session_id=spec.session,
        agent_id=spec.agent_id,
        rollout_path=spec.rollout_path,
        agent_path=f"{draft.state.facts.agent_path}/{spec.agent_id}",
        parent_session=draft.state.facts.session_id,
        grandparent_session=draft.state.facts.parent_session,
        origin=origin,
        born_in=draft.task.id,
        helper_call=helper_call,
        imported_from=None,
    )
    copied = copy_for(draft.state, spec)
    if copied is None:
        return ChildSession(spec, origin, facts, settings)
    settings = settings_in_copy(settings, copied, facts.tree_id)
    return ChildSession(spec, origin, facts_in_copy(facts, copied), settings, copied=copied)


def _inheriting(draft: Draft, call: Call, asked: Fork, created: ChildSession) -> ChildSession:
    forks = frozenset(other.call_id for other in draft.task.calls if other.name == call.name)
    content, items = inherited_history(draft.state.history, forks)
    parent = f.ForkedAt(session=draft.state.facts.session_id, seq=asked.seq, chain=asked.head)
    told = call_output(call.item, json_text(_fork_payload(draft, created, "child")))
    texts = tuple(stored_texts(newest_texts(draft.state)))
    forked = f.Forked(parent, content, texts, tuple(standing_instructions(draft.state.history)))
    mode = (back_to_code(),) if draft.task.settings.collaboration_mode is not None else ()
    narrowed = context_told(task_settings(draft.task.settings), created.settings)
    said = map(e.item, (dict(call.item), told, *([narrowed] if narrowed else []), *mode))
    entries = (e.fact(forked), *said)
    return replace(created, inherited=entries, inherited_items=items)


def _fork_payload(draft: Draft, created: ChildSession, role: str) -> dict[str, object]:
    return {
        "role": role,
        "child_session_id": created.facts.session_id,
        "parent_session_id": draft.state.facts.session_id,
        "label": created.spec.label,
        "summary": one_line(created.prompt, SUMMARY_CHARS),
        "prompt": created.prompt or None,
    }


def _create(draft: Draft, created: ChildSession) -> None:
    """The child, everywhere that it has to be known."""
    facts, spec, prompt = created.facts, created.spec, created.prompt
    draft.guard()
    status: AgentStatus = "queued" if prompt else "ready"
    tree = TreeView(
        status=status,
        slot=bool(prompt),
        label=spec.label,
        summary=one_line(prompt, SUMMARY_CHARS),
        started_ms=draft.moment.at_ms,
    )
    if prompt:
        draft.tree.debits.append(Debit(SLOTS, 1, f"limit:{SLOTS}"))
    draft.tree.debits.append(Debit(SPAWNED, 1, f"limit:{SPAWNED}"))
    entries, title = _entries(draft, created, tree), tree.summary or ""
    born = new_session(facts, created.settings, title)
    draft.tree.create(replace(born, submissions=_first(created)), entries, draft.moment.at_ms)
    record = record_of(facts, tree)
    draft.tree.note(f"a:{facts.agent_id}", record)
    _tell(draft, facts, record)
    if (copied := created.copied) is not None:
        draft.add(f.WorkspaceGiven(facts.agent_id, copied.snapshot, copied.folder))
    draft.add(f.ChildMade(_child(created, tree)))


def _child(created: ChildSession, tree: TreeView) -> Child:
    return Child(
        agent_id=created.facts.agent_id,
        session=created.facts.session_id,
        origin=created.origin,
        status="queued" if created.prompt else "ready",
        started_ms=tree.started_ms,
        label=tree.label,
        summary=tree.summary,
        initial_messages=created.inherited_items,
        helper=created.facts.helper_call is not None,
    )


def _tell(draft: Draft, facts: SessionFacts, record: AgentRecord) -> None:
    created = ev.SubagentLifecycle(event=LifecycleChange.CREATED, subagent=event_summary(record))
    targets = watchers(facts)
    about: TreeNote = {"record": record}
    draft.tree.publish(facts.born_in, created, targets, about=about)
    publish_depths(draft, facts.born_in, facts.agent_id, facts.session_id, targets)


def _entries(draft: Draft, created: ChildSession, tree: TreeView) -> tuple[Entry, ...]:
    """The child's log as it begins: who it is, what it inherits, its part in the tree, its status."""
    meta = draft.state.meta
    birth = Birth(
        created.facts,
        created.settings,
        version=created.spec.version,
        at_ms=draft.moment.at_ms,
        user_instructions=given(meta.instructions),
        git=given(meta.git),
    )
    own = first_entries(birth)
    if created.inherited:
        # What its model is told of the workspace stands in the conversation that it inherits.
        own = tuple(entry for entry in own if entry.type != e.RESPONSE_ITEM)
    role = Message(role="developer", content=(InputText(text=_role(created)),))
    status: TreeChanges = {
        "status": "queued" if created.prompt else "ready",
        "slot": tree.slot,
        "label": tree.label,
        "summary": tree.summary,
        "started_ms": tree.started_ms,
    }
    folder = began_with(draft.state, created.copied)
    told = _told(draft, created)
    return (*own, *folder, *created.inherited, *told, e.item(role), e.fact(f.AgentChanged(status)))


def _role(created: ChildSession) -> str:
    """The text that tells an agent its part; one with its parent's conversation is told of its own folder."""
    if created.copied is None or not created.inherited:
        return created.spec.role
    here = created.facts.portable
    assert here is not None
    place = here.path(created.facts.tree_id)
    return f"{created.spec.role} It is {place}: {created.copied.folder} of the conversation is not yours."


def _told(draft: Draft, created: ChildSession) -> tuple[Entry, ...]:
    """The folders whose instructions the child has, if it is not its own alone: what lacks is read later."""
    parents, portable = draft.state.told_folders, draft.state.facts.portable
    if portable is not None and portable.untold and not created.inherited:
        return ()
    # Without the conversation it gets what its parent was born with.
    told = parents if created.inherited else (str(draft.state.meta.cwd or parents[0]),)
    if created.copied is not None:
        # What its parent was told of the folder holds for the copy.
        told = tuple(moved(folder, created.copied, created.facts.tree_id) for folder in told)
    return () if told == (created.settings.cwd,) else (e.fact(f.FoldersTold(told)),)


def _first(created: ChildSession) -> tuple[NewSubmission, ...]:
    if not created.prompt:
        return ()
    op = UserInput(items=(TextInput(text=created.prompt),))
    id = f"spawn-{created.facts.agent_id}"
    return (NewSubmission(CLIENT, id, encode_json({"id": id, "op": written(op)})),)


def _result(draft: Draft, created: ChildSession, asked: Spawn | Fork) -> str:
    child = draft.state.tree.children[created.facts.agent_id]
    result: dict[str, object] = {**agent_of(draft.state.facts, child)}
    result |= {"model": created.spec.model, "pending_messages": 0, "pending_interrupts": 0}
    if isinstance(asked, Fork):
        result["payload"] = _fork_payload(draft, created, "parent")
    return json_text(result)
