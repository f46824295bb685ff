"""The end of a helper: its answer is the output of the `spawn_subagent` that made it."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from orchestrator.core import facts as f
from orchestrator.core.agent_views import CANCELLED, helper_calls
from orchestrator.core.calls import HelperWork
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.mail_delivery import publish_read
from orchestrator.core.tree import Child, ChildChanges
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.agents import SubAgentErr, SubAgentOk
from orchestrator.protocol.wire import JsonValue

OUTCOME: Mapping[str, str] = {"ready": "completed", "failed": "failed"}


def helper_done(draft: Draft, child: Child, content: Mapping[str, JsonValue]) -> None:
    """A helper came to rest; a call that does not wait for it any more was stopped meanwhile."""
    changes: ChildChanges = {"pruned": True}
    if child.status == "ready":
        # Its answer is the call's, or nobody's any more: nobody is to look for something unread.
        changes["status"] = "idle"
        publish_read(draft, child, content)
    draft.add(f.ChildChanged(child.agent_id, changes))
    found = _call_of(draft, child)
    if found is None:
        return
    call, work = found
    answered, text = answer_of(content)
    told = SubAgentOk(Ok=text) if answered else SubAgentErr(Err=text)
    outcome = OUTCOME.get(content["status"], CANCELLED) if content["completion"] else CANCELLED
    draft.event(work.end(call.call_id, draft.moment.at_ms, told, outcome, content))
    close(draft, call, _output(work, text) if answered else text)


def _output(work: HelperWork, text: str) -> str:
    return orjson.dumps({"label": work.label, "response": text}).decode()


def _call_of(draft: Draft, child: Child) -> tuple[Call, HelperWork] | None:
    task = draft.state.task
    calls = helper_calls(task.calls.begun) if task is not None and not task.stopping else ()
    return next(((call, work) for call, work in calls if work.agent_id == child.agent_id), None)


def answer_of(content: Mapping[str, JsonValue]) -> tuple[bool, str]:
    """Whether there is an answer, and it or what came instead."""
    match content["completion"]:
        case {"Completed": {"last_message": text}}:
            return True, text or ""
        case {"Failed": {"message": text}}:
            return False, f"the helper failed: {text}"
        case _:
            return False, "the helper was stopped"
