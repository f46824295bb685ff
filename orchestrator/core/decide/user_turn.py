"""Where a person's input goes: to a task of its own, into the running one, or behind it.

The submission may say it (`delivery`), or name the turn that it is for (`expected_turn_id`); else the
session's `on_user_input` does. Such a submission is answered in any case, so that a client can wait for
the decision: by `task_started` under its own id, by `input_accepted`, or by an `error` with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import Submitted
from orchestrator.core.compaction import was_compacted
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.item_events import publish_input
from orchestrator.core.decide.task import begin_task, bookmarked, bring_settings, lies_before
from orchestrator.core.decide.task_end import stop
from orchestrator.core.extras import MOST_EARLIER
from orchestrator.core.history import INJECTED, Item
from orchestrator.core.input_items import input_messages, user_message_event
from orchestrator.core.state import Queued, State
from orchestrator.core.user_turns import UserTurn
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.scalars import Delivered, Delivery, Refusal
from orchestrator.protocol.wire import written

MOST_STEERED: Final = 100
"""Inputs that may wait in the state for the task's next request."""

MOST_QUEUED: Final = 100
"""Inputs that may wait in the state for the running task's end."""

SEND_AGAIN: Final = "send it again when they have been read"

MOST_NAMED: Final = 10
"""Apps that one warning names."""


def user_turn(draft: Draft, command: Submitted, turn: UserTurn) -> None:
    """Decides where input goes, and puts it there."""
    if draft.state.tree.canceling:
        _error(draft, command, "this agent was cancelled: it takes no more input")
        return
    earlier = lies_before(draft.state, turn)
    if turn.bookmark and not earlier and bookmarked(draft.state, turn.bookmark) is None:
        _error(draft, command, _no_such_turn(draft, turn.bookmark))
        return
    if turn.expected_turn_id is not None and refused_turn(draft, command, turn.expected_turn_id, "steer"):
        return
    if turn.expected_turn_id is not None and not _joinable(draft, turn):
        kind = draft.task.kind
        why = "only input alone joins a turn" if kind == "user" else f"a {kind} turn takes no input"
        _error(draft, command, f"not steered: {why}", Refusal.TURN_NOT_STEERABLE)
        return
    if turn.unknown_mentions:
        # The connectors of Codex's apps are its provider's own.
        named = ", ".join(turn.unknown_mentions[:MOST_NAMED])
        warning = f"no connector ID {named}: no MCP server of that name has tools, the text stays as it is"
        draft.add(e.event(command.id, ev.WarningEvent(message=warning)))
    if _steers(draft, turn):
        _steer(draft, command, turn)
    elif _is_free(draft) and not earlier:
        begin_task(draft, Queued(command.id, turn, command.client or None))
    else:
        _queue(draft, command, turn)


def _is_free(draft: Draft) -> bool:
    """Whether input begins a task at once: a session that is being closed is closed before it takes more."""
    return draft.state.task is None and not draft.state.queue and not draft.state.closing


def refused_turn(
    draft: Draft, command: Submitted, expected: str, verb: Literal["steer", "interrupt"]
) -> bool:
    """Whether another turn runs than the client means, or none; it is answered by an `error` then."""
    task = draft.state.task
    if task is None or (verb == "steer" and task.stopping):
        _error(draft, command, f"no active turn to {verb}", Refusal.NO_ACTIVE_TURN)
        return True
    if task.id != expected:
        found = f"expected active turn id `{expected}` but found `{task.id}`"
        _error(draft, command, found, Refusal.OTHER_TURN)
        return True
    return False


def _error(draft: Draft, command: Submitted, message: str, reason: Refusal | None = None) -> None:
    draft.add(e.event(command.id, ev.Error(message=message, codex_error_info=None, reason=reason)))


def _no_such_turn(draft: Draft, bookmark: str) -> str:
    if was_compacted(draft.state.history):
        return (
            f"no turn of this session ended with response {bookmark}, or it lies before a compaction too far "
            f"back: of those turns the newest {MOST_EARLIER:,} are known, and none that an earlier version "
            "summed up; `dendro run --fork` with --at finds each turn of the log"
        )
    return f"no turn of this session ended with response {bookmark}"


def _joinable(draft: Draft, turn: UserTurn) -> bool:
    """Whether the running task could take this input: a task of a person, and nothing but input."""
    task = draft.state.task
    if task is None or task.kind != "user" or task.stopping:
        return False
    return turn.is_input and not turn.bookmark and turn.output_schema is None


def _steers(draft: Draft, turn: UserTurn) -> bool:
    """Whether the input joins the running task."""
    if not _joinable(draft, turn):
        return False
    if turn.expected_turn_id is not None or turn.delivery is not None:
        return turn.expected_turn_id is not None or turn.delivery is Delivery.STEER
    return isinstance(turn.op, ops.UserInput) and draft.state.facts.on_user_input == "steer"


def _steer(draft: Draft, command: Submitted, turn: UserTurn) -> None:
    """Lets input join the running task, from its next request on; settings hold from the next task on."""
    if len(draft.task.steered) >= MOST_STEERED:
        _error(
            draft, command, f"not taken: {MOST_STEERED} inputs wait for the task's next request; {SEND_AGAIN}"
        )
        return
    bring_settings(draft, turn)
    _accepted(draft, command, turn, Delivered.STEERED)
    for message in input_messages(turn.items):
        draft.add(f.Steered(command.id, message))
    draft.event(user_message_event(turn.items, turn.client_id))
    publish_input(draft, turn.items)


def _queue(draft: Draft, command: Submitted, turn: UserTurn) -> None:
    """Lets input wait for the session; unless it is to wait, what runs is stopped for it."""
    if not turn.replaces and len(draft.state.queue) >= MOST_QUEUED:
        _error(draft, command, f"not taken: {MOST_QUEUED} inputs wait for the session; {SEND_AGAIN}")
        return
    draft.add(f.InputQueued(command.id, turn, command.client or None))
    _accepted(draft, command, turn, Delivered.QUEUED)
    if turn.replaces:
        stop(draft, "replaced", command.id)


def _accepted(draft: Draft, command: Submitted, turn: UserTurn, delivery: Delivered) -> None:
    """Tells the client that said where its input shall go where it went."""
    if turn.delivery is None and turn.expected_turn_id is None:
        return
    joined = draft.task.id if delivery is Delivered.STEERED else command.id
    draft.add(e.event(command.id, ev.InputAccepted(turn_id=joined, delivery=delivery)))


# ── inject ────────────────────────────────────────────────────────────────────────────────────────
# `inject_items`: messages that join the conversation without a turn.


MOST_INJECTED: Final = 16
MOST_INJECTED_BYTES: Final = 128 << 10
"""Their text together: with every byte of it escaped, a step fits one commit."""
_MODEL: Final = "assistant"


def inject(draft: Draft, command: Submitted, op: ops.InjectItems) -> None:
    """Adds the messages at once, or with the next request of the turn that runs."""
    why = injected_fault(op) or _refusal(draft.state, op)
    if why is not None:
        draft.add(e.error(command.id, why))
        return
    running = draft.state.task is not None
    for message in op.items:
        item: Item = {**written(message), INJECTED: True}
        draft.add(f.Steered(command.id, item) if running else e.item(item))
    draft.add(e.event(command.id, ev.ItemsInjected(count=len(op.items))))


def injected_fault(op: ops.InjectItems) -> str | None:
    """The reason why no conversation can take the messages; None if one can."""
    if not op.items:
        return "items: at least one is needed; nothing was done"
    if len(op.items) > MOST_INJECTED:
        return (
            f"items: at most {MOST_INJECTED} messages, these are {len(op.items):,}; send the rest by itself"
        )
    size = sum(len(part.text.encode()) for message in op.items for part in message.content)
    if size > MOST_INJECTED_BYTES:
        most = f"at most {MOST_INJECTED_BYTES:,} bytes of text together"
        return f"items: {most}, these are {size:,}; send the rest by itself"
    for place, message in enumerate(op.items):
        wanted = "output_text" if message.role == _MODEL else "input_text"
        if any(part.type != wanted for part in message.content):
            return f"items[{place}].content: a message of the role {message.role} has parts of type {wanted}"
        if not any(part.text.strip() for part in message.content):
            return f"items[{place}].content: say something"
    return None


def _refusal(state: State, op: ops.InjectItems) -> str | None:
    task = state.task
    if state.tree.canceling:
        return "this agent was cancelled: it takes no more input"
    if task is None:
        waits = "not taken: input waits for its turn; send it again when that has begun"
        return waits if state.queue else None
    if task.kind != "user" or task.stopping:
        being = "is being stopped" if task.stopping else "runs, whose conversation ends with it"
        return f"not taken: a {task.kind} turn {being}; send it again when that has ended"
    if any(message.role == _MODEL for message in op.items):
        return (
            "not taken: a turn runs, and a message in the model's name would pass for its answer; "
            "send it again when the turn has ended"
        )
    if len(task.steered) + len(op.items) > MOST_STEERED:
        return f"not taken: {MOST_STEERED} inputs wait for the task's next request; {SEND_AGAIN}"
    return None


# ── queue ─────────────────────────────────────────────────────────────────────────────────────────
# Changes of the inputs that wait: one is taken out, one says something else, or their order is another.


_BEGINS = "not changed: what waits first is about to begin"
REMOVED = "this input was taken out of the queue before its turn: nothing of it was said to the model"


def change_queue(
    draft: Draft, command: Submitted, op: ops.RemoveQueued | ops.ReorderQueue | ops.UpdateQueued
) -> None:
    """Decides a change of the inputs that wait."""
    match op:
        case ops.RemoveQueued():
            remove_queued(draft, command, op)
        case ops.ReorderQueue():
            reorder_queue(draft, command, op)
        case ops.UpdateQueued():
            update_queued(draft, command, op)


def remove_queued(draft: Draft, command: Submitted, op: ops.RemoveQueued) -> None:
    """Takes an input out of the queue, and tells so under the input's own id."""
    ids = [waiting.id for waiting in draft.state.queue]
    if op.submission_id not in ids:
        draft.add(e.error(command.id, _none_waits(op.submission_id)))
    elif draft.state.task is None:
        draft.add(e.error(command.id, _BEGINS))
    else:
        removed = SubmissionId(op.submission_id)
        # Two clients may use one id: the later input goes, and who stays keeps its place.
        del ids[len(ids) - 1 - ids[::-1].index(removed)]
        draft.add(e.event(removed, ev.WarningEvent(message=REMOVED)))
        _order(draft, command, ids)


def update_queued(draft: Draft, command: Submitted, op: ops.UpdateQueued) -> None:
    """Puts other words in the place of those that wait."""
    found = next((waiting for waiting in draft.state.queue if waiting.id == op.submission_id), None)
    if found is None:
        draft.add(e.error(command.id, _none_waits(op.submission_id)))
    elif not found.turn.is_input:
        draft.add(e.error(command.id, f"not changed: {op.submission_id} is a task of its own, and no words"))
    elif draft.state.task is None:
        draft.add(e.error(command.id, _BEGINS))
    else:
        read = command.items
        items = read if read is not None else tuple(item.model_dump(mode="json") for item in op.items)
        told = ev.QueueChanged(waiting=len(draft.state.queue))
        draft.add(f.QueuedEdited(found.id, items), e.event(command.id, told))


def _none_waits(id: str) -> str:
    return f"no input {id} waits: it was begun, or taken out, or is none"


def reorder_queue(draft: Draft, command: Submitted, op: ops.ReorderQueue) -> None:
    """Gives the inputs that wait another order; a list that does not name each of them changes nothing."""
    wanted = [SubmissionId(id) for id in op.submission_ids]
    if sorted(wanted) != sorted(waiting.id for waiting in draft.state.queue):
        why = "not reordered: other inputs wait than the list names; look at the queue again"
        draft.add(e.error(command.id, why))
    elif not wanted:
        draft.add(e.error(command.id, "not reordered: no input waits"))
    elif draft.state.task is None:
        draft.add(e.error(command.id, _BEGINS))
    else:
        _order(draft, command, wanted)


def _order(draft: Draft, command: Submitted, ids: Sequence[SubmissionId]) -> None:
    draft.add(f.QueueOrdered(tuple(ids)), e.event(command.id, ev.QueueChanged(waiting=len(ids))))
