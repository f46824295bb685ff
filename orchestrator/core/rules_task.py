"""How a task begins, settles after a response, and ends; and what the session does next."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.context import TURN_ABORTED_MARKER, context_change, environment_context, is_context
from orchestrator.core.draft import Draft
from orchestrator.core.history import call_output, user_message
from orchestrator.core.rules_budget import give_up_waiting
from orchestrator.core.rules_standing import came_to_rest, end_watchdogs, tokens_used, took_task
from orchestrator.core.rules_surfacing import withdrawn
from orchestrator.core.state import Phase, Queued, State
from orchestrator.core.tokens import counted

BY_USER = "aborted by user"
BY_FAILURE = "aborted because the model request failed"
NO_RATE_LIMITS: Mapping[str, Any] = {"primary": None, "secondary": None}


def start_next(draft: Draft) -> None:
    """Gives the free session to what waits for it: a shutdown first, then queued input in order."""
    state = draft.state
    if state.task is not None or state.tree.canceling or state.tree.pruned:
        return
    if state.closing:
        # A tree is closed from below: its end is told when nothing of it is left.
        if not state.tree.ending_children:
            close(draft, state.closing)
    elif state.queue:
        begin_task(draft, state.queue[0])
    elif _interrupted_by_mail(state) or (state.outcome == "completed" and wants_turn(state)):
        begin_mail_task(draft)


def _interrupted_by_mail(state: State) -> bool:
    return any(mail.interrupt for mail in state.tree.inbox)


def wants_turn(state: State) -> bool:
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
    draft.add(e.closed(), e.event(by, "shutdown_complete"))


def begin_task(draft: Draft, waiting: Queued) -> None:
    """A user turn (or a compaction) takes the session."""
    op = waiting.op
    if op.get("last_response_id"):
        _rewind(draft, op["last_response_id"])
    if op["type"] == "user_turn":
        change_settings(draft, _turn_changes(op))
    kind = "compact" if op["type"] == "compact" else "user"
    _task_begins(draft, waiting.id, kind, op.get("final_output_json_schema"))
    if kind == "user":
        draft.add(e.item(input_message(op["items"])), user_message_event(waiting.id, op["items"]))
    if draft.state.queue:
        # More input came while this one waited: the seeds' rule holds for it as well,
        # new input aborts the task that it meets. Its message stays in the history. One
        # task a decision: a long queue begun at once would not fit into a commit.
        draft.add(e.stopping("replaced", draft.state.queue[0].id))


def _task_begins(draft: Draft, id: str, kind: str, output_schema: Any = None) -> None:
    settings = draft.state.settings
    draft.add(
        e.task_begun(id, kind, settings.wire(), output_schema),
        e.event(
            id,
            "task_started",
            model_context_window=settings.context_window,
            collaboration_mode_kind="code",
        ),
    )
    took_task(draft)


def begin_mail_task(draft: Draft) -> None:
    """A task that no submission started: its first request carries the mail."""
    number = draft.state.tree.autos + 1
    draft.add(e.agent_changed(autos=number))
    _task_begins(draft, f"auto-{number}", "user")


def _rewind(draft: Draft, response_id: str) -> None:
    """The conversation goes on from an earlier turn; settings do not go back with it."""
    length = bookmarked(draft, response_id)
    if length is None:
        return
    dropped = islice(draft.state.history, length, None)
    stale = any(is_context(item) for item in dropped)
    draft.add(e.rewound(response_id, length))
    if stale:
        draft.add(e.item(environment_context(draft.state.settings.wire())))


def bookmarked(draft: Draft, response_id: str) -> int | None:
    """The length of the history after the turn of `response_id`; None if this session has no such turn."""
    return next((length for mark, length in draft.state.bookmarks if mark == response_id), None)


def _turn_changes(op: Mapping[str, Any]) -> dict[str, Any]:
    names = ("cwd", "approval_policy", "sandbox_policy", "model", "summary")
    changes = {name: op[name] for name in names}
    return {**changes, "effort": op.get("effort")}


def change_settings(draft: Draft, changes: Mapping[str, Any]) -> None:
    """New defaults from here on; the model is told of what it is shown."""
    shown = context_change(draft.state.settings, changes)
    draft.add(e.settings_changed(dict(changes)))
    if shown is not None:
        draft.add(e.item(shown))


def input_message(items: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The user message that the input items of one op make."""
    return {"type": "message", "role": "user", "content": [_content(item) for item in items]}


def _content(item: Mapping[str, Any]) -> dict[str, Any]:
    match item["type"]:
        case "text":
            return {"type": "input_text", "text": item["text"]}
        case "image":
            return {"type": "input_image", "image_url": item["image_url"]}
        case _:
            return {
                "type": "input_text",
                "text": f"[{item['type']}: {item.get('name') or item.get('path') or ''}]",
            }


def user_message_event(id: str, items: list[Mapping[str, Any]]) -> e.Entry:
    text = _joined([item["text"] for item in items if item["type"] == "text"])
    images = [item["image_url"] for item in items if item["type"] == "image"]
    fields: dict[str, Any] = {"message": text, "kind": "plain"}
    if images:
        fields["images"] = images
    return e.event(id, "user_message", **fields)


def _joined(texts: list[Any]) -> Any:
    """One text. Queued input may hold a reference to a huge one: alone it stands, it cannot be joined."""
    if len(texts) == 1:
        return texts[0]
    return "".join(text if isinstance(text, str) else "[a long text]" for text in texts)


def token_count(draft: Draft, response_id: str = "") -> None:
    """The accounts, with the turn that just ended and its bookmark."""
    told, usage, window = draft.state.told, draft.task.usage, draft.task.settings.context_window
    if usage is not None:
        told = counted(told, usage)
    fields: dict[str, Any] = {
        "info": told.wire(window) if told else None,
        "rate_limits": draft.state.rate_limits or NO_RATE_LIMITS,
    }
    if response_id:
        fields["response_id"] = response_id
    draft.event("token_count", **fields)


def settle(draft: Draft) -> None:
    """A response is complete and its calls are done: the turn is over. Is the task?"""
    task = draft.state.task
    if task is None or task.stopping or not task.response_complete or task.open_calls:
        return
    token_count(draft, task.response_id)
    tokens_used(draft)
    if not (task.calls or task.steered or task.goes_on or _joins(draft.state)):
        complete(draft, task.last_message)


def _joins(state: State) -> bool:
    """Whether mail is there that the running task goes on with instead of ending."""
    results = state.facts.tree_rules.autosubmit
    return any(mail.kind == "message" or results for mail in state.tree.inbox)


def complete(draft: Draft, last_message: str | None) -> None:
    draft.event("task_complete", last_agent_message=last_message, **_bookmark(draft))
    draft.add(e.task_ended("completed"))
    start_next(draft)
    came_to_rest(draft, "completed", last_message)


def fail(draft: Draft, message: str, codex_error_info: Any = None) -> None:
    """`error`, then `task_complete` with a null message (protocol order of every version)."""
    for item in draft.task.steered:
        draft.add(e.item(item))
    draft.add(e.error(draft.task.id, message, codex_error_info))
    draft.event("task_complete", last_agent_message=None, **_bookmark(draft))
    draft.add(e.task_ended("failed"))
    start_next(draft)
    came_to_rest(draft, "failed", message)


def _bookmark(draft: Draft) -> dict[str, Any]:
    return {"response_id": draft.task.response_id} if draft.task.response_id else {}


def give_up(draft: Draft, message: str, codex_error_info: Any = None, why: str = BY_FAILURE) -> None:
    """Fails the task, when what runs of it is stopped; nobody will read what its open calls would say."""
    if draft.task.running:
        draft.add(e.failing(message, codex_error_info), e.stopping("failed", ""))
        return
    close_calls(draft, why=why)
    fail(draft, message, codex_error_info)


def abort(draft: Draft, reason: str, elapsed_s: Mapping[str, float] | None = None) -> None:
    """Ends a task of which nothing runs any more; every call gets an output that says so."""
    task = draft.task
    give_up_waiting(draft)
    if task.request is not None:
        draft.add(e.request_ended(task.request.n, "stopped"))
    close_calls(draft, elapsed_s)
    for item in task.steered:
        draft.add(e.item(item))
    if task.wait:
        draft.clear_timer(RETRY_TIMER)
    if reason == "interrupted":
        draft.add(e.item(user_message(TURN_ABORTED_MARKER)))
    draft.event("turn_aborted", reason="interrupted" if reason == "canceled" else reason)
    draft.add(e.task_ended(reason))
    start_next(draft)
    came_to_rest(draft, reason, None)


def close_calls(draft: Draft, elapsed_s: Mapping[str, float] | None = None, why: str = BY_USER) -> None:
    """Gives every open call the output of one that was stopped; their approvals are withdrawn.

    The task ends in the same decision, and its calls with it: no entry tells their phase.
    """
    for call in draft.task.open_calls:
        if call.phase is Phase.AWAITING_APPROVAL:
            draft.close_approval(call.call_id)
            draft.clear_timer(approval_timer(call.call_id))
            withdrawn(draft, call)
        elif call.phase is Phase.WAITING:
            draft.clear_timer(wait_timer(call.call_id))
        after = (elapsed_s or {}).get(call.call_id)
        text = why if after is None else f"{why} after {after:.1f}s"
        draft.add(e.item(call_output(call.item, text)))


RETRY_TIMER = "retry"


def approval_timer(call_id: str) -> str:
    return f"approval:{call_id}"


def wait_timer(call_id: str) -> str:
    return f"wait:{call_id}"


def stop(draft: Draft, reason: str, by: str) -> None:
    """Aborts the task: at once if nothing of it runs, else when what runs is proved stopped."""
    task = draft.state.task
    if task is None or task.stopping:
        return
    if task.request is None and not task.running:
        abort(draft, reason)
    else:
        draft.add(e.stopping(reason, by))
