"""Defects of planning sessions: the decision that ends them, and the plan that the next task is shown."""

from __future__ import annotations

from orchestrator.core import evolve
from orchestrator.core.decide import task
from orchestrator.runtime import model_request
from sim.mutant import Mutant, text

DEFECTS = (
    Mutant(
        "approved plans are not shown",
        "the requests of the task behind a planning session lack its plan",
        text(model_request, "build_prompt", "if plan is not None and not compact:", "if False:"),
        "plans",
    ),
    Mutant(
        "approved plans stay",
        "a plan that a task was shown is shown to the next one, too",
        text(evolve, "_task_begun", "state = state.with_extras(pinned_plan=None)", "pass"),
        "plans",
    ),
    Mutant(
        "rejected plans go on",
        "a rejection ends no planning session",
        text(task, "plan_decided", 'decision in ("approved", "rejected")', 'decision == "approved"'),
        "plans",
    ),
    Mutant(
        "decided plans ask again",
        "a planning session whose response broke asks its model again behind the decision",
        text(task, "_turn_over", "decided = task.result is not None and", "decided = False and"),
        "plans",
    ),
    Mutant(
        "planners are told of another sandbox",
        "a planning session is told the sandbox and the policy of the conversation, and not its own",
        text(task, "plan_beginning", "*([narrowed] if narrowed else []), ", ""),
        "plans",
    ),
)
