"""`evolve`: one rollout entry applied to a state. It gains cases and never changes one.

It reads facts and never judges them: whatever is in the rollout happened. An entry of an
unknown type or kind leaves the state as it was, so that a newer version's rollout folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import VariantsWork
from orchestrator.core.compaction import summarised_history
from orchestrator.core.entries import Entry
from orchestrator.core.evolve_processes import evolve_processes
from orchestrator.core.evolve_tree import evolve_tree
from orchestrator.core.frozen import replace
from orchestrator.core.history import CALL_KINDS, INHERITED, Item, Log, message_text
from orchestrator.core.modes import plans
from orchestrator.core.secrets import SecretAnswer
from orchestrator.core.state import (
    ANSWERS_KEPT,
    EARLIER,
    FOLDERS,
    LOOKUPS,
    MOST_EARLIER,
    PINNED,
    THREAD_NAME,
    Answer,
    Branch,
    Call,
    Calls,
    Elicitation,
    Phase,
    Queued,
    Request,
    Response,
    State,
    Task,
)
from orchestrator.core.tagged import proposal
from orchestrator.core.tokens import TokenInfo, Usage, counted, lost
from orchestrator.core.user_shell import shell_call
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

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
    return state if state.meta else replace(state, meta=payload)


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
    items, kept = payload.get("replacement_history"), tuple(payload.get("kept_user_texts") or ())
    if items is None:
        # Codex records the summary alone, and builds the new history from it again.
        kept, items = summarised_history(state, payload.get("message", ""))
    if state.task is not None and state.task.branch is not None:
        branch = replace(state.task.branch, items=Log.of(items), kept_user_texts=kept, compacted=True)
        task = replace(state.task, branch=branch, response_complete=False, summary=None, rescue=0)
        return replace(state, task=task)
    if payload.get("turns_kept"):
        turns = (*state.earlier_turns, *(mark for mark, _ in state.bookmarks))
        state = _noted(state, EARLIER, turns[-MOST_EARLIER:])
    # Lengths of the old history mean nothing in the new one.
    if state.pinned is not None:
        state = _kept(state, PINNED, {"plan": state.pinned, "length": 0})
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
    return replace(state, settings=state.settings.changed({"effort": None, **payload}))


def _event_msg(state: State, payload: Payload, seq: int) -> State:
    if payload.get("type") != "token_count":
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


# ── facts ─────────────────────────────────────────────────────────────────────────────────────


def stated(state: State, fact: f.Fact | f.UnknownFact, seq: int) -> State:
    """The state after a fact, which the rollout's entry number `seq` states."""
    # By their tag, since a fold asks this of every third entry: a question for five classes takes longer.
    if fact.of == "call":
        return _call_moved(state, fact, seq)
    if fact.of == "request":
        return _of_request(state, fact)
    if fact.of == "task":
        return _of_task(state, fact)
    if fact.of == "agent":
        return replace(state, tree=evolve_tree(state.tree, fact))
    if fact.of == "session":
        return _of_session(state, fact)
    if fact.of == "process":
        return replace(state, processes=evolve_processes(state.processes, fact))
    if fact.of == "nothing":
        return state
    assert_never(fact)


def _of_session(state: State, fact: f.SessionFact) -> State:
    match fact:
        case f.TimerTaken(generation):
            return replace(state, timers=max(state.timers, generation))
        case f.Configured(settings, session):
            return replace(state, native=True, settings=settings, facts=session)
        case f.SettingsChanged(changes):
            return replace(state, settings=state.settings.changed(changes), native=True)
        case f.Instructed(text):
            return replace(state, facts=replace(state.facts, base_instructions=text or None))
        case f.Named(name):
            return replace(state, meta={**state.meta, THREAD_NAME: name})
        case f.InputQueued(id, turn, client):
            return replace(state, queue=(*state.queue, Queued(id, turn, client)))
        case f.Closing(by):
            return replace(_noted(state, LOOKUPS, ()), closing=by)
        case f.Closed():
            return replace(state, closing=None, closed=True)
        case f.RateLimitsReported(snapshot):
            return replace(state, rate_limits=snapshot)
        case f.Answered():
            answer = Answer(fact.call_id, fact.turn, fact.decision, fact.who, fact.digest)
            if fact.decision == "revised" and fact.agent_id is None and state.task is not None:
                state = replace(state, task=replace(state.task, drafted=False))
            state = replace(state, answers=(*state.answers, answer)[-ANSWERS_KEPT:])
            return state if not fact.secret else _secret_told(state, fact)
        case f.ApprovedForSession(keys, granted):
            roots = tuple(dict.fromkeys((*state.granted_roots, *granted)))
            return replace(state, approved=state.approved | set(keys), granted_roots=roots)
        case f.Rewound(content=None):
            return _rewound(state, fact.length)
        case f.Rewound():
            return _restored(state, fact)
        case f.LookUpAsked(id, op, client, who):
            asked = {"id": id, "op": op, "client": client, "who": who}
            return _noted(state, LOOKUPS, (*state.meta.get(LOOKUPS, ()), asked))
        case f.LookUpEnded(id, client):
            ended = (id, client)
            left = [one for one in state.meta.get(LOOKUPS, ()) if (one["id"], one["client"]) != ended]
            return _noted(state, LOOKUPS, left)
        case f.FoldersTold(folders):
            return _noted(state, FOLDERS, folders)
        case f.PlanPinned(plan):
            return _kept(state, PINNED, {"plan": plan, "length": len(state.history)})
        case f.Forked(_, content, texts, instructions):
            inherited = _inherited(content, texts, instructions)
            return replace(state, history=state.history.append(inherited), native=True)
        case _:
            assert_never(fact)


def _secret_told(state: State, fact: f.Answered) -> State:
    if state.task is None:
        return state
    secrets = (*state.task.secrets, SecretAnswer(fact.call_id, fact.secret))
    return replace(state, task=replace(state.task, secrets=secrets))


def _noted(state: State, name: str, values: Sequence[JsonValue]) -> State:
    """The state with a list that only some sessions have; without it if it is empty."""
    return _kept(state, name, list(values) or None)


def _kept(state: State, name: str, value: JsonValue) -> State:
    """The state with something that only some sessions have; without it if it is None."""
    if value is None:
        return replace(state, meta={k: v for k, v in state.meta.items() if k != name})
    return replace(state, meta={**state.meta, name: value})


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
    turns = tuple(state.earlier_turns)
    if fact.response_id in turns:
        turns = turns[: turns.index(fact.response_id) + 1]
    # A plan that waits was approved later: the first task after it would have taken it.
    return replace(
        _kept(_noted(state, EARLIER, turns), PINNED, None),
        history=Log.of([_inherited(fact.content, fact.user_texts, fact.instructions)]),
        kept_user_texts=(),
        bookmarks=Log(),
        last_response=None,
        compacted=False,
    )


def _rewound(state: State, length: int) -> State:
    kept = Log.of(mark for mark in state.bookmarks if mark[1] <= length)
    if (pinned := state.meta.get(PINNED)) and length < pinned["length"]:
        # The plan was talked about in what is left behind.
        state = _kept(state, PINNED, None)
    # The provider's copy of the conversation goes on from the turn that was left.
    return replace(state, history=state.history.prefix(length), bookmarks=kept, last_response=None)


# ── the task ──────────────────────────────────────────────────────────────────────────────────


def _of_task(state: State, fact: f.TaskFact) -> State:
    match fact:
        case f.TaskBegun():
            return _task_begun(state, fact)
        case f.TaskEnded(outcome):
            return replace(_without_branch(state), task=None, outcome=outcome)
        case f.Stopping(reason):
            return replace(state, task=replace(_task(state), stopping=reason))
        case f.Failing(message, info):
            return replace(state, task=replace(_task(state), failure=message, failure_info=info))
        case f.Ending(output):
            return replace(state, task=replace(_task(state), ending=output))
        case f.CallsClosed(call_ids):
            task = _task(state)
            return replace(state, task=replace(task, calls=task.calls.closed(frozenset(call_ids))))
        case f.ElicitationOpened(call_id, id, server, timer):
            task, asked = _task(state), Elicitation(id, call_id, server, timer)
            return replace(state, task=replace(task, elicitations=(*task.elicitations, asked)))
        case f.ElicitationClosed(id, decision):
            task = _task(state)
            decided = [
                replace(asked, decision=decision) if asked.id == id else asked for asked in task.elicitations
            ]
            return replace(state, task=replace(task, elicitations=tuple(decided)))
        case f.Steered(_, item):
            task = _task(state)
            return replace(state, task=replace(task, steered=(*task.steered, item)))
        case f.SteeredJoined(count):
            task = _task(state)
            return replace(state, task=replace(task, steered=task.steered[count:]))
        case f.VariantDrafted():
            return replace(state, task=_variant_drafted(_task(state), fact))
        case f.PlanDecided(_, plan):
            return replace(state, task=replace(_task(state), result={"plan": plan}))
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
        state = _kept(state, PINNED, None)
    # Two clients may use one id: a task takes the first of its name, not everybody's input.
    place = next((at for at, waiting in enumerate(state.queue) if waiting.id == task.id), len(state.queue))
    queue = (*state.queue[:place], *state.queue[place + 1 :])
    tokens = state.tokens
    if tokens is not None and fact.task == "review":
        # Its window is empty: the one that the session's conversation fills is put back with its end.
        tokens = TokenInfo(tokens.total, Usage())
    return replace(state, task=task, queue=queue, closed=False, native=True, tokens=tokens)


def _variant_drafted(task: Task, fact: f.VariantDrafted) -> Task:
    call = task.call(fact.call_id)
    if call is None or not isinstance(call.work, VariantsWork):
        return task
    results = {**call.work.results, str(fact.agent_id): fact.variant}
    return task.with_call(replace(call, work=replace(call.work, results=results)))


def _branch(state: State, fact: f.TaskBegun) -> Branch | None:
    """The conversation of its own that a task begins with, by its kind."""
    last = state.tokens.last if state.tokens is not None else None
    match fact.task:
        case "plan":
            # With what was said so far: one can plan what was just talked about. A log is shared, not copied.
            items = _joined(state.history, fact.opening)
            kept, opening = state.kept_user_texts, fact.opening
            return Branch(state.settings, items, opening, kept, state.compacted, last)
        case "review":
            # With nothing of what was said: a reviewer judges what it finds.
            return Branch(state.settings, Log.of(fact.opening), fact.opening, last_usage=last)
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
    return replace(state, tokens=TokenInfo(state.tokens.total, branch.last_usage or Usage()))


# ── its model requests ────────────────────────────────────────────────────────────────────────


def _of_request(state: State, fact: f.RequestFact) -> State:
    match fact:
        case f.RequestBegun():
            return _request_begun(state, fact)
        case f.RequestCompleted():
            return _request_completed(state, fact)
        case f.RequestRetried() | f.RequestDelayed():
            return _tokens_lost(_to_be_sent_again(state, fact), fact.usage)
        case f.RequestFailed(usage=usage, overflow=True):
            return _tokens_lost(replace(state, task=_overflowed(_task(state))), usage)
        case f.RequestFailed(usage=usage) | f.RequestStopped(usage=usage):
            ended = replace(state, task=replace(_task(state), request=None))
            return _tokens_lost(ended, usage)
        case f.RetryDue():
            return replace(state, task=replace(_task(state), wait=0, not_before_ms=0))
        case f.SummaryReceived(text):
            task = _task(state)
            return replace(state, task=replace(task, summary=(task.summary or "") + text))
        case _:
            assert_never(fact)


def _request_begun(state: State, fact: f.RequestBegun) -> State:
    request = Request(fact.n, fact.purpose, fact.epoch, len(state.conversation))
    task = replace(
        _task(state),
        request=request,
        response_complete=False,
        response_id=None,
        usage=None,
        calls=Calls(),
        steered=(),
        summary=None,
        not_before_ms=0,
        wait=0,
    )
    return replace(state, task=task, requests=request.n)


def _request_completed(state: State, fact: f.RequestCompleted) -> State:
    task = _task(state)
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
    task = _task(state)
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


def _tokens_lost(state: State, usage: Payload | None) -> State:
    """A response that was not completed has used tokens all the same."""
    return replace(state, tokens=lost(state.tokens, Usage.of(usage))) if usage else state


# ── its tool calls ────────────────────────────────────────────────────────────────────────────


def _call_moved(state: State, fact: f.CallMoved, seq: int) -> State:
    task = _task(state)
    call = task.call(fact.call_id)
    if call is None:
        return state
    changes: dict[str, object] = {} if fact.epoch is None else {"epoch": fact.epoch}
    if fact.work is not None:
        changes["work"] = fact.work
    if isinstance(fact.work, VariantsWork):
        task = replace(task, drafted=True)
    if fact.phase is Phase.AWAITING_APPROVAL or fact.phase is Phase.ASKING:
        changes["asked_seq"] = seq
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


def _task(state: State) -> Task:
    if state.task is None:
        raise ValueError("the rollout has an entry of a task where no task holds the session")
    return state.task


_BY_TYPE: Mapping[str, Step] = {
    e.SESSION_META: _session_meta,
    e.RESPONSE_ITEM: _response_item,
    e.COMPACTED: _compacted,
    e.TURN_CONTEXT: _turn_context,
    e.EVENT_MSG: _event_msg,
    e.DENDRO: _dendro,
}
