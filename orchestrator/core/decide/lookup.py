"""Look-ups: ops whose answer lies outside of the log, and the instructions of folders.

A look-up is accepted at once and owed from then on, beside whatever runs: it holds up neither the queue nor a
task. The worker does it and tells what came of it; after a crash the next one does it again.
"""

from __future__ import annotations

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import InstructionsRead, LookedUp, Submitted
from orchestrator.core.context import instructions_item
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.task import begin_failing, begin_task
from orchestrator.core.decide.task_end import fail
from orchestrator.core.extras import PendingLookUp
from orchestrator.protocol import ops
from orchestrator.protocol.events import WarningEvent
from orchestrator.protocol.wire import written

LookUpOp = (
    ops.AddToHistory
    | ops.GetHistoryEntryRequest
    | ops.ListCustomPrompts
    | ops.ListSkills
    | ops.ListMcpTools
    | ops.ListModels
)

MOST_LOOKUPS = 100
"""Look-ups of a session that may wait to be answered."""
MOST_FOLDERS = 32
"""Folders that are kept in mind; one that fell out is told of again."""
MOST_PROMPT_BYTES = 32 << 10
"""Bytes of one entry of a person's history."""


def ask(draft: Draft, command: Submitted, op: LookUpOp) -> None:
    """Accepts a look-up, or says why not."""
    if draft.state.lookup(f"{command.client}|{command.id}") is not None:
        return
    why = _refusal(draft, op)
    if why is not None:
        draft.add(e.error(command.id, why))
        return
    draft.add(f.LookUpAsked(command.id, written(op), command.client or None, command.who))


def _refusal(draft: Draft, op: LookUpOp) -> str | None:
    if draft.state.closing:
        return f"{op.type} is not served: the session is closing; resume it and ask again"
    if len(draft.state.lookups) >= MOST_LOOKUPS:
        return f"{op.type} is not served: {MOST_LOOKUPS} look-ups wait for their answer; ask again later"
    if isinstance(op, ops.AddToHistory):
        size = len(op.text.encode("utf-8", "replace"))
        if size > MOST_PROMPT_BYTES:
            return f"text: an entry of the history has at most {MOST_PROMPT_BYTES:,} bytes, this has {size:,}"
    return None


def looked_up(draft: Draft, command: LookedUp) -> None:
    """Answers a look-up; one that a shutdown has dropped meanwhile gets nothing."""
    asked = draft.state.lookup(command.key)
    if asked is None:
        return
    draft.add(f.LookUpEnded(asked.id, asked.client))
    if asked.turn is not None:
        _turn_found(draft, asked, command)
    elif command.error is not None:
        draft.add(e.error(asked.id, command.error))
    elif command.message is not None:
        draft.add(e.event(asked.id, command.message))


def _turn_found(draft: Draft, asked: PendingLookUp, command: LookedUp) -> None:
    """Begins the task of the input that waited; without the conversation of before, the task fails."""
    waiting = draft.state.queue[0]
    if (waiting.id, waiting.client) != (asked.id, asked.client) or draft.state.task is not None:
        raise DoesNotFit("the input that goes on from an earlier turn is not the next one")
    if command.past is not None:
        begin_task(draft, waiting, command.past)
        return
    begin_failing(draft, waiting)
    fail(draft, f"the conversation at the end of turn {asked.turn} cannot be gone back to: {command.error}")


def instructions_read(draft: Draft, command: InstructionsRead) -> None:
    """Tells the model of a folder that the task has come to."""
    if command.folder in draft.state.told_folders:
        return
    told = (*draft.state.told_folders, command.folder)
    draft.add(f.FoldersTold(told[-MOST_FOLDERS:]))
    if command.text:
        draft.add(e.item(instructions_item(command.text)))
    for warning in command.warnings:
        draft.event(WarningEvent(message=warning))
