"""Changes of the inputs that wait: one is taken out, one says something else, or their order is another."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import Submitted
from orchestrator.core.decide.draft import Draft
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId

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
