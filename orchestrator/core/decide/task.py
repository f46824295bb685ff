"""How a task begins, settles after a response, and completes; and what the session does next.

Behind it: how a task ends before its work is done, its wait for the tree's budget, and planning sessions and
reviews.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, assert_never

import orjson

from orchestrator.core import context
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import CANCELLED, awaited_helpers, child_summary
from orchestrator.core.birth import inherited_history
from orchestrator.core.blobs import is_reference
from orchestrator.core.calls import ANSWERABLE, Call, HelperWork, Phase, PlanWork
from orchestrator.core.commands import CommitRefused
from orchestrator.core.commit_parts import BUDGET_TIMER, RETRY_TIMER, approval_timer, wait_timer
from orchestrator.core.compaction import LONG_TEXT, newest_texts, nothing_said, stored_texts
from orchestrator.core.decide.agent import (
    come_to_rest,
    end_watchdogs,
    expect_ends,
    flag_and_notify,
    stop_processes,
    took_task,
)
from orchestrator.core.decide.call_end import close, withdrawn
from orchestrator.core.decide.draft import DoesNotFit, Draft, publish_input, show_tokens
from orchestrator.core.decide.folder_fault import folder_fault
from orchestrator.core.decide.mail_delivery import mail_begins
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, message_text, opened_message, user_message
from orchestrator.core.modes import (
    helper_settings,
    mode_kind,
    not_told,
    plan_text,
    plans,
    session_told,
    settings_named,
    task_settings,
)
from orchestrator.core.review import assignment, brief, request_fault, review_message, reviewed
from orchestrator.core.settings import Rules, SettingsChanges, TurnSettings
from orchestrator.core.state import Branch, Queued, State, Task, TaskPhase, task_phase
from orchestrator.core.tokens import counted
from orchestrator.core.user_turns import (
    StopReason,
    TaskKind,
    UserTurn,
    UserTurnOp,
    input_messages,
    user_message_event,
)
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.agents import BudgetReport, SubAgentErr
from orchestrator.protocol.events import CodexErrorInfo, RateLimitSnapshot, WarningEvent
from orchestrator.protocol.ids import CallId, ResponseId, SubmissionId
from orchestrator.protocol.items import InputText, Message, OutputText
from orchestrator.protocol.plans import PlanOutputEvent
from orchestrator.protocol.review import ReviewRequest
from orchestrator.protocol.scalars import ModeKind, TurnAbortReason
from orchestrator.protocol.wire import EventModel, ItemModel, JsonObject, written

NOTHING_TO_COMPACT = "nothing to compact: nothing was said since the conversation began, or was compacted"
ENDED = "this agent was cancelled or pruned: it takes no more input"
NO_RATE_LIMITS = written(RateLimitSnapshot())


def start_next(draft: Draft) -> None:
    """Gives the free session to what waits for it: a shutdown first, then queued input, then mail."""
    state = draft.state
    if state.task is not None:
        return
    if state.closing:
        # A tree is closed from below: its end is told when nothing of it is left.
        if not (state.tree.ending_children or state.processes.living):
            close_session(draft, state.closing)
    elif state.takes_nothing:
        return
    elif state.queue and _may_take_input(draft):
        if lies_before(state, state.queue[0].turn):
            _look_for_turn(draft, state.queue[0])
            return
        begin_task(draft, state.queue[0])
        draft.sender = None
        # A compaction that has nothing to do is over at once.
        start_next(draft)
    elif mail_begins(draft):
        if draft.over is not None and draft.over.outcome == FAILED:
            # The parent is told of the failure first: another task will have another result.
            come_to_rest(draft)
        begin_mail_task(draft)


def _may_take_input(draft: Draft) -> bool:
    """Whether queued input begins a task: a session that was closed over it waits for more input."""
    state = draft.state
    return not state.closed or len(state.queue) > len(draft.before.queue) or state.looks_for_turn


def close_session(draft: Draft, by: str) -> None:
    """The session is over until somebody resumes it."""
    end_watchdogs(draft)
    draft.export = True
    draft.add(f.Closed(), e.event(by, ev.ShutdownComplete()))


def lies_before(state: State, turn: UserTurn) -> bool:
    """Whether input goes on from a turn before a compaction: the log is read for it first."""
    mark = turn.bookmark
    return mark is not None and mark in state.earlier_turns and bookmarked(state, mark) is None


def _look_for_turn(draft: Draft, waiting: Queued) -> None:
    """Lets the input wait for the conversation that it goes on from; nothing else begins before it."""
    asked = ops.UserInput(items=(), last_response_id=waiting.turn.bookmark)
    if not draft.state.looks_for_turn:
        draft.add(f.LookUpAsked(waiting.id, written(asked), waiting.client, "", waiting.by))


def turn_away(draft: Draft) -> None:
    """Answers inputs that wait in an agent that begins nothing any more, as many as one commit carries."""
    queue = draft.state.queue
    if draft.state.looks_for_turn:
        draft.add(f.LookUpEnded(queue[0].id, queue[0].client))
    draft.add(*(e.error(waiting.id, ENDED) for waiting in queue[:MOST_ITEMS]))
    draft.add(f.QueueOrdered(tuple(waiting.id for waiting in queue[MOST_ITEMS:])))


def begin_task(draft: Draft, waiting: Queued, past: State | None = None) -> None:
    """A user turn (a compaction, or a person's command) takes the session.

    `past` is the state at the turn that it goes on from, if a compaction lies between.
    """
    # It may begin because another one's task was stopped.
    draft.sender = waiting.by
    turn = waiting.turn
    if (fault := folder_fault(draft.state, turn.op)) is not None:
        # What waited before it has changed the folder that its own is named from.
        _fail_at_once(draft, waiting, f"{fault}: nothing was said to the model")
        return
    if turn.bookmark:
        if past is None and bookmarked(draft.state, turn.bookmark) is None:
            _fail_at_once(draft, waiting, _left_meanwhile(turn.bookmark))
            return
        _rewind(draft, turn.bookmark, past)
    bring_settings(draft, turn)
    kind: TaskKind = "compact" if isinstance(turn.op, ops.Compact) else "user"
    if isinstance(turn.op, ops.RunUserShellCommand):
        kind = "shell"
        # Not the settings of a mode: that is about what the model does.
        settings, command = draft.state.settings, turn.op.command
        begun = f.TaskBegun(waiting.id, kind, settings, client=waiting.client, command=command)
        _task_begins(draft, begun)
    elif (branch := beginning(draft, turn.op)) is not None:
        kind = branch.kind
        _branch_begins(draft, waiting, branch)
    else:
        settings = task_settings(draft.state.settings)
        begun = f.TaskBegun(waiting.id, kind, settings, turn.output_schema, waiting.client)
        _task_begins(draft, replace(begun, takes_plan=kind == "user" and _takes_plan(draft.state, waiting)))
    if kind == "user":
        draft.add(*map(e.item, input_messages(turn.items)))
        draft.add(e.event(waiting.id, user_message_event(turn.items, turn.client_id, waiting.by)))
        publish_input(draft, turn.items)
    if kind == "compact" and nothing_said(draft.state.history) and not draft.state.queue:
        draft.event(ev.WarningEvent(message=NOTHING_TO_COMPACT))
        complete(draft, None)
    if (stopping := _replacing(draft.state)) is not None:
        # More input came while this one waited: the seeds' rule holds for it as well,
        # new input aborts the task that it meets. Its message stays in the history. One
        # task a decision: a long queue begun at once would not fit into a commit.
        draft.add(stopping)


def _replacing(state: State) -> f.Stopping | None:
    """The stop of what runs for the first of the inputs that wait, if one of them asks for it."""
    if not any(waiting.turn.replaces for waiting in state.queue):
        return None
    return f.Stopping("replaced", state.queue[0].id, state.queue[0].by)


def _takes_plan(state: State, waiting: Queued) -> bool:
    """Whether the input's task is shown the plan that was approved last, unless it is replaced at once."""
    replaced = any(other is not waiting and other.turn.replaces for other in state.queue)
    return state.pinned is not None and state.facts.is_root and not replaced


def _branch_begins(draft: Draft, waiting: Queued, branch: Beginning) -> None:
    begun = f.TaskBegun(
        waiting.id, branch.kind, branch.settings, client=waiting.client, opening=branch.opening
    )
    _task_begins(draft, begun)
    draft.event(branch.event)


def _left_meanwhile(bookmark: ResponseId) -> str:
    """The failure of input whose turn was there when it was submitted: others went back further."""
    return (
        f"turn {bookmark} was left by input that came before: nothing was said to the model; "
        "say it again, to a turn that is still there"
    )


def _fail_at_once(draft: Draft, waiting: Queued, why: str) -> None:
    """Fails input that could be served when it was submitted: what was queued before it has changed that."""
    begin_failing(draft, waiting)
    if (stopping := _replacing(draft.state)) is not None:
        # As of all that waits, one task a decision begins.
        draft.add(e.error(waiting.id, why), stopping)
    elif draft.state.queue:
        # What waits behind it may fail as well: all of that would not fit into a commit.
        draft.add(f.Failing(why), f.Stopping(FAILED))
    else:
        fail(draft, why)


def begin_failing(draft: Draft, waiting: Queued) -> None:
    """Begins the task of input that cannot be served: what was said does not join the conversation."""
    draft.sender = waiting.by
    settings = task_settings(draft.state.settings)
    _task_begins(draft, f.TaskBegun(waiting.id, "user", settings, client=waiting.client))


def _task_begins(draft: Draft, begun: f.TaskBegun) -> None:
    settings = begun.settings
    draft.add(
        replace(begun, by=draft.sender),
        e.event(
            begun.id,
            ev.task_started(settings.context_window, mode_kind(settings)),
        ),
    )
    took_task(draft)
    if begun.task == "user":
        draft.add(*map(e.item, not_told(draft.state.history, settings)))


def begin_mail_task(draft: Draft) -> None:
    """A task that no submission started: its first request carries the mail."""
    number = draft.state.tree.autos + 1
    draft.add(f.AgentChanged({"autos": number}))
    settings = task_settings(draft.state.settings)
    _task_begins(draft, f.TaskBegun(SubmissionId(f"auto-{number}"), "user", settings))


def _rewind(draft: Draft, response_id: ResponseId, past: State | None) -> None:
    """The conversation goes on from an earlier turn; settings do not go back with it."""
    length = bookmarked(draft.state, response_id)
    if length is not None:
        cut_back(draft, response_id, length)
    elif past is not None:
        _put_back(draft, response_id, past)


def _put_back(draft: Draft, response_id: ResponseId, past: State) -> None:
    """Puts the conversation of before a compaction in; the model is told how the settings differ now."""
    content, _ = inherited_history(past.history, frozenset())
    texts, instructions = stored_texts(newest_texts(past)), context.standing_instructions(past.history)
    draft.add(f.Rewound(response_id, 1, content, tuple(texts), tuple(instructions), draft.sender))
    # A compaction knows the part of an agent by its message, and opens no inherited conversation.
    draft.add(*(e.item(role) for role in [*filter(context.is_role, past.history)][-1:]))
    if past.told_folders != draft.state.told_folders:
        draft.add(f.FoldersTold(past.told_folders))
    changed = context.context_told(task_settings(past.in_force), task_settings(draft.state.settings))
    if changed is not None:
        draft.add(e.item(changed))


def cut_back(draft: Draft, response_id: ResponseId, length: int) -> None:
    """Drops the conversation behind `length`; the model is told anew of the settings in force."""
    dropped = islice(draft.state.history, length, None)
    lost = [item for item in dropped if context.is_context(item)]
    draft.add(f.Rewound(response_id, length, by=draft.sender))
    if any(message_text(item).startswith(context.INSTRUCTIONS_TAG) for item in lost):
        # Which folders the rest tells of is not known: they are looked at again when a task comes to them.
        draft.add(f.FoldersTold(()))
    if lost:
        draft.add(e.item(context.environment_context(task_settings(draft.state.settings).wire())))


def bookmarked(state: State, response_id: str) -> int | None:
    """The length of the history after the turn of `response_id`; None if no turn of it ended so."""
    return next((length for mark, length in state.bookmarks if mark == response_id), None)


def bring_settings(draft: Draft, turn: UserTurn) -> None:
    """Changes the settings as the input brings them along."""
    if (changes := settings_named(turn.op)) is not None:
        change_settings(draft, changes)


def change_settings(draft: Draft, changes: SettingsChanges) -> None:
    """New defaults from here on; the model is told of what it is shown, but not while a task has its own."""
    changes = _located(changes, draft.state.settings.cwd)
    before = task_settings(draft.state.settings)
    draft.add(f.SettingsChanged(changes, draft.sender))
    if draft.state.task is not None:
        return
    shown = context.context_change(before, task_settings(draft.state.settings), changes)
    if shown is not None:
        draft.add(e.item(shown))


def _located(changes: SettingsChanges, folder: str) -> SettingsChanges:
    cwd = changes.get("cwd")
    return changes if cwd is None else {**changes, "cwd": located(cwd, folder)}


def located(cwd: str, folder: str) -> str:
    """A `cwd` that is not absolute is one of the session's folder, not of the worker's."""
    return cwd if posixpath.isabs(cwd) else posixpath.normpath(posixpath.join(folder, cwd))


def token_count(draft: Draft, response_id: ResponseId | None = None) -> None:
    """The accounts, with the turn that just ended and its bookmark."""
    told, usage, window = draft.state.told, draft.task.usage, draft.task.settings.context_window
    if usage is not None:
        told = counted(told, usage)
    info = told.written(window) if told else None
    limits = draft.state.rate_limits
    known = written(RateLimitSnapshot.model_validate(limits)) if limits else NO_RATE_LIMITS
    draft.event(ev.token_count(info, known, response_id))


def end_turn(draft: Draft) -> None:
    """A response is complete and its calls are done: the turn is over. Is the task?"""
    task = draft.state.task
    if task is None or not _turn_over(task) or _turn_over(draft.before.task):
        return
    if task.kind == "shell":
        complete(draft, None)
        return
    token_count(draft, task.response_id if task.branch is None else None)
    show_tokens(draft)
    joins = task.branch is None and _joins(draft.state)
    if task.result is not None or not (task.calls or task.steered or task.goes_on or joins):
        complete(draft, task.last_message)


def _turn_over(task: Task | None) -> bool:
    if task is None:
        return False
    phase = task_phase(task)
    # A task that a person has decided on asks its model nothing more, also where a response broke.
    decided = task.result is not None and phase in (TaskPhase.OWING, TaskPhase.DELAYED)
    return decided or phase is TaskPhase.TURN_OVER


def _joins(state: State) -> bool:
    """Whether mail is there that the running task goes on with instead of ending."""
    results = state.facts.tree_rules.autosubmit
    return any(mail.kind == "message" or results for mail in state.tree.inbox)


def complete(draft: Draft, last_message: str | None) -> None:
    if draft.task.wait:
        draft.clear_timer(RETRY_TIMER)
    left = leave(draft, last_message)
    # Only of a user's turn could the conversation go on from its answer.
    bookmark = draft.task.response_id if draft.task.kind == "user" else None
    draft.event(ev.task_complete(_as_it_stands(draft, left.message), bookmark))
    draft.end_task("completed", left.message)
    keep(draft, left)


def _as_it_stands(draft: Draft, message: str | None) -> str | JsonObject | None:
    """The last message for clients; its reference, which they are shown whole, where it is beside the log."""
    if message != LONG_TEXT or plans(draft.task.settings):
        return message
    said = [item for item in draft.state.conversation if item.get("role") == "assistant"]
    parts: Sequence[Item] = (said[-1].get("content") or ()) if said else ()
    if len(parts) != 1 or not is_reference(parts[0].get("text")):
        return message
    return dict(parts[0]["text"])


# ── task end ──────────────────────────────────────────────────────────────────────────────────────
# How a task ends before its work is done: stopped, refused, or failed.
#
# A response may have asked for a thousand calls, people may have said a hundred things since, and every
# call gets an output and every word its place in the conversation. One commit does not carry all of that.
# So a task that has much open ends piece by piece, each piece within a commit's bounds:
#
#     stopping ──► ending ──► a piece, a piece, … ──► the last piece ends the task
#        │                                                   ▲
#        └── nothing runs, and it all fits ──────────────────┘
#
# What is left is in the state, and owed (`CloseCalls`): if the worker is lost between two pieces, the
# next one goes on with the third. Nothing of the task starts meanwhile, as in any that is stopped.


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


# ── beginning to end ──────────────────────────────────────────────────────────────────────────────


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
        draft.add(f.Stopping(reason, by, draft.sender))
        return
    if not _piece(task, BY_USER).last:
        draft.add(f.Stopping(reason, by, draft.sender))
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


# ── piece by piece ────────────────────────────────────────────────────────────────────────────────


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
        draft.event(ev.TaskComplete(response_id=_last_turn(draft)))
    else:
        if reason == "interrupted" and draft.task.branch is None:
            draft.add(e.item(user_message(context.TURN_ABORTED_MARKER)))
        left = leave(draft)
        draft.event(ev.TurnAborted(reason=_abort_reason(draft.task, reason)))
    draft.end_task(reason, message)
    keep(draft, left)


def _last_turn(draft: Draft) -> ResponseId | None:
    """The turn that a failed task ended behind; None where a turn was broken off, or before the first one."""
    response_id = draft.task.response_id if draft.task.kind == "user" else None
    ended = response_id is not None and bookmarked(draft.state, response_id) is not None
    return response_id if ended else None


def _abort_reason(task: Task, reason: StopReason) -> TurnAbortReason:
    """The protocol's word for the reason; a review that other input ends has one of its own."""
    if reason == "canceled":
        return TurnAbortReason.INTERRUPTED
    if reason == "replaced" and task.kind == "review":
        return TurnAbortReason.REVIEW_ENDED
    return TurnAbortReason(reason)


# ── budget ────────────────────────────────────────────────────────────────────────────────────────
# A task whose tree has no budget left: it waits, holding nothing, until there is room again.


FAR_MS = 365 * 24 * 3_600_000
"""The timer's own time hardly matters: the commit that makes room makes it due."""


def unpriced(model: str) -> str:
    """The text for people where a tree limits its cost and the model has no price."""
    setting = f'model_prices."{model}"'
    return (
        f"the tree has a budget of cost, and model {model} has no price: set {setting} where its workers run"
    )


_EXAMPLES = {"tokens": "1000000", "cost": "5", "requests": "1000", "wall": "2h"}


def more(kind: str, tree: str) -> str:
    """How people give a tree more of a budget."""
    return f"`dendro budget {tree} --add {kind}={_EXAMPLES.get(kind, 'N')}` adds some"


def pause(draft: Draft, refused: CommitRefused) -> None:
    """Pauses the task: the owed request does not fit beside what others hold, or the budget is spent."""
    draft.add(f.AgentChanged({"paused": refused.reason}))
    draft.set_timer(BUDGET_TIMER, draft.moment.at_ms + FAR_MS)
    draft.budget_wait = True
    if refused.reason == "budget_spent":
        _tell(draft, refused)


def _tell(draft: Draft, refused: CommitRefused) -> None:
    """Sends one event for the whole tree, which goes on when the budget is raised."""
    facts, account = draft.state.facts, dict(refused.budget)
    message = WarningEvent(
        message=f"the tree's budget of {refused.detail} is spent: it is paused until more is added; "
        f"{more(refused.detail, facts.tree_id)}",
        budget=BudgetReport.model_validate({**account, "agent_id": facts.agent_id}),
    )
    once = f"{refused.detail}:100"
    draft.tree.publish(draft.task_id, message, (facts.tree_id,), once=once)


def resume(draft: Draft) -> None:
    """Lets the request be tried again: there may be room now."""
    if draft.state.tree.paused:
        draft.add(f.AgentChanged({"paused": None}))


def give_up_waiting(draft: Draft) -> None:
    """Ends the wait for a budget of a task that ends."""
    if draft.state.tree.paused:
        draft.clear_timer(BUDGET_TIMER)
        draft.add(f.AgentChanged({"paused": None}))


# ── branch ────────────────────────────────────────────────────────────────────────────────────────
# Tasks with a conversation of their own, beside the session's: how they begin, and what every end leaves.
#
#     plan    a planning session
#     review  a code review
#
# Such a task is a root's. Its items join its own conversation (`Task.branch`), which ends with it;
# nothing of it is a bookmark, and messages of other agents wait until it is over. A new kind is a section
# beside theirs, a kind of task, a case in each function here, and one in `evolve`, for what its
# conversation begins with.


def fault(state: State, op: ops.Plan | ops.Review) -> str | None:
    """The reason why a session cannot take such an op; None if it can."""
    if not state.facts.is_root:
        return f"{op.type} is the root's: this agent works for another one; submit it to the root's session"
    if isinstance(op, ops.Review):
        return request_fault(op.review_request)
    return goal_fault(op.plan_request.goal)


def beginning(draft: Draft, op: UserTurnOp) -> Beginning | None:
    """The beginning of the task that the op asks for; None if it works on the session's conversation."""
    match op:
        case ops.Plan():
            return plan_beginning(draft.state.settings, op.plan_request.goal, draft.moment.rules)
        case ops.Review():
            return review_beginning(draft.state.settings, op.review_request, draft.moment.rules)
        case _:
            return None


def decided(draft: Draft, call: Call, decision: str) -> None:
    """Notes what a person's decision on a call means for the task beside the answer."""
    if draft.task.kind == "plan":
        plan_decided(draft, call, decision)


def leave(draft: Draft, message: str | None = None) -> Exit:
    """Tells what came of the task, before its final event; `message` is the last that it said."""
    task = draft.task
    if task.branch is None:
        return Exit(message)
    match task.kind:
        case "plan":
            left = plan_exit(task, task.branch, message)
        case "review":
            left = review_exit(task, task.branch, message)
        case "user" | "compact" | "shell":
            left = Exit(message)
        case _:
            assert_never(task.kind)
    for event in left.events:
        draft.event(event)
    # What joined the branch just now is among those that are still to join.
    told = context.outlasting((*task.branch.items, *task.steered), task.branch.opening, draft.state.history)
    return replace(left, items=(*told, *left.items))


def keep(draft: Draft, left: Exit) -> None:
    """Gives the session's conversation what stays of a task that has ended."""
    draft.add(*map(e.item, left.items))
    if left.plan is not None:
        draft.add(f.PlanPinned(left.plan))


# ── branch parts ──────────────────────────────────────────────────────────────────────────────────
# Beginning and exit of a task with a conversation of its own, as the kinds of such tasks make them.


@record
class Beginning:
    """The beginning of such a task."""

    kind: TaskKind
    settings: TurnSettings
    opening: tuple[Item, ...]
    """The items that say what it is about, behind those that it begins with by its kind."""
    event: EventModel
    """The event behind `task_started`."""


@record
class Exit:
    """The rest of a task that ends, however it ends."""

    message: str | None = None
    """Its last message."""
    events: tuple[EventModel, ...] = ()
    """The events before its final one."""
    items: tuple[ItemModel | Item, ...] = ()
    """The items that join the session's conversation."""
    plan: JsonObject | None = None
    """A plan that the next task of a person is shown."""


# ── plan task ─────────────────────────────────────────────────────────────────────────────────────
# Planning sessions: a task of kind `plan`, which explores, asks, and puts a plan to a person.
#
# It begins with the session's conversation and ends by itself, by the person's decision, or as any task
# ends.


MOST_GOAL_BYTES: Final = 32 << 10
INSTRUCTIONS: Final = (
    "You are in a planning session: the next message is its goal. Explore, ask and plan, and change nothing: "
    "the sandbox is read-only, nobody approves more, and apply_patch and update_plan are not allowed. Rules "
    "of a mode that was in force before hold no longer.\n\n"
    "Read what the plan depends on first. Ask the person with ask_user_question what is theirs to decide and "
    "cannot be found out; where the way is open, propose_plan_variants gets you three drafts to choose from. "
    "Then put the plan to the person with approve_plan. If they ask for changes, make them and propose it "
    "again; when they approve or reject it, the session is over.\n\n"
    "The plan is carried out later, by somebody who has read nothing else:\n"
    "- 8 to 16 steps, fewer for a small goal. Each is one piece of work, says where, and can be checked.\n"
    "- `explanation` is the runbook: assumptions; scope, and what is left out; the files and interfaces "
    "touched; the approach, and why not another; risks, and how to go back; how it is accepted; the commands "
    "that validate it.\n"
    "- `title` names the result, `summary` says it in two or three sentences."
)


def goal_fault(goal: str) -> str | None:
    """The reason why nothing can be planned for a goal; None if it can."""
    if not goal.strip():
        return "plan_request.goal: say what is to be planned"
    if (size := len(goal.encode("utf-8", "replace"))) > MOST_GOAL_BYTES:
        return (
            f"plan_request.goal: at most {MOST_GOAL_BYTES:,} bytes can be taken, and this has {size:,}; "
            "put the rest into a file and name it"
        )
    return None


def plan_beginning(session: TurnSettings, goal: str, rules: Rules) -> Beginning:
    """The beginning of a planning session under the session's settings."""
    settings = _settings(session, rules)
    narrowed = context.context_told(task_settings(session), settings)
    instructions = Message(role="developer", content=(InputText(text=INSTRUCTIONS),))
    opening = (*([narrowed] if narrowed else []), instructions, user_message(goal))
    event = ev.EnteredPlanMode(goal=goal)
    return Beginning("plan", settings, tuple(map(written, opening)), event)


def _settings(session: TurnSettings, rules: Rules) -> TurnSettings:
    changes: SettingsChanges = {}
    if rules.plan_model is not None:
        changes["model"] = rules.plan_model
    if rules.plan_effort is not None:
        changes["effort"] = rules.plan_effort
    narrow = helper_settings(session.changed(changes), None)
    own = {"model": narrow.model, "reasoning_effort": narrow.effort, "developer_instructions": None}
    return replace(narrow, collaboration_mode={"mode": ModeKind.PLAN.value, "settings": own})


def plan_decided(draft: Draft, call: Call, decision: str) -> None:
    """Ends the session by a person's decision, as soon as nothing of its response is left."""
    if isinstance(call.work, PlanWork) and decision in ("approved", "rejected"):
        plan = call.work.proposal if decision == "approved" else None
        draft.add(f.PlanDecided(call.call_id, plan))


def plan_exit(task: Task, branch: Branch, message: str | None) -> Exit:
    """The rest of a planning session that ends; an approved plan stays, even if the end is an interrupt."""
    goal = message_text(branch.opening[-1])
    plan = task.result["plan"] if task.result is not None else None
    if plan is None:
        told = session_told(goal, "ended without a plan")
        return Exit(message, (ev.ExitedPlanMode(),), (user_message(told),))
    output = PlanOutputEvent.model_validate(plan)
    text = plan_text(output)
    events = ev.ExitedPlanMode(plan_output=output), ev.AgentMessage(message=text)
    said = Message(role="assistant", content=(OutputText(text=text),))
    told = session_told(goal, "the user approved the plan that follows")
    return Exit(text, events, (user_message(told), said), {**plan})


# ── review task ───────────────────────────────────────────────────────────────────────────────────
# Code reviews: a task of kind `review`, which looks at a change and answers with findings.
#
# It begins with nothing of the session's conversation, and leaves a message with its findings behind.


TOO_LONG: Final = (
    "The reviewer's answer is too long to be read: a text of more than 64 KiB is kept beside the log. "
    "Ask for a review of a part of the change."
)


def review_beginning(session: TurnSettings, request: ReviewRequest, rules: Rules) -> Beginning:
    """The beginning of a review under the session's settings."""
    settings = _review_settings(session, rules)
    opening = (
        context.environment_context(settings.wire(), context.SHELL),
        brief(),
        user_message(assignment(request)),
    )
    event = ev.EnteredReviewMode(
        prompt=request.prompt, target=request.target, user_facing_hint=request.user_facing_hint
    )
    return Beginning("review", settings, tuple(map(written, opening)), event)


def _review_settings(session: TurnSettings, rules: Rules) -> TurnSettings:
    """The session's settings, narrowed to reading; a mode is agreed on for the conversation alone."""
    return replace(helper_settings(session, rules.review_model), collaboration_mode=None, personality=None)


def review_exit(task: Task, branch: Branch, message: str | None) -> Exit:
    """The findings of a review; one without an answer leaves nothing but the news that it is over."""
    if message is None:
        return Exit(message, (ev.ExitedReviewMode(),))
    said = TOO_LONG if message == LONG_TEXT else message
    found = reviewed(said, task.settings.cwd)
    events: list[EventModel] = [ev.ExitedReviewMode(review_output=found.output)]
    if found.left_out:
        events.insert(0, ev.WarningEvent(message=_left_out(found.left_out)))
    told = review_message(message_text(branch.opening[-1]), found.output)
    return Exit(message, tuple(events), (opened_message(*told),))


def _left_out(count: int) -> str:
    findings = "1 finding of the review does" if count == 1 else f"{count:,} findings of the review do"
    return f"{findings} not fit and are left out: the task's last message has the reviewer's whole answer"
