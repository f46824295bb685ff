"""How a task ends before its work is done: stopped, refused, or failed.

A response may have asked for a thousand calls, people may have said a hundred things since, and every
call gets an output and every word its place in the conversation. One commit does not carry all of
that. So a task that has much open ends piece by piece, each piece within a commit's bounds:

    stopping ──► ending ──► a piece, a piece, … ──► the last piece ends the task
       │                                                   ▲
       └── nothing runs, and it all fits ──────────────────┘

What is left is in the state, and owed (`CloseCalls`): if the worker is lost between two pieces, the
next one goes on with the third. Nothing of the task starts meanwhile, as in any that is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import CANCELLED, awaited_helpers, child_summary
from orchestrator.core.calls import HelperWork
from orchestrator.core.context import TURN_ABORTED_MARKER
from orchestrator.core.decide.approval_events import withdrawn
from orchestrator.core.decide.branch import keep, leave
from orchestrator.core.decide.budget import give_up_waiting
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.cancel import expect_ends, flag_and_notify
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.process import stop_processes
from orchestrator.core.frozen import record
from orchestrator.core.history import Item, user_message
from orchestrator.core.state import Task
from orchestrator.core.task_kinds import StopReason
from orchestrator.core.timers import RETRY_TIMER, approval_timer, wait_timer
from orchestrator.core.turn_calls import ANSWERABLE, Call, Phase
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import SubAgentErr
from orchestrator.protocol.faults import CodexErrorInfo
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import TurnAbortReason

BY_USER = "aborted by user"
BY_FAILURE = "aborted because the model request failed"
FAILED: Final = "failed"
KILLING = frozenset({"interrupted", "canceled"})
"""Reasons to stop a task with which the session's processes end as well."""
MOST_ITEMS = 96
"""Items of one piece. A step that holds 127 entries takes one more decision, and a commit carries 256."""
MOST_BYTES = 128 << 10
"""Bytes of one piece; a single item may be as large, but no larger."""


@record
class Piece:
    """The items that one decision closes: first calls, then what people said meanwhile."""

    calls: Sequence[Call]
    said: Sequence[Item]
    last: bool
    """Whether nothing is left behind this piece."""


# ── beginning to end ──────────────────────────────────────────────────────────────────────────


def stop(draft: Draft, reason: StopReason, by: str | None = None) -> None:
    """Aborts the task: at once if nothing of it runs, else when what runs is proved stopped."""
    task = draft.state.task
    if task is None:
        return
    if reason in KILLING:
        stop_processes(draft)
    if task.stopping:
        return
    if task.request is not None or task.running or draft.state.processes.stopping or _sets_up(draft):
        draft.add(f.Stopping(reason, by))
        return
    if not _piece(task, BY_USER).last:
        draft.add(f.Stopping(reason, by))
    _end(draft, reason, BY_USER)


def fail(
    draft: Draft, message: str, codex_error_info: CodexErrorInfo = None, output: str = BY_FAILURE
) -> None:
    """Fails the task when what runs of it is stopped; its open calls get `output`, which nobody will read."""
    task = draft.task
    runs = task.running or _sets_up(draft)
    if runs or not _piece(task, output).last:
        draft.add(f.Failing(message, codex_error_info), f.Stopping(FAILED))
        if runs:
            return
    _end(draft, FAILED, output, (message, codex_error_info))


def _sets_up(draft: Draft) -> bool:
    """Whether the set-up of the session's folder runs under this claim."""
    return draft.state.workspace.setting_up == draft.moment.epoch != 0


def all_stopped(draft: Draft, elapsed_s: Mapping[str, float]) -> None:
    """Ends the stopping task, whose work has all ended, for the reason that it was stopped for."""
    reason = draft.task.stopping
    if reason is None:
        raise DoesNotFit("nothing was being stopped")
    _end(draft, reason, BY_FAILURE if reason == FAILED else BY_USER, elapsed_s=elapsed_s)


def go_on(draft: Draft) -> None:
    """Closes the next piece of a task that is ending."""
    task = draft.state.task
    if task is None or task.stopping is None or task.ending is None:
        raise DoesNotFit("nothing is ending")
    _end(draft, task.stopping, task.ending)


# ── piece by piece ────────────────────────────────────────────────────────────────────────────


def _end(
    draft: Draft,
    reason: StopReason,
    output: str,
    failure: tuple[str, CodexErrorInfo] | None = None,
    elapsed_s: Mapping[str, float] | None = None,
) -> None:
    task = draft.task
    give_up_waiting(draft)
    if task.request is not None:
        draft.add(f.RequestStopped(task.request.n))
    if task.wait:
        draft.clear_timer(RETRY_TIMER)
    piece = _piece(task, output)
    if not piece.last and not task.ending:
        draft.add(f.Ending(output))
    for call in piece.calls:
        _close(draft, call, output, (elapsed_s or {}).get(call.call_id))
    _end_helpers(draft, awaited_helpers(piece.calls), output)
    for item in piece.said:
        draft.add(e.item(item))
    if piece.last:
        # The calls end with their task: no entry tells their phase.
        _over(draft, reason, failure or (task.failure or "", task.failure_info))
        return
    if piece.calls:
        draft.add(f.CallsClosed(tuple(call.call_id for call in piece.calls)))
    if piece.said:
        draft.add(f.SteeredJoined(len(piece.said)))


def _piece(task: Task, output: str) -> Piece:
    # What ran comes first: only now is it known for how long.
    open_calls = sorted(task.calls.open, key=lambda call: call.phase is not Phase.RUNNING)
    sizes = [len(call.call_id) + len(output) for call in open_calls]
    calls = open_calls[: _fitting(sizes, MOST_ITEMS)]
    left = MOST_ITEMS - len(calls)
    said = first_said(task, left) if len(calls) == len(open_calls) and left else ()
    return Piece(calls, said, (len(calls), len(said)) == (len(open_calls), len(task.steered)))


def _fitting(sizes: Sequence[int], most: int) -> int:
    """How many items one piece takes; at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count == most or (count and total > MOST_BYTES):
            return count
    return len(sizes)


def first_said(task: Task, most: int = MOST_ITEMS) -> Sequence[Item]:
    """The oldest of the inputs that joined the task, as many as one decision can carry."""
    asked = task.steered[:most]
    return asked[: _fitting([len(orjson.dumps(item, default=dict)) for item in asked], most)]


def _close(draft: Draft, call: Call, output: str, after_s: float | None) -> None:
    """Gives the call the output of a stopped call; its request to people is withdrawn."""
    if call.phase in ANSWERABLE:
        draft.close_approval(call.call_id)
        draft.clear_timer(approval_timer(call.call_id))
        withdrawn(draft, call)
    elif call.phase is Phase.WAITING:
        draft.clear_timer(wait_timer(call.call_id))
    text = output if after_s is None else f"{output} after {after_s:.1f}s"
    close(draft, call, text, with_task=True)


def _end_helpers(draft: Draft, calls: Sequence[tuple[CallId, HelperWork]], why: str) -> None:
    """Cancels helpers of calls that end: their answers would not be read."""
    children = draft.state.tree.children
    asked = [children[work.agent_id] for _, work in calls]
    ending = [child for child in asked if child.active and not child.ending]
    for call_id, work in calls:
        draft.event(work.end(call_id, draft.moment.at_ms, SubAgentErr(Err=why), CANCELLED, {}))
    for child in ending:
        shown = child_summary(draft.state.facts, child)
        flag_and_notify(draft, child.session, child.agent_id, why, shown)
    if ending:
        expect_ends(draft, [child.agent_id for child in ending])


def _over(draft: Draft, reason: StopReason, failure: tuple[str, CodexErrorInfo]) -> None:
    """Ends the task with its final event."""
    message: str | None = None
    if reason == FAILED:
        # `error`, then `task_complete` with a null message (protocol order of every version).
        message, info = failure
        draft.add(e.error(draft.task.id, message, info))
        left = leave(draft)
        bookmark = draft.task.response_id if draft.task.kind == "user" else None
        draft.event(ev.TaskComplete(response_id=bookmark))
    else:
        if reason == "interrupted" and draft.task.branch is None:
            draft.add(e.item(user_message(TURN_ABORTED_MARKER)))
        left = leave(draft)
        draft.event(ev.TurnAborted(reason=_abort_reason(draft.task, reason)))
    draft.end_task(reason, message)
    keep(draft, left)


def _abort_reason(task: Task, reason: StopReason) -> TurnAbortReason:
    """The protocol's word for the reason; a review that other input ends has one of its own."""
    if reason == "canceled":
        return TurnAbortReason.INTERRUPTED
    if reason == "replaced" and task.kind == "review":
        return TurnAbortReason.REVIEW_ENDED
    return TurnAbortReason(reason)
