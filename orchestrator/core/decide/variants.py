"""Variants of a plan: three helpers draft at once, and the call returns all that they wrote, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from orchestrator.core import facts as f
from orchestrator.core.agent_views import CANCELLED, helper_calls
from orchestrator.core.calls import HelperWork, VariantsWork
from orchestrator.core.calls.agents import variant_id
from orchestrator.core.commands import Helper, Variants
from orchestrator.core.decide.agent_create import begin_helper, invocation_of, may_not_make
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.child_folder import unfit_folder
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.mail_delivery import publish_read
from orchestrator.core.plans import variant
from orchestrator.core.tree import Child, ChildChanges
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol.agents import SubAgentErr, SubAgentOk
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonValue, written

DRAFTED: Final = (
    "this draft has its variants already: put a plan to the person with approve_plan, and ask for others if "
    "they want it changed"
)


def propose_variants(draft: Draft, call: Call, asked: Variants) -> None:
    """Makes the helpers, all in one commit or none, and lets the call wait for them."""
    if draft.task.drafted:
        close(draft, call, DRAFTED)
        return
    if (why := may_not_make(draft) or unfit_folder(draft.state, asked.specs[0])) is not None:
        close(draft, call, why)
        return
    helpers = [Helper(spec, slant) for spec, slant in zip(asked.specs, asked.slants, strict=True)]
    for place, helper in enumerate(helpers):
        begin_helper(draft, helper, variant_id(call.call_id, place))
    agent_ids = tuple(helper.spec.agent_id for helper in helpers)
    invocations = tuple(written(invocation_of(helper)) for helper in helpers)
    work = VariantsWork(agent_ids, invocations, draft.moment.at_ms)
    draft.add(f.CallMoved(call.call_id, Phase.WAITING, work=work))


def variant_done(draft: Draft, child: Child, content: Mapping[str, JsonValue]) -> None:
    """A helper came to rest: what it wrote is a variant, whatever it is; the last one ends the call."""
    found = _call_of(draft, child)
    if found is None:
        return
    call, work = found
    call_id, helper = next(each for each in work.helpers(call.call_id) if each[1].agent_id == child.agent_id)
    answered, text = _end(draft, helper, call_id, content)
    drafted = variant(text if answered else "", str(helper.invocation["description"]), why=text)
    draft.add(f.VariantDrafted(call.call_id, child.agent_id, drafted))
    ended = draft.task.call(call.call_id)
    if ended is not None and isinstance(ended.work, VariantsWork) and ended.work.variants is not None:
        close(draft, ended, orjson.dumps({"variants": ended.work.variants}, default=dict).decode())


def _call_of(draft: Draft, child: Child) -> tuple[Call, VariantsWork] | None:
    task = draft.state.task
    for call in task.calls.begun if task is not None and not task.stopping else ():
        if isinstance(call.work, VariantsWork) and child.agent_id in call.work.agent_ids:
            return call, call.work
    return None


# ── helper ────────────────────────────────────────────────────────────────────────────────────────
# The end of a helper: its answer is the output of the `spawn_subagent` that made it.


OUTCOME: Mapping[str, str] = {"ready": "completed", "failed": "failed"}


def helper_done(draft: Draft, child: Child, content: Mapping[str, JsonValue]) -> None:
    """A helper came to rest; a call that does not wait for it any more was stopped meanwhile."""
    changes: ChildChanges = {"pruned": True}
    if child.status == "ready":
        # Its answer is the call's, or nobody's any more: nobody is to look for something unread.
        changes["status"] = "idle"
        publish_read(draft, child, content)
    draft.add(f.ChildChanged(child.agent_id, changes))
    found = _helper_call_of(draft, child)
    if found is None:
        return
    call, work = found
    answered, text = _end(draft, work, call.call_id, content)
    close(draft, call, _output(work, text) if answered else text)


def _output(work: HelperWork, text: str) -> str:
    return orjson.dumps({"label": work.label, "response": text}).decode()


def _helper_call_of(draft: Draft, child: Child) -> tuple[Call, HelperWork] | None:
    task = draft.state.task
    calls = helper_calls(task.calls.begun) if task is not None and not task.stopping else ()
    return next(((call, work) for call, work in calls if work.agent_id == child.agent_id), None)


def _end(
    draft: Draft, helper: HelperWork, call_id: CallId, content: Mapping[str, JsonValue]
) -> tuple[bool, str]:
    """Publishes the end of a helper; whether there is an answer, and it or what came instead."""
    answered, text = answer_of(content)
    told = SubAgentOk(Ok=text) if answered else SubAgentErr(Err=text)
    outcome = OUTCOME.get(content["status"], CANCELLED) if content["completion"] else CANCELLED
    draft.event(helper.end(call_id, draft.moment.at_ms, told, outcome, content))
    return answered, text


def answer_of(content: Mapping[str, JsonValue]) -> tuple[bool, str]:
    """Whether there is an answer, and it or what came instead."""
    match content["completion"]:
        case {"Completed": {"last_message": text}}:
            return True, text or ""
        case {"Failed": {"message": text}}:
            return False, f"the helper failed: {text}"
        case _:
            return False, "the helper was stopped"
