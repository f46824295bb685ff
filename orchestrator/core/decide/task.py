"""How a task begins, settles after a response, and completes; and what the session does next."""

from __future__ import annotations

import posixpath
from itertools import islice

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.compaction import newest_texts, nothing_said, stored_texts
from orchestrator.core.context import (
    INSTRUCTIONS_TAG,
    context_change,
    context_told,
    environment_context,
    is_context,
    standing_instructions,
)
from orchestrator.core.decide.agent_status import end_watchdogs, took_task
from orchestrator.core.decide.branch import Beginning, beginning, keep, leave
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.helper_activity import tokens_used
from orchestrator.core.decide.item_events import publish_input
from orchestrator.core.decide.task_end import fail
from orchestrator.core.frozen import replace
from orchestrator.core.history import message_text
from orchestrator.core.inheritance import inherited_history
from orchestrator.core.input_items import input_messages, user_message_event
from orchestrator.core.modes import mode_kind, not_told, settings_named, task_settings
from orchestrator.core.phases import TaskPhase, task_phase
from orchestrator.core.settings import SettingsChanges
from orchestrator.core.state import Queued, State, Task
from orchestrator.core.task_kinds import TaskKind
from orchestrator.core.timers import RETRY_TIMER
from orchestrator.core.tokens import counted
from orchestrator.core.user_turns import UserTurn
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.ids import ResponseId, SubmissionId
from orchestrator.protocol.usage import RateLimitSnapshot
from orchestrator.protocol.wire import written

NOTHING_TO_COMPACT = "nothing to compact: nothing was said since the conversation began, or was compacted"
NO_RATE_LIMITS = written(RateLimitSnapshot())


def start_next(draft: Draft) -> None:
    """Gives the free session to what waits for it: a shutdown first, then queued input, then mail."""
    state = draft.state
    if state.task is not None or state.tree.canceling or state.tree.pruned:
        return
    if state.closing:
        # A tree is closed from below: its end is told when nothing of it is left.
        if not (state.tree.ending_children or state.processes.living):
            close(draft, state.closing)
    elif state.queue and _may_take_input(draft):
        if lies_before(state, state.queue[0].turn):
            _look_for_turn(draft, state.queue[0])
            return
        begin_task(draft, state.queue[0])
        # A compaction that has nothing to do is over at once.
        start_next(draft)
    elif _mail_begins(draft):
        begin_mail_task(draft)


def _may_take_input(draft: Draft) -> bool:
    """Whether queued input begins a task: a session that was closed over it waits for more input."""
    state = draft.state
    return not state.closed or len(state.queue) > len(draft.before.queue)


def _mail_begins(draft: Draft) -> bool:
    """Whether mail begins a task: when it comes, or when the task that it met ends."""
    state = draft.state
    if draft.over is not None:
        interrupted = any(mail.interrupt for mail in state.tree.inbox)
        return interrupted or (state.outcome == "completed" and _wants_turn(state))
    return _mail_came(draft) and _wants_turn(state)


def _mail_came(draft: Draft) -> bool:
    now, before = draft.state.tree.inbox, draft.before.tree.inbox
    return bool(now) and now[-1] not in before[-1:]


def _wants_turn(state: State) -> bool:
    """Whether the inbox of an idle session begins a task: an order does, a result if that is wanted.

    After an interrupt or an error a result waits for the next input; so does what agents write to a root.
    """
    results = state.facts.tree_rules.autosubmit and state.outcome == "completed"
    orders = results if state.facts.is_root else True
    return any(
        bool(mail.content.get("person")) or (orders if mail.kind == "message" else results)
        for mail in state.tree.inbox
    )


def close(draft: Draft, by: str) -> None:
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
    if draft.state.lookup(f"{waiting.client or ''}|{waiting.id}") is None:
        draft.add(f.LookUpAsked(waiting.id, written(asked), waiting.client, ""))


def begin_task(draft: Draft, waiting: Queued, past: State | None = None) -> None:
    """A user turn (a compaction, or a person's command) takes the session.

    `past` is the state at the turn that it goes on from, if a compaction lies between.
    """
    turn = waiting.turn
    if turn.bookmark:
        if past is None and bookmarked(draft.state, turn.bookmark) is None:
            _left_meanwhile(draft, waiting)
            return
        _rewind(draft, turn.bookmark, past)
    bring_settings(draft, turn)
    kind: TaskKind = "compact" if isinstance(turn.op, ops.Compact) else "user"
    if isinstance(turn.op, ops.RunUserShellCommand):
        kind = "shell"
        # Not the settings of a mode: that is about what the model does.
        settings, command = draft.state.settings, turn.op.command
        _task_begins(draft, f.TaskBegun(waiting.id, kind, settings, client=waiting.client, command=command))
    elif (branch := beginning(draft, turn.op)) is not None:
        kind = branch.kind
        _branch_begins(draft, waiting, branch)
    else:
        settings = task_settings(draft.state.settings)
        begun = f.TaskBegun(waiting.id, kind, settings, turn.output_schema, waiting.client)
        _task_begins(draft, replace(begun, takes_plan=kind == "user" and _takes_plan(draft.state, waiting)))
    if kind == "user":
        draft.add(*map(e.item, input_messages(turn.items)))
        draft.add(e.event(waiting.id, user_message_event(turn.items, turn.client_id)))
        publish_input(draft, turn.items)
    if kind == "compact" and nothing_said(draft.state.history) and not draft.state.queue:
        draft.event(ev.WarningEvent(message=NOTHING_TO_COMPACT))
        complete(draft, None)
    if (by := _replacing(draft.state)) is not None:
        # More input came while this one waited: the seeds' rule holds for it as well,
        # new input aborts the task that it meets. Its message stays in the history. One
        # task a decision: a long queue begun at once would not fit into a commit.
        draft.add(f.Stopping("replaced", by))


def _replacing(state: State) -> SubmissionId | None:
    """The first of the inputs that wait, if one of them is to stop what runs."""
    return state.queue[0].id if any(waiting.turn.replaces for waiting in state.queue) else None


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


def _left_meanwhile(draft: Draft, waiting: Queued) -> None:
    """Fails input whose turn was there when it was submitted: what was queued before it went back further."""
    begin_failing(draft, waiting)
    why = (
        f"turn {waiting.turn.bookmark} was left by input that came before: nothing was said to the model; "
        "say it again, to a turn that is still there"
    )
    if (by := _replacing(draft.state)) is not None:
        # As of all that waits, one task a decision begins.
        draft.add(e.error(waiting.id, why), f.Stopping("replaced", by))
    else:
        fail(draft, why)


def begin_failing(draft: Draft, waiting: Queued) -> None:
    """Begins the task of input that cannot be served: what was said does not join the conversation."""
    settings = task_settings(draft.state.settings)
    _task_begins(draft, f.TaskBegun(waiting.id, "user", settings, client=waiting.client))


def _task_begins(draft: Draft, begun: f.TaskBegun) -> None:
    settings = begun.settings
    draft.add(
        begun,
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
    texts, instructions = stored_texts(newest_texts(past)), standing_instructions(past.history)
    draft.add(f.Rewound(response_id, 1, content, tuple(texts), tuple(instructions)))
    if past.told_folders != draft.state.told_folders:
        draft.add(f.FoldersTold(past.told_folders))
    changed = context_told(task_settings(past.in_force), task_settings(draft.state.settings))
    if changed is not None:
        draft.add(e.item(changed))


def cut_back(draft: Draft, response_id: ResponseId, length: int) -> None:
    """Drops the conversation behind `length`; the model is told anew of the settings in force."""
    dropped = islice(draft.state.history, length, None)
    lost = [item for item in dropped if is_context(item)]
    draft.add(f.Rewound(response_id, length))
    if any(message_text(item).startswith(INSTRUCTIONS_TAG) for item in lost):
        # Which folders the rest tells of is not known: they are looked at again when a task comes to them.
        draft.add(f.FoldersTold(()))
    if lost:
        draft.add(e.item(environment_context(task_settings(draft.state.settings).wire())))


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
    draft.add(f.SettingsChanged(changes))
    if draft.state.task is not None:
        return
    shown = context_change(before, task_settings(draft.state.settings), changes)
    if shown is not None:
        draft.add(e.item(shown))


def _located(changes: SettingsChanges, folder: str) -> SettingsChanges:
    """The changes; a `cwd` that is not absolute is one of the session's folder, not of the worker's."""
    cwd = changes.get("cwd")
    if cwd is None or posixpath.isabs(cwd):
        return changes
    return {**changes, "cwd": posixpath.normpath(posixpath.join(folder, cwd))}


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
    tokens_used(draft)
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
    draft.event(ev.task_complete(left.message, bookmark))
    draft.end_task("completed", left.message)
    keep(draft, left)
