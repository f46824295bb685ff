"""`evolve`: one rollout entry applied to a state. It gains cases and never changes one.

It reads facts and never judges them: whatever is in the rollout happened. An entry of an
unknown type or kind leaves the state as it was, so that a newer version's rollout folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Call, Calls, MergeWork, Phase, VariantsWork, shell_call
from orchestrator.core.compaction import summarised_history
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import replace
from orchestrator.core.history import CALL_KINDS, INHERITED, Item, Log, message_text
from orchestrator.core.lines import NO_META, read_compacted, read_context, read_meta
from orchestrator.core.modes import plans, proposal
from orchestrator.core.secrets import SecretAnswer
from orchestrator.core.sender import sender_wire
from orchestrator.core.state import (
    ANSWERS_KEPT,
    MOST_EARLIER,
    MOST_PROCESSES,
    MOST_TEXTS,
    Answer,
    Branch,
    Elicitation,
    EndedProcess,
    PendingLookUp,
    PinnedPlan,
    Process,
    Processes,
    Queued,
    Request,
    Response,
    State,
    Task,
    may_write,
    without_extras,
    writing,
)
from orchestrator.core.tokens import TokenInfo, Usage, counted, lost
from orchestrator.core.tree import TreeView
from orchestrator.core.workspace import Merged, Unsaved, Workspace
from orchestrator.protocol.events import TokenCount
from orchestrator.protocol.ids import CallId, ResponseId
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, tag_of

Payload: TypeAlias = JsonMapping
Step = Callable[[State, Payload, int], State]


def evolve(state: State, entry: Entry, seq: int) -> State:
    """The state after `entry`, which is the rollout's entry number `seq`."""
    step = _BY_TYPE.get(entry.type)
    return state if step is None else step(state, entry.payload, seq)


def fold(state: State, entries: Iterable[Entry], first_seq: int) -> State:
    """`evolve` over consecutive entries; the first of them is number `first_seq`."""
    for seq, entry in enumerate(entries, first_seq):
        step = _BY_TYPE.get(entry.type)
        if step is not None:
            state = step(state, entry.payload, seq)
    return state


def _session_meta(state: State, payload: Payload, seq: int) -> State:
    # A copied fork history may hold a second one: the first names the session.
    return state if state.meta != NO_META else replace(state, meta=read_meta(without_extras(payload)))


def _response_item(state: State, payload: Payload, seq: int) -> State:
    task, kind = state.task, payload.get("type")
    if task is not None:
        if kind == "message" and payload.get("role") == "assistant":
            said = message_text(payload)
            if plans(task.settings):
                said = proposal(said).said
            task = replace(task, last_message=said or None if plans(task.settings) else said)
        elif kind in CALL_KINDS and payload.get("call_id") and task.request is not None:
            call = Call(payload["call_id"], payload.get("name") or "local_shell", payload)
            task = replace(task, calls=task.calls.append(call))
    if task is not None and task.branch is not None:
        branch = replace(task.branch, items=task.branch.items.append(payload))
        return replace(state, task=replace(task, branch=branch))
    return replace(state, history=state.history.append(payload), task=task)


def _compacted(state: State, payload: Payload, seq: int) -> State:
    line = read_compacted(payload)
    items, kept = line.replacement_history, line.kept_user_texts
    if items is None:
        # Codex records the summary alone, and builds the new history from it again.
        kept, items = summarised_history(state, line.message)
    if state.task is not None and state.task.branch is not None:
        branch = replace(state.task.branch, items=Log.of(items), kept_user_texts=kept, compacted=True)
        task = replace(state.task, branch=branch, response_complete=False, summary=None, rescue=0)
        return replace(state, task=task)
    if line.turns_kept:
        turns = (*state.earlier_turns, *(mark for mark, _ in state.bookmarks))
        state = state.with_extras(earlier_turns=turns[-MOST_EARLIER:])
    # Lengths of the old history mean nothing in the new one.
    if state.pinned is not None:
        state = state.with_extras(pinned_plan=PinnedPlan(state.pinned, 0))
    state = replace(
        state,
        history=Log.of(items),
        kept_user_texts=kept,
        bookmarks=Log(),
        last_response=None,
        compacted=True,
    )
    if state.task is None:
        return state
    return replace(state, task=replace(state.task, response_complete=False, summary=None, rescue=0))


def _turn_context(state: State, payload: Payload, seq: int) -> State:
    if state.native:
        return state
    return replace(state, settings=state.settings.changed(read_context(payload).changes()))


_TOKEN_COUNT = tag_of(TokenCount)


def _event_msg(state: State, payload: Payload, seq: int) -> State:
    if payload.get("type") != _TOKEN_COUNT:
        return state
    changed: dict[str, object] = {}
    if payload.get("response_id"):
        bookmark = (payload["response_id"], len(state.history))
        changed["bookmarks"] = state.bookmarks.append(bookmark)
    if info := payload.get("info"):
        told = TokenInfo(Usage.of(info["total_token_usage"]), Usage.of(info["last_token_usage"]))
        changed |= {"told": told, "tokens": state.tokens if state.native else told}
    if state.task is not None:
        changed["task"] = replace(state.task, usage=None)
    if payload.get("rate_limits"):
        changed["rate_limits"] = payload["rate_limits"]
    return replace(state, **changed)


def _dendro(state: State, payload: Payload, seq: int) -> State:
    return stated(state, f.decode(payload), seq)


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────


def stated(state: State, fact: f.Fact | f.UnknownFact, seq: int) -> State:
    """The state after a fact, which the rollout's entry number `seq` states."""
    # By their tag, since a fold asks this of every third entry: a question for five classes takes longer.
    if fact.of == "call":
        known = state.workspace
        if (known.recorded or known.partly) and fact.phase is Phase.RUNNING:
            state = replace(state, workspace=runs_again(known, fact.call_id))
        if state.workspace.copied is not None and fact.phase is Phase.RUNNING:
            state = _without_copy(state, fact)
        return evolve_call(state, fact, seq)
    if fact.of == "request":
        return evolve_request(state, fact)
    if fact.of == "task":
        return evolve_task(state, fact)
    if fact.of == "agent":
        return replace(state, tree=evolve_tree(state.tree, fact))
    if fact.of == "session":
        return _of_session(state, fact)
    if fact.of == "process":
        return replace(state, processes=evolve_processes(state.processes, fact))
    if fact.of == "workspace":
        return _of_workspace(state, fact)
    if fact.of == "nothing":
        return state
    assert_never(fact)


def _of_workspace(state: State, fact: f.WorkspaceFact) -> State:
    """The state after a fact of the folder; a process may end, and have it recorded, beside a call."""
    known, task = evolve_workspace(state.workspace, fact), state.task
    if isinstance(fact, f.WorkspaceSaved) or (isinstance(fact, f.WorkspaceUnsaved) and fact.snapshot):
        running = writing(task) if task is not None else ()
        # What a merge writes is recorded whole, or not at all.
        written = [one.call_id for one in running if not isinstance(one.work, MergeWork)]
        known = replace(known, partly=tuple(one for one in written if one not in known.recorded))
    return replace(state, workspace=known)


def _without_copy(state: State, fact: f.CallMoved) -> State:
    """The copy of the folder is forgotten where a call begins that may change the folder."""
    if state.task is None or not may_write(fact.work, state.task.settings):
        return state
    return replace(state, workspace=replace(state.workspace, copied=None))


def _of_session(state: State, fact: f.SessionFact) -> State:
    match fact:
        case f.TimerTaken(generation):
            return replace(state, timers=max(state.timers, generation))
        case f.Answered():
            return _answered(state, fact)
        case f.Configured() | f.SettingsChanged() | f.Instructed() | f.Named():
            return _configured(state, fact)
        case f.InputQueued() | f.QueueOrdered() | f.QueuedEdited():
            return replace(state, queue=_queued(state.queue, fact))
        case f.LookUpAsked() | f.LookUpEnded():
            return state.with_extras(lookups=_looked_up(state.lookups, fact))
        case f.Closing(by, keeps_lookups=keeps):
            # Input that waits for an earlier turn waits in the queue, and is looked up again.
            kept = tuple(asked for asked in state.lookups if keeps and asked.turn is None)
            return replace(state.with_extras(lookups=kept), closing=by)
        case f.Closed():
            return replace(state, closing=None, closed=True)
        case f.RateLimitsReported(snapshot):
            return replace(state, rate_limits=snapshot)
        case f.ApprovedForSession(keys, granted, is_signed):
            roots = tuple(dict.fromkeys((*state.granted_roots, *granted)))
            under_key = state.approved_signed | set(keys) if is_signed else state.approved_signed
            known = state.approved | set(keys)
            return replace(state, approved=known, approved_signed=under_key, granted_roots=roots)
        case f.Rewound():
            return _rewound(state, fact.length) if fact.content is None else _restored(state, fact)
        case f.FoldersTold(folders):
            return _folders_told(state, folders)
        case f.TextKept(sha256):
            return state.with_extras(texts=(*state.extras.texts, sha256)[-MOST_TEXTS:])
        case f.PlanPinned(plan):
            return state.with_extras(pinned_plan=PinnedPlan(plan, len(state.history)))
        case f.Forked(_, content, texts, instructions):
            inherited = _inherited(content, texts, instructions)
            return replace(state, history=state.history.append(inherited), native=True)
        case _:
            assert_never(fact)


def _configured(state: State, fact: f.Configured | f.SettingsChanged | f.Instructed | f.Named) -> State:
    match fact:
        case f.Configured(settings=settings, session=session):
            return replace(state, native=True, settings=settings, facts=session)
        case f.SettingsChanged(changes):
            return replace(state, settings=state.settings.changed(changes), native=True)
        case f.Instructed(text):
            return replace(state, facts=replace(state.facts, base_instructions=text or None))
        case f.Named(name):
            return state.with_extras(thread_name=name)
        case _:
            assert_never(fact)


def _answered(state: State, fact: f.Answered) -> State:
    signed_ms = fact.answered_ms if fact.sig else 0
    answer = Answer(fact.call_id, fact.turn, fact.decision, fact.who, fact.digest, signed_ms)
    if fact.decision == "revised" and fact.agent_id is None and state.task is not None:
        state = replace(state, task=replace(state.task, drafted=False))
    state = replace(state, answers=(*state.answers, answer)[-ANSWERS_KEPT:])
    return state if not fact.secret else _secret_told(state, fact)


def _queued(
    queue: tuple[Queued, ...], fact: f.InputQueued | f.QueueOrdered | f.QueuedEdited
) -> tuple[Queued, ...]:
    match fact:
        case f.InputQueued(id, turn, client, by):
            return (*queue, Queued(id, turn, client, by))
        case f.QueueOrdered(ids):
            return _ordered(queue, ids)
        case f.QueuedEdited(id, items):
            return _edited(queue, id, items)
        case _:
            assert_never(fact)


def _looked_up(
    lookups: tuple[PendingLookUp, ...], fact: f.LookUpAsked | f.LookUpEnded
) -> tuple[PendingLookUp, ...]:
    if isinstance(fact, f.LookUpAsked):
        return (*lookups, PendingLookUp(fact.id, fact.op, fact.client, fact.who))
    return tuple(asked for asked in lookups if (asked.id, asked.client) != (fact.id, fact.client))


def _ordered(queue: tuple[Queued, ...], ids: Sequence[str]) -> tuple[Queued, ...]:
    """The queue in another order; two clients may use one id, whose inputs keep their order."""
    left, found = list(queue), list[Queued]()
    for id in ids:
        found += [waiting for waiting in left if waiting.id == id][:1]
        left = [waiting for waiting in left if waiting not in found]
    return tuple(found)


def _edited(queue: tuple[Queued, ...], id: str, items: tuple[Item, ...]) -> tuple[Queued, ...]:
    """The queue with other words in the first input of an id."""
    place = next((at for at, waiting in enumerate(queue) if waiting.id == id), len(queue))
    return tuple(
        replace(waiting, turn=replace(waiting.turn, items=items)) if at == place else waiting
        for at, waiting in enumerate(queue)
    )


def _secret_told(state: State, fact: f.Answered) -> State:
    if state.task is None:
        return state
    secrets = (*state.task.secrets, SecretAnswer(fact.call_id, fact.secret))
    return replace(state, task=replace(state.task, secrets=secrets))


def _folders_told(state: State, folders: tuple[str, ...]) -> State:
    """A branch is told of folders by itself: the session's conversation does not hold what it reads."""
    if state.task is None or state.task.branch is None:
        return state.with_extras(told_folders=folders)
    branch = replace(state.task.branch, told_folders=folders)
    return replace(state, task=replace(state.task, branch=branch))


def _inherited(
    content: JsonValue, texts: Sequence[JsonValue], instructions: Sequence[JsonMapping]
) -> JsonObject:
    """A conversation whole and unread: only a request that shows it to a model opens it."""
    inherited: JsonObject = {"type": INHERITED, "content": content}
    if texts:
        inherited["user_texts"] = list(texts)
    if instructions:
        inherited["instructions"] = list(instructions)
    return inherited


def _restored(state: State, fact: f.Rewound) -> State:
    """The state with a conversation of before a compaction in the place of the one that it has."""
    turns = state.earlier_turns
    if fact.response_id in turns:
        turns = turns[: turns.index(fact.response_id) + 1]
    # A plan that waits was approved later: the first task after it would have taken it.
    return replace(
        state.with_extras(earlier_turns=turns, pinned_plan=None),
        history=Log.of([_inherited(fact.content, fact.user_texts, fact.instructions)]),
        kept_user_texts=(),
        bookmarks=Log(),
        last_response=None,
        compacted=False,
    )


def _rewound(state: State, length: int) -> State:
    kept = Log.of(mark for mark in state.bookmarks if mark[1] <= length)
    if (pinned := state.extras.pinned_plan) and length < pinned.length:
        # The plan was talked about in what is left behind.
        state = state.with_extras(pinned_plan=None)
    # The provider's copy of the conversation goes on from the turn that was left.
    return replace(state, history=state.history.prefix(length), bookmarks=kept, last_response=None)


_BY_TYPE: Mapping[str, Step] = {
    e.SESSION_META: _session_meta,
    e.RESPONSE_ITEM: _response_item,
    e.COMPACTED: _compacted,
    e.TURN_CONTEXT: _turn_context,
    e.EVENT_MSG: _event_msg,
    e.DENDRO: _dendro,
}


# ── processes ─────────────────────────────────────────────────────────────────────────────────────
# `evolve` for what a session knows of its processes.


def evolve_processes(known: Processes, fact: f.ProcessFact) -> Processes:
    """The processes after a fact about one of them."""
    match fact:
        case f.ProcessNumbered(number):
            return replace(known, taken=max(known.taken, number))
        case f.ProcessKept():
            return replace(known, living=(*known.living, _begun(fact)))
        case f.ProcessesStopping(numbers):
            named = frozenset(numbers)
            marked = (replace(one, stopping=True) if one.number in named else one for one in known.living)
            return replace(known, living=tuple(marked))
        case f.ProcessOver(number, exit_code, unread):
            left = known.without(number)
            if exit_code is None:
                return left
            ended = (*left.ended, EndedProcess(number, exit_code, unread))[-MOST_PROCESSES:]
            return replace(left, ended=ended)
        case f.ProcessRead(number):
            return replace(known, ended=tuple(one for one in known.ended if one.number != number))
        case _:
            assert_never(fact)


def _begun(fact: f.ProcessKept) -> Process:
    return Process(
        fact.number,
        fact.call_id,
        fact.turn,
        fact.command,
        fact.cwd,
        fact.epoch,
        fact.rights,
        fact.tty,
        fact.sandboxed,
    )


# ── request ───────────────────────────────────────────────────────────────────────────────────────
# `evolve` for the facts of a task's model requests.


def evolve_request(state: State, fact: f.RequestFact) -> State:
    match fact:
        case f.RequestBegun():
            return _request_begun(state, fact)
        case f.RequestCompleted():
            return _request_completed(state, fact)
        case f.RequestRetried() | f.RequestDelayed():
            return _tokens_lost(_to_be_sent_again(state, fact), fact.usage)
        case f.RequestFailed(usage=usage, overflow=True):
            return _tokens_lost(replace(state, task=_overflowed(task_of(state))), usage)
        case f.RequestFailed(usage=usage) | f.RequestStopped(usage=usage):
            ended = replace(state, task=replace(task_of(state), request=None))
            return _tokens_lost(ended, usage)
        case f.RetryDue():
            return replace(state, task=replace(task_of(state), wait=0, not_before_ms=0))
        case f.SummaryReceived(text):
            task = task_of(state)
            return replace(state, task=replace(task, summary=(task.summary or "") + text))
        case _:
            assert_never(fact)


def _request_begun(state: State, fact: f.RequestBegun) -> State:
    request, before = Request(fact.n, fact.purpose, fact.epoch, len(state.conversation)), task_of(state)
    task = replace(
        before,
        request=request,
        response_complete=False,
        response_id=None,
        usage=None,
        calls=Calls(earlier=before.calls.used),
        steered=(),
        summary=None,
        not_before_ms=0,
        wait=0,
    )
    return replace(state, task=task, requests=request.n)


def _request_completed(state: State, fact: f.RequestCompleted) -> State:
    task = task_of(state)
    turn = task.request is not None and task.request.purpose == "turn"
    usage = Usage.of(fact.usage) if fact.usage else None
    ended = replace(
        task,
        request=None,
        response_complete=True,
        response_id=fact.response_id or None,
        goes_on=fact.end_turn is False,
        stream_retries=0,
        http_used=0,
        usage=usage,
    )
    if ended.branch is not None:
        # No provider goes on from what is said beside the session's conversation.
        branch = replace(ended.branch, compacted=ended.branch.compacted and not turn)
        tokens = counted(state.tokens, usage) if usage else state.tokens
        return replace(state, task=replace(ended, branch=branch), tokens=tokens)
    # A copy of the conversation at the provider would hold a pinned plan for ever.
    known = turn and ended.pinned is None
    answered = _response(task, ended.response_id, len(state.history)) if known else state.last_response
    return replace(
        state,
        task=ended,
        compacted=state.compacted and not turn,
        last_response=answered,
        tokens=counted(state.tokens, usage) if usage else state.tokens,
    )


def _response(task: Task, response_id: ResponseId | None, length: int) -> Response | None:
    if task.request is None or response_id is None:
        return None
    settings = task.settings
    return Response(response_id, settings.model_provider, settings.model, task.request.sent, length)


def _to_be_sent_again(state: State, fact: f.RequestRetried | f.RequestDelayed) -> State:
    task = task_of(state)
    waiting = replace(
        task,
        request=None,
        # Only a stream that broke is counted as one.
        stream_retries=task.stream_retries + isinstance(fact, f.RequestRetried),
        http_used=fact.http_used,
        not_before_ms=fact.not_before_ms,
        wait=fact.wait,
    )
    return replace(state, task=waiting, timers=max(state.timers, waiting.wait))


def _overflowed(task: Task) -> Task:
    """The task after a request that was too long for the model: a compaction is due."""
    if task.request is not None and task.request.purpose == "compact":
        return replace(task, request=None, rescue=max(task.rescue, 1) + 1)
    return replace(task, request=None, rescue=1, rescued=True)


def _tokens_lost(state: State, usage: JsonMapping | None) -> State:
    """A response that was not completed has used tokens all the same."""
    return replace(state, tokens=lost(state.tokens, Usage.of(usage))) if usage else state


# ── tree ──────────────────────────────────────────────────────────────────────────────────────────
# `evolve` of the tree view: one fact about agents applied to what a session knows of its tree.


def evolve_tree(tree: TreeView, fact: f.AgentFact) -> TreeView:
    """The view after a fact of the session's own log."""
    match fact:
        case f.AgentChanged(changes):
            return replace(tree, **changes)
        case f.ChildMade(child):
            return replace(tree, children={**tree.children, child.agent_id: child})
        case f.ChildChanged():
            return _child_changed(tree, fact)
        case f.ChildrenChanged():
            return _children_changed(tree, fact)
        case f.ToEnd(agent_ids, reason, by):
            return replace(tree, to_end=agent_ids, end_reason=reason, end_by=sender_wire(by))
        case f.ToldToEnd(count):
            return replace(tree, to_end=tree.to_end[count:])
        case f.MailReceived(mail):
            return replace(tree, inbox=(*tree.inbox, mail))
        case f.MailTaken(keys):
            return _mail_taken(tree, frozenset(keys))
        case f.WatchdogSet(watchdog):
            return replace(tree, watchdogs={**tree.watchdogs, watchdog.agent_id: watchdog})
        case f.WatchdogEnded(gone):
            kept = {id: dog for id, dog in tree.watchdogs.items() if id != gone}
            return replace(tree, watchdogs=kept)
        case _:
            assert_never(fact)


def _child_changed(tree: TreeView, fact: f.ChildChanged) -> TreeView:
    child = tree.children.get(fact.agent_id)
    if child is None:
        return tree
    changed = replace(child, **fact.changes)
    return replace(tree, children={**tree.children, child.agent_id: changed})


def _children_changed(tree: TreeView, fact: f.ChildrenChanged) -> TreeView:
    named = frozenset(fact.agent_ids)
    children = {
        id: replace(child, **fact.changes) if id in named else child for id, child in tree.children.items()
    }
    return replace(tree, children=children)


def _mail_taken(tree: TreeView, taken: frozenset[str]) -> TreeView:
    return replace(tree, inbox=tuple(mail for mail in tree.inbox if mail.key not in taken))


# ── task ──────────────────────────────────────────────────────────────────────────────────────────
# `evolve` for the facts of a task and of its calls.


def task_of(state: State) -> Task:
    if state.task is None:
        raise ValueError("the rollout has an entry of a task where no task holds the session")
    return state.task


def evolve_task(state: State, fact: f.TaskFact) -> State:
    match fact:
        case f.TaskBegun():
            return _task_begun(state, fact)
        case f.TaskEnded(outcome):
            return replace(_without_branch(state), task=None, outcome=outcome)
        case f.Stopping(reason):
            return replace(state, task=replace(task_of(state), stopping=reason))
        case f.Failing(message, info):
            return replace(state, task=replace(task_of(state), failure=message, failure_info=info))
        case f.Ending(output):
            return replace(state, task=replace(task_of(state), ending=output))
        case f.CallsClosed(call_ids):
            task = task_of(state)
            return replace(state, task=replace(task, calls=task.calls.closed(frozenset(call_ids))))
        case f.ElicitationOpened(call_id, id, server, timer, request):
            task, asked = task_of(state), Elicitation(id, call_id, server, timer, request=request)
            return replace(state, task=replace(task, elicitations=(*task.elicitations, asked)))
        case f.ElicitationClosed(id, decision):
            task = task_of(state)
            decided = [
                replace(asked, decision=decision) if asked.id == id else asked for asked in task.elicitations
            ]
            return replace(state, task=replace(task, elicitations=tuple(decided)))
        case f.Steered(_, item):
            task = task_of(state)
            return replace(state, task=replace(task, steered=(*task.steered, item)))
        case f.SteeredJoined(count):
            task = task_of(state)
            return replace(state, task=replace(task, steered=task.steered[count:]))
        case f.VariantDrafted():
            return replace(state, task=_variant_drafted(task_of(state), fact))
        case f.PlanDecided(_, plan):
            return replace(state, task=replace(task_of(state), result={"plan": plan}))
        case f.AnswerBegins(text):
            return replace(state, task=replace(task_of(state), last_message=text))
        case _:
            assert_never(fact)


def _task_begun(state: State, fact: f.TaskBegun) -> State:
    branch = _branch(state, fact)
    schema = fact.output_schema
    task = Task(fact.id, fact.task, fact.settings, client=fact.client, output_schema=schema, branch=branch)
    if fact.command is not None:
        task = replace(task, calls=Calls((shell_call(fact.id, fact.command),)))
    if fact.takes_plan:
        task = replace(task, pinned=state.pinned)
        state = state.with_extras(pinned_plan=None)
    # Two clients may use one id: a task takes the first of its name, not everybody's input.
    place = next((at for at, waiting in enumerate(state.queue) if waiting.id == task.id), len(state.queue))
    queue = (*state.queue[:place], *state.queue[place + 1 :])
    if fact.by is not None:
        state = state.with_extras(behalf=fact.by)
    tokens = state.tokens
    if tokens is not None and fact.task == "review":
        # Its window is empty: the one that the session's conversation fills is put back with its end.
        tokens = TokenInfo(tokens.total, Usage())
    return replace(state, task=task, queue=queue, closed=False, native=True, tokens=tokens)


def _variant_drafted(task: Task, fact: f.VariantDrafted) -> Task:
    call = task.call(fact.call_id)
    return task if call is None else task.with_call(call.drafted(fact.agent_id, fact.variant))


def _branch(state: State, fact: f.TaskBegun) -> Branch | None:
    """The conversation of its own that a task begins with, by its kind."""
    last = state.tokens.last if state.tokens is not None else None
    told = state.told.last if state.told is not None else None
    match fact.task:
        case "plan":
            # With what was said so far: one can plan what was just talked about. A log is shared, not copied.
            items = _joined(state.history, fact.opening)
            kept, opening = state.kept_user_texts, fact.opening
            return Branch(state.settings, items, opening, kept, state.compacted, last, told)
        case "review":
            # With nothing of what was said: a reviewer judges what it finds.
            return Branch(state.settings, Log.of(fact.opening), fact.opening, last_usage=last, last_told=told)
        case "user" | "compact" | "shell":
            return None
        case _:
            assert_never(fact.task)


def _joined(items: Log[Item], more: Iterable[Item]) -> Log[Item]:
    for item in more:
        items = items.append(item)
    return items


def _without_branch(state: State) -> State:
    """The state whose window is that of the session's conversation again; a branch's tokens stay counted."""
    branch = state.task.branch if state.task is not None else None
    if branch is None or state.tokens is None:
        return state
    told = state.told and TokenInfo(state.told.total, branch.last_told or Usage())
    return replace(state, tokens=TokenInfo(state.tokens.total, branch.last_usage or Usage()), told=told)


def evolve_call(state: State, fact: f.CallMoved, seq: int) -> State:
    task = task_of(state)
    call = task.call(fact.call_id)
    if call is None:
        return state
    changes: dict[str, object] = {} if fact.epoch is None else {"epoch": fact.epoch}
    if fact.work is not None:
        changes["work"] = fact.work
    if isinstance(fact.work, VariantsWork):
        task = replace(task, drafted=True)
    if fact.phase is Phase.AWAITING_APPROVAL or fact.phase is Phase.ASKING:
        changes["asked_seq"], changes["request"] = seq, fact.request
    task = task.with_call(call.moved(fact.phase, changes))
    if task.elicitations:
        # A server waits for nothing once its call is over.
        left = [asked for asked in task.elicitations if asked.call_id != fact.call_id]
        task = replace(task, elicitations=tuple(left))
    if fact.baselines:
        changed = fact.baselines
        kept = {path: data for path, data in task.baselines.items() if path not in changed["drop"]}
        task = replace(task, baselines={**kept, **changed["set"]})
    return replace(state, task=task)


# ── workspace ─────────────────────────────────────────────────────────────────────────────────────
# `evolve` for the folder of a portable session.


def evolve_workspace(known: Workspace, fact: f.WorkspaceFact) -> Workspace:
    """The folder after a fact about it."""
    match fact:
        case f.WorkspaceBegun(snapshot, packs, omitted):
            begun = replace(known, snapshot=snapshot, base=snapshot, packs=packs, omitted=omitted)
            return replace(begun, base_packs=packs)
        case f.WorkspaceMade(epoch, machine, anew):
            # Of another machine's copy nobody knows whether the set-up has run in it to its end.
            set_up = known.set_up and not anew and machine == known.machine
            made = replace(known, epoch=epoch, machine=machine, failures=0)
            return replace(made, set_up=set_up, setting_up=0)
        case f.WorkspaceSetupBegun(epoch):
            return replace(known, set_up=False, setting_up=epoch)
        case f.WorkspaceSetupEnded(result):
            return replace(known, set_up=result == "done", setting_up=0)
        case f.WorkspaceNotMade():
            return replace(known, failures=known.failures + 1)
        case f.WorkspaceSaved():
            return _saved(known, fact)
        case f.WorkspaceUnsaved(since_ms, machine, _, call_ids, snapshot, blocked, trying, at_ms):
            kept = Unsaved(since_ms, machine, call_ids, snapshot, blocked, trying, at_ms)
            return replace(known, unsaved=kept)
        case f.WorkspaceTried():
            unsaved = replace(known.unsaved, trying=True) if known.unsaved is not None else None
            return replace(known, unsaved=unsaved)
        case f.WorkspaceSettled():
            return replace(known, unsaved=None)
        case f.WorkspaceRolledBack(to):
            stands = known.unsaved is not None and to is not None and to == known.unsaved.snapshot
            return replace(known, epoch=0, unsaved=known.unsaved if stands else None)
        case f.WorkspaceMerged(agent_id=agent_id, snapshot=snapshot, packs=packs):
            return replace(known, merged={**known.merged, str(agent_id): Merged(snapshot, packs)})
        case f.WorkspaceCopied(copied=copied):
            return replace(known, copied=copied)
        case f.WorkspaceGiven(agent_id, _, folder):
            return replace(known, given={**known.given, str(agent_id): folder})
        case f.WorkspaceOffered(agent_id, offer):
            return replace(known, offered={**known.offered, str(agent_id): offer})
        case _:
            assert_never(fact)


def _saved(known: Workspace, fact: f.WorkspaceSaved) -> Workspace:
    packs = (fact.pack,) if fact.pack.whole else (*known.packs, fact.pack)
    return replace(
        known,
        snapshot=fact.snapshot,
        packs=packs,
        unsaved=None,
        change=fact.change,
        recorded=fact.call_ids,
        omitted=fact.omitted,
    )


def runs_again(known: Workspace, call_id: CallId) -> Workspace:
    """The folder as a call begins to run: nothing that it will write is recorded."""
    recorded = tuple(one for one in known.recorded if one != call_id)
    return replace(known, recorded=recorded, partly=tuple(one for one in known.partly if one != call_id))
