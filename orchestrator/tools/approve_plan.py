"""The `approve_plan` tool: a plan that a person approves, rejects, or wants changed."""

from __future__ import annotations

from typing import Final

import orjson

from orchestrator.core.calls import PlanWork
from orchestrator.core.commands import Assessment
from orchestrator.core.plans import MOST_STEPS
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.plans import PlanItemArg, PlanProposal, StepStatus, UpdatePlanArgs
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.question import refuse_helper
from orchestrator.tools.site import CallSite
from orchestrator.tools.specs import function, string
from orchestrator.tools.tool import Tool, unsupported
from orchestrator.tools.update_plan import STEP, PlanArguments

MOST_TITLE, MOST_SUMMARY, MOST_STEP = 200, 4_000, 1_000
"""Characters of the texts that a person is shown."""
MOST_BYTES: Final = 48 << 10
"""Bytes of a whole proposal: it is shown to people, and to the model of the turn that carries it out."""

APPROVE_PLAN = function(
    "approve_plan",
    "Puts a plan to the person and waits for the decision: approved, rejected, or what is to be changed. For "
    "work that is worth agreeing on before it begins.",
    {
        "proposal": {
            "type": "object",
            "properties": {
                "title": string("The result, in a few words."),
                "summary": string("The plan in two or three sentences."),
                "plan": {
                    "type": "object",
                    "properties": {
                        "explanation": string("Assumptions, approach, risks, and how it is validated."),
                        "plan": {"type": "array", "description": "The steps.", "items": STEP},
                    },
                    "required": ["plan"],
                    "additionalProperties": False,
                },
            },
            "required": ["title", "summary", "plan"],
            "additionalProperties": False,
        }
    },
    ["proposal"],
)


class Proposal(Arguments):
    title: str
    summary: str
    plan: PlanArguments


class ApprovePlanArguments(Arguments):
    proposal: Proposal


class ApprovePlanTool(Tool):
    """The tool of plans for approval; a call of it waits for a person."""

    names = ("approve_plan",)
    needs_folder = False
    beside = frozenset({"plan"})

    def offered(self, state: State) -> JsonObject | None:
        return None if state.facts.helper_call else APPROVE_PLAN

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.item["type"] != "function_call":
            return unsupported(call)
        refuse_helper(site.state)
        return PlanWork(_checked(parsed(ApprovePlanArguments, call.item["arguments"]).proposal))


def _checked(given: Proposal) -> JsonObject:
    """The proposal as people are shown it; raises `BadArguments` for one that cannot be."""
    steps = given.plan.plan
    if not given.title.strip() or len(given.title) > MOST_TITLE:
        raise BadArguments(f"proposal.title: it has 1 to {MOST_TITLE} characters")
    if len(given.summary) > MOST_SUMMARY:
        raise BadArguments(f"proposal.summary: it has at most {MOST_SUMMARY:,} characters")
    if not 1 <= len(steps) <= MOST_STEPS:
        raise BadArguments(f"proposal.plan.plan: 1 to {MOST_STEPS} steps, not {len(steps)}")
    for number, step in enumerate(steps, 1):
        if not step.step.strip() or len(step.step) > MOST_STEP:
            raise BadArguments(f"proposal.plan.plan: step {number} has 1 to {MOST_STEP:,} characters")
    plan = UpdatePlanArgs(
        explanation=given.plan.explanation,
        plan=tuple(PlanItemArg(step=step.step, status=StepStatus(step.status)) for step in steps),
    )
    proposal = written(PlanProposal(title=given.title, summary=given.summary, plan=plan))
    if (size := len(orjson.dumps(proposal))) > MOST_BYTES:
        raise BadArguments(f"proposal: at most {MOST_BYTES:,} bytes can be shown, and this has {size:,}")
    return proposal
