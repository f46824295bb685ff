"""The `update_plan` tool: the steps of the work, as people are shown them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import orjson

from orchestrator.core.calls import Call, PlanWork
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.modes import MOST_STEPS, plans
from orchestrator.core.state import State
from orchestrator.protocol.events import PlanUpdate
from orchestrator.protocol.plans import PlanItemArg, PlanProposal, StepStatus, UpdatePlanArgs
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.question import refuse_helper
from orchestrator.tools.tool import Tool, function, string, task_of, unsupported
from orchestrator.tools.tool_context import CallSite

STEP = {
    "type": "object",
    "properties": {
        "step": string("A few words."),
        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
    },
    "required": ["step", "status"],
    "additionalProperties": False,
}
UPDATE_PLAN = function(
    "update_plan",
    "Shows the person the steps of the work and where it stands. At most one step is in_progress.",
    {
        "explanation": string("Why the plan changed, if it did."),
        "plan": {"type": "array", "items": STEP},
    },
    ["plan"],
)

NOT_IN_PLAN_MODE = "update_plan is a TODO/checklist tool and is not allowed in Plan mode"


class PlanStep(Arguments):
    step: str
    status: Literal["pending", "in_progress", "completed"]


class PlanArguments(Arguments):
    explanation: str | None = None
    plan: tuple[PlanStep, ...]


class UpdatePlan(Tool):
    """The tool of plans; a call of it is done as soon as it is assessed."""

    names = ("update_plan",)
    needs_folder = False

    def offered(self, state: State) -> JsonObject | None:
        return UPDATE_PLAN if state.facts.update_plan else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if not site.state.facts.update_plan:
            return unsupported(call)
        if plans(task_of(site.state).settings):
            return Immediate(NOT_IN_PLAN_MODE)
        given = parsed(PlanArguments, call.item["arguments"])
        _check(given.plan)
        steps = tuple(PlanItemArg(step=step.step, status=StepStatus(step.status)) for step in given.plan)
        return Immediate("Plan updated", (PlanUpdate(explanation=given.explanation, plan=steps),))


def _check(steps: Sequence[PlanStep]) -> None:
    """Refuses a plan that shows nobody where the work stands."""
    if not steps:
        raise BadArguments("plan: it has no steps; name at least one")
    begun = sum(step.status == "in_progress" for step in steps)
    if begun > 1:
        raise BadArguments(f"plan: {begun} steps are in_progress, and at most one may be")


# ── approve plan ──────────────────────────────────────────────────────────────────────────────────
# The `approve_plan` tool: a plan that a person approves, rejects, or wants changed.


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
