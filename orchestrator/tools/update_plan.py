"""The `update_plan` tool: the steps of the work, as people are shown them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.modes import plans
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.events import PlanUpdate
from orchestrator.protocol.plans import PlanItemArg, StepStatus
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.site import CallSite
from orchestrator.tools.specs import function, string
from orchestrator.tools.tool import Tool, task_of, unsupported

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
