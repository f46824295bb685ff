"""`evolve`: one rollout entry applied to a state. It gains cases and never changes one.

It reads facts and never judges them: whatever is in the rollout happened. An entry of an
unknown type or kind leaves the state as it was, so that a newer peer's rollout folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.compaction import compacted_history
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import replace
from orchestrator.core.history import CALL_KINDS, INHERITED, Log, message_text
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import (
    ANSWERS_KEPT,
    THREAD_NAME,
    Answer,
    Call,
    Calls,
    Phase,
    Queued,
    Request,
    Response,
    State,
    Task,
)
from orchestrator.core.tokens import TokenInfo, Usage, counted, lost
from orchestrator.core.tree import TREE_STEPS

Payload = Mapping[str, Any]
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
            task = replace(task, last_message=message_text(payload))
        elif kind in CALL_KINDS and payload.get("call_id") and task.request is not None:
            call = Call(payload["call_id"], payload.get("name") or "local_shell", payload)
            task = replace(task, calls=task.calls.append(call))
    return replace(state, history=state.history.append(payload), task=task)


def _compacted(state: State, payload: Payload, seq: int) -> State:
    items, kept = payload.get("replacement_history"), tuple(payload.get("kept_user_texts") or ())
    if items is None:
        # The peer records the summary alone, and builds the new history from it again.
        kept, items = compacted_history(state, payload.get("message", ""))
    # Lengths of the old history mean nothing in the new one.
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
    return replace(state, task=replace(state.task, response_complete=False, summary=None))


def _turn_context(state: State, payload: Payload, seq: int) -> State:
    if state.native:
        return state
    return replace(state, settings=state.settings.changed({"effort": None, **payload}))


def _event_msg(state: State, payload: Payload, seq: int) -> State:
    if payload.get("type") != "token_count":
        return state
    changed: dict[str, Any] = {}
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
    kind = payload.get("kind", "")
    if kind in TREE_STEPS:
        return replace(state, tree=TREE_STEPS[kind](state.tree, payload))
    step = _BY_KIND.get(kind)
    return state if step is None else step(state, payload, seq)


def _configured(state: State, payload: Payload, seq: int) -> State:
    settings = TurnSettings.of(payload["settings"])
    return replace(state, native=True, settings=settings, facts=SessionFacts.of(payload["session"]))


def _settings(state: State, payload: Payload, seq: int) -> State:
    return replace(state, settings=state.settings.changed(payload["changes"]), native=True)


def _named(state: State, payload: Payload, seq: int) -> State:
    return replace(state, meta={**state.meta, THREAD_NAME: payload["name"]})


def _instructed(state: State, payload: Payload, seq: int) -> State:
    return replace(state, facts=replace(state.facts, base_instructions=payload["base_instructions"]))


def _queued(state: State, payload: Payload, seq: int) -> State:
    waiting = Queued(payload["id"], payload["op"], payload["client"])
    return replace(state, queue=(*state.queue, waiting))


def _steered(state: State, payload: Payload, seq: int) -> State:
    task = _task(state)
    return replace(state, task=replace(task, steered=(*task.steered, payload["item"])))


def _task_begun(state: State, payload: Payload, seq: int) -> State:
    settings = TurnSettings.of(payload["settings"])
    task = Task(
        payload["id"],
        payload["task"],
        settings,
        client=payload.get("client", ""),
        output_schema=payload.get("output_schema"),
    )
    # Two clients may use one id: a task takes the first of its name, not everybody's input.
    place = next((at for at, waiting in enumerate(state.queue) if waiting.id == task.id), len(state.queue))
    queue = (*state.queue[:place], *state.queue[place + 1 :])
    return replace(state, task=task, queue=queue, closed=False, native=True)


def _task_ended(state: State, payload: Payload, seq: int) -> State:
    return replace(state, task=None, outcome=payload["outcome"])


def _stopping(state: State, payload: Payload, seq: int) -> State:
    return replace(state, task=replace(_task(state), stopping=payload["reason"]))


def _closing(state: State, payload: Payload, seq: int) -> State:
    return replace(state, closing=payload["by"])


def _closed(state: State, payload: Payload, seq: int) -> State:
    return replace(state, closing="", closed=True)


def _request_begun(state: State, payload: Payload, seq: int) -> State:
    request = Request(payload["n"], payload["purpose"], payload["epoch"], len(state.history))
    task = replace(
        _task(state),
        request=request,
        response_complete=False,
        response_id="",
        usage=None,
        calls=Calls(),
        steered=(),
        summary=None,
        not_before_ms=0,
        wait=0,
    )
    return replace(state, task=task, requests=request.n)


def _request_ended(state: State, payload: Payload, seq: int) -> State:
    ended = _ENDINGS[payload["outcome"]](state, payload)
    if payload["outcome"] == "completed" or not payload.get("usage"):
        return ended
    return replace(ended, tokens=lost(state.tokens, Usage.of(payload["usage"])))


def _completed(state: State, payload: Payload) -> State:
    task = _task(state)
    turn = task.request is not None and task.request.purpose == "turn"
    usage = Usage.of(payload["usage"]) if payload.get("usage") else None
    ended = replace(
        task,
        request=None,
        response_complete=True,
        response_id=payload.get("response_id") or "",
        goes_on=payload.get("end_turn") is False,
        stream_retries=0,
        http_used=0,
        usage=usage,
    )
    return replace(
        state,
        task=ended,
        compacted=state.compacted and not turn,
        last_response=_response(task, ended.response_id, len(state.history)) if turn else state.last_response,
        tokens=counted(state.tokens, usage) if usage else state.tokens,
    )


def _response(task: Task, response_id: str, length: int) -> Response | None:
    if task.request is None or not response_id:
        return None
    settings = task.settings
    return Response(response_id, settings.model_provider, settings.model, task.request.sent, length)


def _retry(state: State, payload: Payload) -> State:
    task = _task(state)
    retried = replace(
        task,
        request=None,
        stream_retries=task.stream_retries + 1,
        http_used=payload.get("http_used", 0),
        not_before_ms=payload.get("not_before_ms", 0),
        wait=payload.get("wait", 0),
    )
    return replace(state, task=retried, timers=max(state.timers, retried.wait))


def _waiting(state: State, payload: Payload) -> State:
    """The provider or the fleet's own limit asked for patience: no stream broke."""
    task = _task(state)
    waiting = replace(
        task,
        request=None,
        http_used=payload.get("http_used", 0),
        not_before_ms=payload.get("not_before_ms", 0),
        wait=payload.get("wait", 0),
    )
    return replace(state, task=waiting, timers=max(state.timers, waiting.wait))


def _ended(state: State, payload: Payload) -> State:
    return replace(state, task=replace(_task(state), request=None))


_ENDINGS: Mapping[str, Callable[[State, Payload], State]] = {
    "completed": _completed,
    "retry": _retry,
    "waiting": _waiting,
    "failed": _ended,
    "stopped": _ended,
}


def _call(state: State, payload: Payload, seq: int) -> State:
    task = _task(state)
    call = task.call(payload["call_id"])
    if call is None:
        return state
    phase = Phase(payload["phase"])
    changes: dict[str, Any] = {name: payload[name] for name in ("epoch", "spec") if name in payload}
    if phase is Phase.AWAITING_APPROVAL:
        changes["asked_seq"] = seq
    task = task.with_call(call.moved(phase, changes))
    if payload.get("baselines"):
        changed = payload["baselines"]
        kept = {path: data for path, data in task.baselines.items() if path not in changed["drop"]}
        task = replace(task, baselines={**kept, **changed["set"]})
    return replace(state, task=task)


def _answer(state: State, payload: Payload, seq: int) -> State:
    answer = Answer(payload["call_id"], payload["turn"], payload["decision"], payload["who"])
    return replace(state, answers=(*state.answers, answer)[-ANSWERS_KEPT:])


def _approved_for_session(state: State, payload: Payload, seq: int) -> State:
    roots = tuple(dict.fromkeys((*state.granted_roots, *payload["roots"])))
    return replace(state, approved=state.approved | set(payload["keys"]), granted_roots=roots)


def _summary(state: State, payload: Payload, seq: int) -> State:
    task = _task(state)
    return replace(state, task=replace(task, summary=(task.summary or "") + payload["text"]))


def _rewound(state: State, payload: Payload, seq: int) -> State:
    length = payload["length"]
    kept = Log.of(mark for mark in state.bookmarks if mark[1] <= length)
    # The provider's copy of the conversation goes on from the turn that was left.
    return replace(state, history=state.history.prefix(length), bookmarks=kept, last_response=None)


def _forked(state: State, payload: Payload, seq: int) -> State:
    """The parent's conversation, whole and unread: only whoever shows it to a model opens it."""
    inherited = {"type": INHERITED, "content": payload["content"]}
    return replace(state, history=state.history.append(inherited), native=True)


def _timer(state: State, payload: Payload, seq: int) -> State:
    return replace(state, timers=max(state.timers, payload["generation"]))


def _retry_due(state: State, payload: Payload, seq: int) -> State:
    return replace(state, task=replace(_task(state), wait=0, not_before_ms=0))


def _rate_limits(state: State, payload: Payload, seq: int) -> State:
    return replace(state, rate_limits=payload["snapshot"])


def _failing(state: State, payload: Payload, seq: int) -> State:
    task = replace(_task(state), failure=payload["message"], failure_info=payload.get("info"))
    return replace(state, task=task)


def _ending(state: State, payload: Payload, seq: int) -> State:
    return replace(state, task=replace(_task(state), ending=payload["output"]))


def _calls_closed(state: State, payload: Payload, seq: int) -> State:
    task = _task(state)
    return replace(state, task=replace(task, calls=task.calls.closed(frozenset(payload["call_ids"]))))


def _steered_joined(state: State, payload: Payload, seq: int) -> State:
    task = _task(state)
    return replace(state, task=replace(task, steered=task.steered[payload["count"] :]))


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

_BY_KIND: Mapping[str, Step] = {
    "configured": _configured,
    "settings": _settings,
    "instructed": _instructed,
    "named": _named,
    "queued": _queued,
    "steered": _steered,
    "task": _task_begun,
    "task_ended": _task_ended,
    "stopping": _stopping,
    "closing": _closing,
    "closed": _closed,
    "request_begun": _request_begun,
    "request_ended": _request_ended,
    "call": _call,
    "answer": _answer,
    "approved_for_session": _approved_for_session,
    "summary": _summary,
    "rewound": _rewound,
    "forked": _forked,
    "timer": _timer,
    "retry_due": _retry_due,
    "rate_limits": _rate_limits,
    "failing": _failing,
    "ending": _ending,
    "calls_closed": _calls_closed,
    "steered_joined": _steered_joined,
}
