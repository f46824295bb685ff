"""The tool of plans for approval, and the tools of a planning session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.calls import PlanWork
from orchestrator.core.commands import Immediate
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import Branch, State, Task
from orchestrator.protocol.ids import SubmissionId
from orchestrator.tools.question import HELPER_ASKS
from tests.tools.test_question_tools import HELPER, STATE, TOOLBOX, assess

READ_ONLY = TurnSettings("/w", "never", {"mode": "read-only"}, "gpt-5", collaboration_mode={"mode": "plan"})
PLANNING = State(task=Task(SubmissionId("p1"), "plan", READ_ONLY, branch=Branch(READ_ONLY)))
STEP = {"step": "Read", "status": "pending"}


def proposal(**fields: Any) -> dict[str, Any]:
    return {"title": "Login", "summary": "Adds it.", "plan": {"plan": [STEP]}, **fields}


def steps(*steps: Any, explanation: str = "e") -> dict[str, Any]:
    return {"plan": {"explanation": explanation, "plan": list(steps)}}


def names(state: State) -> set[str]:
    return {str(spec.get("name", spec["type"])) for spec in TOOLBOX.specs(state)}


async def test_plan_is_put_to_the_person_as_the_model_wrote_it() -> None:
    asked = await assess("approve_plan", {"proposal": proposal()})
    assert asked == PlanWork({"title": "Login", "summary": "Adds it.", "plan": {"plan": [STEP]}})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (proposal(title=" "), "proposal.title: it has 1 to 200"),
        (proposal(title="x" * 201), "proposal.title: it has 1 to 200"),
        (proposal(summary="x" * 4_001), "proposal.summary: it has at most 4,000"),
        (proposal(**steps()), "1 to 64 steps, not 0"),
        (proposal(**steps(*[STEP] * 65)), "1 to 64 steps, not 65"),
        (proposal(**steps(STEP, {**STEP, "step": "\n"})), "step 2 has 1 to 1,000"),
        (proposal(**steps({**STEP, "step": "x" * 1_001})), "step 1 has 1 to 1,000"),
        (proposal(**steps({**STEP, "status": "done"})), "plan.plan.0.status"),
        (proposal(**steps(STEP, explanation="x" * 50_000)), "at most 49,152 bytes can be shown"),
        ({"title": "t", "summary": "s"}, "proposal.plan"),
    ],
)
async def test_plan_that_a_person_cannot_be_shown_is_refused(given: dict[str, Any], told: str) -> None:
    refused = await assess("approve_plan", {"proposal": given})
    assert isinstance(refused, Immediate)
    assert told in str(refused.output)


async def test_helper_puts_no_plan_to_anybody() -> None:
    assert await assess("approve_plan", {"proposal": proposal()}, HELPER) == Immediate(HELPER_ASKS)
    assert "approve_plan" not in names(HELPER)


@pytest.mark.parametrize("mode", ["code", "plan", "execute"])
def test_plan_is_offered_for_approval_in_every_mode(mode: str) -> None:
    task = STATE.task
    assert task is not None
    settings = replace(task.settings, collaboration_mode={"mode": mode})
    assert "approve_plan" in names(replace(STATE, task=replace(task, settings=settings)))


def test_planning_session_has_the_tools_that_read_and_those_that_ask() -> None:
    assert names(PLANNING) == {"shell", "view_image", "ask_user_question", "approve_plan"}


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("update_plan", "update_plan is a TODO/checklist tool and is not allowed in Plan mode"),
        ("apply_patch", "apply_patch is not allowed in Plan mode"),
        ("subagent_spawn", "unsupported call: subagent_spawn (plan mode)"),
        ("no_such_tool", "unsupported call: no_such_tool"),
    ],
)
async def test_other_tools_are_refused_in_a_planning_session(tool: str, told: str) -> None:
    assert await assess(tool, {}, PLANNING) == Immediate(told)


async def test_patch_in_a_commands_clothes_is_refused_in_a_planning_session_in_the_same_words() -> None:
    patch = "*** Begin Patch\n*** Add File: new.txt\n+one\n*** End Patch"
    told = await assess("shell", {"command": ["apply_patch", patch]}, PLANNING)
    assert told == Immediate("apply_patch is not allowed in Plan mode")


def test_variants_are_offered_to_planning_sessions_of_trees_that_may_grow() -> None:
    agents = SessionFacts.of({"agents": True})
    assert "propose_plan_variants" in names(replace(PLANNING, facts=agents))
    assert "propose_plan_variants" not in names(replace(STATE, facts=agents))
    assert "propose_plan_variants" not in names(PLANNING)
