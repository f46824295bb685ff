"""Calls of the `subagent_*` tools, and what each leads to; the assessment has done all look-ups.

Behind them: the creation of an agent, drafts of several agents, ops of people about agents, and the wait for
agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

import orjson

from orchestrator.core import agent_views as views
from orchestrator.core import commands as c
from orchestrator.core import commit_parts as parts
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import Birth, first_entries, inherited_history
from orchestrator.core.calls import Await, AwaitWork, Call, HelperWork, Phase, VariantsWork
from orchestrator.core.calls.agents import variant_id
from orchestrator.core.commands import ChildSpec, Fork, Helper, Spawn, Submitted, Target, Variants
from orchestrator.core.compaction import newest_texts, stored_texts
from orchestrator.core.context import context_told, standing_instructions
from orchestrator.core.counts import counted
from orchestrator.core.decide.agent import (
    began_with,
    begin_copy,
    cancel_line,
    copy_for,
    end_watchdog,
    facts_in_copy,
    flag_and_notify,
    lacks_copy,
    moved,
    settings_in_copy,
    unfit_folder,
)
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import STARTING, Draft, publish_depths, watchers
from orchestrator.core.decide.mail_delivery import (
    await_result,
    collect,
    forget_children,
    in_order,
    is_instruction,
    key_of_person,
    publish_read,
    take,
)
from orchestrator.core.entries import Entry, encode_json
from orchestrator.core.frozen import record
from orchestrator.core.history import INJECTED, call_output
from orchestrator.core.ids import AgentId
from orchestrator.core.lines import given
from orchestrator.core.modes import (
    Widening,
    back_to_code,
    child_settings,
    helper_settings,
    narrowed,
    task_settings,
    variant,
)
from orchestrator.core.settings import Origin, SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.core.tree import (
    ACTIVE,
    ROOT,
    AgentRecord,
    AgentStatus,
    Child,
    ChildChanges,
    Mail,
    TreeChanges,
    TreeView,
    Watchdog,
    pruned_flag,
)
from orchestrator.core.workspace import Copied
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import (
    LifecycleChange,
    SubAgentErr,
    SubAgentInvocation,
    SubAgentOk,
    SubagentSummary,
)
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.ops import CancelAgent, MessageAgent, UserInput
from orchestrator.protocol.wire import JsonValue, json_text, written

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


# ── messages ──────────────────────────────────────────────────────────────────────────────────────


CANCELED: Final = "agent {} was canceled, for good: spawn another one"


def _send(draft: Draft, call: Call, asked: c.SendMessage) -> None:
    target, prompt = asked.target, asked.prompt if asked.prompt.strip() else ""
    child = draft.state.tree.children.get(target.agent_id)
    if _was_canceled(draft, target):
        close(draft, call, CANCELED.format(target.agent_id))
        return
    draft.guard()
    _follow_up(draft, asked, prompt)
    sent = None
    if prompt or asked.interrupt or asked.label:
        payload: views.Said = {"prompt": prompt or None}
        if child is not None:
            payload["turn"] = child.turn
        if asked.label:
            payload["label"] = asked.label
        if prompt and target.finished and target.agent_id != ROOT:
            # The message will start it: the slot is paid for here, where it can be refused.
            draft.tree.debits.append(parts.Debit(parts.SLOTS, 1, f"limit:{parts.SLOTS}"))
            payload["slot"] = True
        key = f"message:{draft.state.facts.agent_id}:{draft.state.requests}:{call.call_id}"
        post(draft, target, payload, key, interrupt=asked.interrupt)
        sent = sent_message(
            target.agent_id, views.one_line(prompt, views.SENT_CHARS), interrupt=asked.interrupt
        )
    close(draft, call, json_text(_described(draft, target)), sent=sent)


def _was_canceled(draft: Draft, target: c.Target) -> bool:
    """Whether the agent was cancelled, by the registry or by what this session knows of its child."""
    child = draft.state.tree.children.get(target.agent_id)
    return target.marked or "canceled" in (target.status, child.status if child is not None else "")


def post(draft: Draft, target: c.Target, payload: views.Said, key: str, interrupt: bool = False) -> None:
    """A message to another agent, and the event that tells of its inbox."""
    content: views.MessagePayload = {**views.envelope(draft.state, draft.moment.at_ms), **payload}
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
        changes["summary"] = views.one_line(prompt, views.SUMMARY_CHARS)
    if changes:
        draft.add(f.ChildChanged(child.agent_id, changes))


def _described(draft: Draft, target: c.Target) -> dict[str, object]:
    if target.agent_id == ROOT:
        named = ("label", "summary")
        known = {name: target.record.get(name) for name in named}
        return {"session_id": target.session, "agent_id": ROOT, **known}
    child = draft.state.tree.children.get(target.agent_id)
    if child is not None:
        agent = views.agent_of(draft.state.facts, child)
        if child.active and target.status in ACTIVE:
            # No message says that a child has begun; the registry does.
            agent["status"] = target.status
        shown: dict[str, object] = {**agent}
    else:
        hidden = {"turn", "agent_path", "reasoning_header"}
        shown = {name: value for name, value in target.record.items() if name not in hidden}
    regular, interrupts = target.pending
    return {**shown, "pending_messages": regular, "pending_interrupts": interrupts}


# ── watchdogs ─────────────────────────────────────────────────────────────────────────────────────


def _watchdog(draft: Draft, call: Call, asked: c.SetWatchdog) -> None:
    id = asked.target.agent_id
    had = id in draft.state.tree.watchdogs
    if asked.cancel:
        end_watchdog(draft, id)
        action = "canceled" if had else "not_found"
    elif _was_canceled(draft, asked.target):
        close(draft, call, CANCELED.format(id))
        return
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
    generation = draft.set_timer(parts.watchdog_timer(watchdog.agent_id), due)
    draft.add(f.WatchdogSet(replace(watchdog, generation=generation), sent))


def watchdog_fired(draft: Draft, watchdog: Watchdog, parent: str | None, *, over: bool = False) -> None:
    """Sends the watchdog's message and sets its next time, in one decision.

    The watchdog of an agent that takes no more messages ends. `parent`: the session that made the agent,
    where the log of this one does not tell it; `over`: whether it was cancelled or pruned.
    """
    facts, child = draft.state.facts, draft.state.tree.children.get(watchdog.agent_id)
    if over or (child is not None and (child.status == "canceled" or child.ending or child.pruned)):
        draft.add(f.WatchdogEnded(watchdog.agent_id))
        return
    if watchdog.agent_id == facts.agent_id:
        parent = facts.parent_session
    elif watchdog.agent_id in draft.state.tree.children:
        parent = facts.session_id
    target = c.Target(watchdog.agent_id, watchdog.session, "", "", {"parent_session_id": parent})
    payload: views.Said = {"prompt": watchdog.message, "watchdog": True}
    post(draft, target, payload, f"watchdog:{draft.state.facts.agent_id}:{watchdog.generation}")
    sent = sent_message(
        watchdog.agent_id, views.one_line(watchdog.message, views.SENT_CHARS), interrupt=False
    )
    arm(draft, watchdog, sent)


# ── cancel and prune ──────────────────────────────────────────────────────────────────────────────


def _cancel(draft: Draft, call: Call, asked: c.CancelAgent) -> None:
    """Marks and tells the agent and all below it; each reports when what it ran is dead."""
    reason = views.one_line(asked.reason, 200) or "canceled"
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
    end_watchdog(draft, target.agent_id)
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


# ── agent create ──────────────────────────────────────────────────────────────────────────────────
# Creates an agent: spawned blank, forked from this conversation, or a helper that only reads.
#
# The child's whole beginning is in the parent's commit: its session, its first entries, its slot, its
# place in the registry, its first submission. Either all of it is there or none.


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
        client_tools=None,
        imported_from=None,
        behalf=draft.state.behalf,
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
        "summary": views.one_line(created.prompt, views.SUMMARY_CHARS),
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
        summary=views.one_line(prompt, views.SUMMARY_CHARS),
        started_ms=draft.moment.at_ms,
    )
    if prompt:
        draft.tree.debits.append(parts.Debit(parts.SLOTS, 1, f"limit:{parts.SLOTS}"))
    draft.tree.debits.append(parts.Debit(parts.SPAWNED, 1, f"limit:{parts.SPAWNED}"))
    entries, title = _entries(draft, created, tree), tree.summary or ""
    born = parts.new_session(facts, created.settings, title)
    draft.tree.create(replace(born, submissions=_first(created)), entries, draft.moment.at_ms)
    record = views.record_of(facts, tree)
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
    created = ev.SubagentLifecycle(event=LifecycleChange.CREATED, subagent=views.event_summary(record))
    targets = watchers(facts)
    about: parts.TreeNote = {"record": record}
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


def _first(created: ChildSession) -> tuple[parts.NewSubmission, ...]:
    if not created.prompt:
        return ()
    op = UserInput(items=(TextInput(text=created.prompt),))
    id = f"spawn-{created.facts.agent_id}"
    return (parts.NewSubmission(CLIENT, id, encode_json({"id": id, "op": written(op)})),)


def _result(draft: Draft, created: ChildSession, asked: Spawn | Fork) -> str:
    child = draft.state.tree.children[created.facts.agent_id]
    result: dict[str, object] = {**views.agent_of(draft.state.facts, child)}
    result |= {"model": created.spec.model, "pending_messages": 0, "pending_interrupts": 0}
    if isinstance(asked, Fork):
        result["payload"] = _fork_payload(draft, created, "parent")
    return json_text(result)


# ── variants ──────────────────────────────────────────────────────────────────────────────────────
# Variants of a plan: three helpers draft at once, and the call returns all that they wrote, in order.


DRAFTED: Final = (
    "this draft has its variants already: put a plan to the person with approve_plan, and ask for others if "
    "they want it changed"
)


def propose_variants(draft: Draft, call: Call, asked: Variants) -> None:
    """Makes the helpers, all in one commit or none, and lets the call wait for them."""
    if draft.task.drafted:
        close(draft, call, DRAFTED)
        return
    if (why := may_not_make(draft) or unfit_folder(draft.state, asked.specs[0])) is not None:
        close(draft, call, why)
        return
    helpers = [Helper(spec, slant) for spec, slant in zip(asked.specs, asked.slants, strict=True)]
    for place, helper in enumerate(helpers):
        begin_helper(draft, helper, variant_id(call.call_id, place))
    agent_ids = tuple(helper.spec.agent_id for helper in helpers)
    invocations = tuple(written(invocation_of(helper)) for helper in helpers)
    work = VariantsWork(agent_ids, invocations, draft.moment.at_ms)
    draft.add(f.CallMoved(call.call_id, Phase.WAITING, work=work))


def variant_done(draft: Draft, child: Child, content: Mapping[str, JsonValue]) -> None:
    """A helper came to rest: what it wrote is a variant, whatever it is; the last one ends the call."""
    found = _call_of(draft, child)
    if found is None:
        return
    call, work = found
    asked = [each for each in work.helpers(call.call_id) if each[1].agent_id == child.agent_id]
    if not asked:
        # A person has spoken to it since: what it wrote first is its variant.
        return
    [(call_id, helper)] = asked
    answered, text = _end(draft, helper, call_id, content)
    drafted = variant(text if answered else "", str(helper.invocation["description"]), why=text)
    draft.add(f.VariantDrafted(call.call_id, child.agent_id, drafted))
    ended = draft.task.call(call.call_id)
    if ended is not None and isinstance(ended.work, VariantsWork) and ended.work.variants is not None:
        close(draft, ended, orjson.dumps({"variants": ended.work.variants}, default=dict).decode())


def _call_of(draft: Draft, child: Child) -> tuple[Call, VariantsWork] | None:
    task = draft.state.task
    for call in task.calls.begun if task is not None and not task.stopping else ():
        if isinstance(call.work, VariantsWork) and child.agent_id in call.work.agent_ids:
            return call, call.work
    return None


# ── helper ────────────────────────────────────────────────────────────────────────────────────────
# The end of a helper: its answer is the output of the `spawn_subagent` that made it.


OUTCOME: Mapping[str, str] = {"ready": "completed", "failed": "failed"}


def helper_done(draft: Draft, child: Child, content: Mapping[str, JsonValue]) -> None:
    """A helper came to rest: its answer is its call's."""
    changes: ChildChanges = {"pruned": True}
    if child.status == "ready":
        # Its answer is the call's, or nobody's any more: nobody is to look for something unread.
        changes["status"] = "idle"
        publish_read(draft, child, content)
    draft.add(f.ChildChanged(child.agent_id, changes))
    end_helper_call(draft, child, content)


def end_helper_call(draft: Draft, child: Child, content: Mapping[str, JsonValue]) -> None:
    """Ends the call that waits for the helper; one that does not wait any more was stopped meanwhile."""
    found = _helper_call_of(draft, child)
    if found is None:
        return
    call, work = found
    answered, text = _end(draft, work, call.call_id, content)
    close(draft, call, _output(work, text) if answered else text)


def _output(work: HelperWork, text: str) -> str:
    return orjson.dumps({"label": work.label, "response": text}).decode()


def _helper_call_of(draft: Draft, child: Child) -> tuple[Call, HelperWork] | None:
    task = draft.state.task
    calls = views.helper_calls(task.calls.begun) if task is not None and not task.stopping else ()
    return next(((call, work) for call, work in calls if work.agent_id == child.agent_id), None)


def _end(
    draft: Draft, helper: HelperWork, call_id: CallId, content: Mapping[str, JsonValue]
) -> tuple[bool, str]:
    """Publishes the end of a helper; whether there is an answer, and it or what came instead."""
    answered, text = answer_of(content)
    told = SubAgentOk(Ok=text) if answered else SubAgentErr(Err=text)
    outcome = OUTCOME.get(content["status"], views.CANCELLED) if content["completion"] else views.CANCELLED
    draft.event(helper.end(call_id, draft.moment.at_ms, told, outcome, content))
    return answered, text


def answer_of(content: Mapping[str, JsonValue]) -> tuple[bool, str]:
    """Whether there is an answer, and it or what came instead."""
    match content["completion"]:
        case {"Completed": {"last_message": text}}:
            return True, text or ""
        case {"Failed": {"message": text}}:
            return False, f"the helper failed: {text}"
        case _:
            return False, "the helper was stopped"


# ── agent ops ─────────────────────────────────────────────────────────────────────────────────────
# Ops of people about agents of a tree: a message to one, its end, a stop for all.
#
# A person speaks through the root's queue, so that everything has one order there; the root sends the op
# on by message, whatever its model is doing. What a model may do with its tools stands above.
# An agent that a person wakes needs no slot: it is at work at once.


REASON_CHARS = 200


def message_agent(draft: Draft, command: Submitted, op: MessageAgent) -> None:
    """A message to the agent, which reads it as an instruction."""
    target = _target(draft, command, op.agent_id)
    if target is None:
        return
    if target.marked or target.status == "canceled":
        draft.add(e.error(command.id, f"agent {target.agent_id} was cancelled: it takes no more input"))
        return
    if len(op.text.encode()) > views.MESSAGE_BYTES:
        text = (
            f"too long: a message has at most {views.MESSAGE_BYTES:,} bytes; write it to a file and name that"
        )
        draft.add(e.error(command.id, text))
        return
    said: views.Said = {"prompt": op.text, "person": command.who or command.client}
    if draft.sender is not None:
        said["by"] = draft.sender.wire()
    content: views.MessagePayload = {**views.envelope(draft.state, draft.moment.at_ms), **said}
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
    reason = views.one_line(op.reason, REASON_CHARS) or f"cancelled by {command.who or 'a person'}"
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

    A finished agent is told as well: below it, some may be at work. It is not where one of them cannot be
    reached: that one rests, with all below it.
    """
    for child in draft.state.tree.children.values():
        if child.status != "canceled" and (child.active or not draft.apart):
            told, asked = f"{key}:{child.agent_id}", views.InterruptPayload(at_ms=draft.moment.at_ms)
            if draft.sender is not None:
                asked["by"] = draft.sender.wire()
            draft.tree.send(child.session, "interrupt", asked, told, interrupt=True)


# ── wait ──────────────────────────────────────────────────────────────────────────────────────────
# Waiting for agents: a phase of a call, decided from the session's own log.
#
# No worker is held while it lasts. What may end it arrives in the session's queue: a message, or the
# deadline's timer.


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
    draft.set_timer_of(parts.wait_timer(call.call_id), generation, deadline)


def end_wait(draft: Draft) -> None:
    """Ends the task's wait for agents if there is a reason to."""
    task = draft.state.task
    call = task.waiting if task is not None and not task.stopping else None
    if call is None or not isinstance(call.work, AwaitWork):
        return
    mails = _matching(draft.state, call.work)
    called = _called_back(draft.state)
    if mails or called or not _something_to_come(draft.state, call.work):
        _end_wait(draft, call, mails, timed_out=False)


def timed_out(draft: Draft, call: Call, wait: AwaitWork) -> None:
    """The deadline passed first."""
    _end_wait(draft, call, _matching(draft.state, wait), timed_out=True)


def _end_wait(draft: Draft, call: Call, mails: list[Mail], *, timed_out: bool) -> None:
    ready = collect(draft, mails) if mails else []
    draft.clear_timer(parts.wait_timer(call.call_id))
    close(draft, call, await_result(draft.state, ready, injected=False, timed_out=timed_out and not ready))


def _matching(state: State, wait: AwaitWork) -> list[Mail]:
    """The messages that this await returns. Those of agents that it does not name stay where they are."""
    named = wait.agent_ids
    mails = [mail for mail in in_order(state.tree.inbox) if not is_instruction(state.facts, mail)]
    if not named:
        return mails
    return [mail for mail in mails if mail.agent_id in named or mail.agent_id not in state.tree.children]


def _called_back(state: State) -> bool:
    """A message from above, or input that joins the task: the next request carries it, so the wait is over.

    Messages that a client adds to the conversation ask for no request of their own.
    """
    said = state.task.steered if state.task is not None else ()
    return any(INJECTED not in item for item in said) or any(
        is_instruction(state.facts, mail) for mail in state.tree.inbox
    )


def _something_to_come(state: State, wait: AwaitWork) -> bool:
    named = wait.agent_ids
    return any(not named or child.agent_id in named for child in state.tree.active_children)
