"""Plans as people and models read them, and an approved one in the requests of the task that follows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import ValidationError

from orchestrator.core.context import is_context, is_role
from orchestrator.core.history import Item
from orchestrator.core.modes import is_of_modes
from orchestrator.core.review import object_in
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.plans import PlanOutputEvent, PlanProposal, UpdatePlanArgs
from orchestrator.protocol.wire import JsonMapping, JsonObject, written

MOST_STEPS: Final = 64
PLANNED_OPENING: Final = "The user ran a planning session for: "
_RESULT: Final = "\n\nResult: "
PLAN_TAG: Final = "<approved_plan>"
_TOLD: Final = (
    f"{PLAN_TAG}\nThe user approved this plan in a planning session. Unless they say otherwise now, carry it "
    "out step by step, and say so where you have to leave it.\n\n{plan}\n</approved_plan>"
)


def plan_text(plan: PlanOutputEvent | PlanProposal) -> str:
    """A plan as people read it: title, summary, explanation, steps with numbers."""
    steps = "\n".join(f"{n}. {step.step}" for n, step in enumerate(plan.plan.plan, 1))
    parts = (plan.title, plan.summary, plan.plan.explanation or "", steps)
    return "\n\n".join(part.strip() for part in parts if part.strip())


def session_told(goal: str, result: str) -> str:
    """The words by which the conversation knows of a planning session."""
    return f"{PLANNED_OPENING}{goal}{_RESULT}{result}."


def goal_in(text: str) -> str:
    """The goal of the planning session that a message tells of; empty if it tells of none."""
    opening, _, _ = text.rpartition(_RESULT)
    return opening.removeprefix(PLANNED_OPENING) if text.startswith(PLANNED_OPENING) else ""


def variant(answer: str, title: str, why: str) -> JsonObject:
    """The plan that a helper has answered; any other text, or `why` there is none, is an explanation."""
    plan = object_in(answer)
    try:
        found = PlanProposal.model_validate({"summary": "", **plan, "title": title}, extra="ignore")
    except ValidationError:
        found = None
    if found is None or not 1 <= len(found.plan.plan) <= MOST_STEPS:
        found = PlanProposal(title=title, summary="", plan=UpdatePlanArgs(explanation=answer or why, plan=()))
    return written(found)


def with_plan(conversation: Sequence[Item], plan: JsonMapping) -> list[Item]:
    """The conversation with an approved plan behind the context that it begins with.

    The message is in no log: a compaction can neither sum it up nor take it away.
    """
    text = _TOLD.format(plan=plan_text(PlanOutputEvent.model_validate(plan)))
    message = Message(role="developer", content=(InputText(text=text),))
    place = _behind_context(conversation)
    return [*conversation[:place], written(message), *conversation[place:]]


def _behind_context(conversation: Iterable[Item]) -> int:
    place = 0
    for item in conversation:
        if not (is_context(item) or is_role(item) or is_of_modes(item)):
            break
        place += 1
    return place
