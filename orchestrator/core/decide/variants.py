"""Variants of a plan: three helpers draft at once, and the call returns all that they wrote, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from orchestrator.core import facts as f
from orchestrator.core.agent_views import CANCELLED
from orchestrator.core.calls import VariantsWork
from orchestrator.core.calls.variants import variant_id
from orchestrator.core.commands import Helper, Variants
from orchestrator.core.decide.agent_create import begin_helper, invocation_of, may_not_make
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.child_folder import unfit_folder
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.helper import OUTCOME, answer_of
from orchestrator.core.plans import variant
from orchestrator.core.tree import Child
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol.agents import SubAgentErr, SubAgentOk
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
    answered, text = answer_of(content)
    told = SubAgentOk(Ok=text) if answered else SubAgentErr(Err=text)
    outcome = OUTCOME.get(content["status"], CANCELLED) if content["completion"] else CANCELLED
    draft.event(helper.end(call_id, draft.moment.at_ms, told, outcome, content))
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
