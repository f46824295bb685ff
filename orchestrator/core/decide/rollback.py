"""`thread_rollback`: the last messages of people, and all that followed them, leave the conversation."""

from __future__ import annotations

from orchestrator.core import entries as e
from orchestrator.core.commands import Submitted
from orchestrator.core.compaction import user_turns
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.task import cut_back
from orchestrator.protocol import events as ev
from orchestrator.protocol.faults import CodexErrorKind
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.ops import ThreadRollback

_FURTHER_BACK = "input whose last_response_id names an earlier turn goes on from there"


def roll_back(draft: Draft, command: Submitted, op: ThreadRollback) -> None:
    """Takes the conversation back to before its n-th last message of a person; files stay as they are."""
    places = user_turns(draft.state.history)
    why = _refusal(draft, op.num_turns, len(places))
    if why is not None:
        draft.add(e.error(command.id, why, CodexErrorKind.THREAD_ROLLBACK_FAILED.value))
        return
    length = places[-op.num_turns]
    marks = [mark for mark, end in draft.state.bookmarks if end <= length]
    cut_back(draft, ResponseId(marks[-1] if marks else ""), length)
    draft.add(e.event(command.id, ev.ThreadRolledBack(num_turns=op.num_turns)))


def _refusal(draft: Draft, wanted: int, there: int) -> str | None:
    if draft.state.task is not None or draft.state.queue:
        return "not rolled back: a task runs or waits; interrupt it first"
    if wanted == 0:
        return "num_turns: 0 turns are nothing to roll back; say how many"
    if wanted > there:
        since = "began, or was compacted"
        why = f"num_turns: {wanted} are to go, and people said {there} things since the conversation {since}"
        return f"{why}; {_FURTHER_BACK}" if draft.state.earlier_turns else why
    return None
