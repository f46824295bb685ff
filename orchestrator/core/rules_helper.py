"""The end of a helper: its answer is the output of the call that made it (seed 001)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.draft import Draft
from orchestrator.core.rules_await import finish
from orchestrator.core.state import Call
from orchestrator.core.tree import Child


def helper_done(draft: Draft, child: Child, content: Mapping[str, Any]) -> None:
    """A helper came to rest; a call that does not wait for it any more was stopped meanwhile."""
    draft.add(e.child_changed(child.agent_id, pruned=True))
    call = _call_of(draft, child)
    if call is None:
        return
    text, failed = _answer(content)
    elapsed = max(0, draft.moment.at_ms - call.spec["begun_ms"])
    end: dict[str, Any] = {
        "type": "sub_agent_tool_call_end",
        "call_id": call.call_id,
        "invocation": dict(call.spec["invocation"]),
        "duration": {"secs": elapsed // 1000, "nanos": elapsed % 1000 * 1_000_000},
        "tokens": content.get("tokens", 0),
        "result": {"Err": text} if failed else {"Ok": text},
        "outcome": content["status"],
    }
    draft.emit(end)
    finish(draft, call, text)


def _call_of(draft: Draft, child: Child) -> Call | None:
    task = draft.state.task
    call = task.waiting if task is not None and not task.stopping else None
    if call is None or call.spec.get("kind") != "helper" or call.spec["agent_id"] != child.agent_id:
        return None
    return call


def _answer(content: Mapping[str, Any]) -> tuple[str, bool]:
    match content["completion"]:
        case {"Completed": {"last_message": text}}:
            return text or "the helper ended without a word", False
        case {"Failed": {"message": text}}:
            return f"the helper failed: {text}", True
        case _:
            return "the helper was stopped", True
