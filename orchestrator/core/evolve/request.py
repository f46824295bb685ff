"""`evolve` for the facts of a task's model requests."""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import facts as f
from orchestrator.core.evolve.task import task_of
from orchestrator.core.frozen import replace
from orchestrator.core.state import Request, Response, State, Task
from orchestrator.core.tokens import Usage, counted, lost
from orchestrator.core.turn_calls import Calls
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.wire import JsonMapping


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
