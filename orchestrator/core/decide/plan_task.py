"""Planning sessions: a task of kind `plan`, which explores, asks, and puts a plan to a person.

It begins with the session's conversation and ends by itself, by the person's decision, or as any task ends.
"""

from __future__ import annotations

from typing import Final

from orchestrator.core import facts as f
from orchestrator.core.calls import PlanWork
from orchestrator.core.context import context_told
from orchestrator.core.decide.branch_parts import Beginning, Exit
from orchestrator.core.decide.draft import Draft
from orchestrator.core.frozen import replace
from orchestrator.core.history import message_text, user_message
from orchestrator.core.modes import task_settings
from orchestrator.core.narrowing import helper_settings
from orchestrator.core.plans import plan_text, session_told
from orchestrator.core.settings import Rules, SettingsChanges, TurnSettings
from orchestrator.core.state import Branch, Task
from orchestrator.core.turn_calls import Call
from orchestrator.protocol import events as ev
from orchestrator.protocol.items import InputText, Message, OutputText
from orchestrator.protocol.plans import PlanOutputEvent
from orchestrator.protocol.scalars import ModeKind
from orchestrator.protocol.wire import written

MOST_GOAL_BYTES: Final = 32 << 10
INSTRUCTIONS: Final = (
    "You are in a planning session: the next message is its goal. Explore, ask and plan, and change nothing: "
    "the sandbox is read-only, nobody approves more, and apply_patch and update_plan are not allowed. Rules "
    "of a mode that was in force before hold no longer.\n\n"
    "Read what the plan depends on first. Ask the person with ask_user_question what is theirs to decide and "
    "cannot be found out; where the way is open, propose_plan_variants gets you three drafts to choose from. "
    "Then put the plan to the person with approve_plan. If they ask for changes, make them and propose it "
    "again; when they approve or reject it, the session is over.\n\n"
    "The plan is carried out later, by somebody who has read nothing else:\n"
    "- 8 to 16 steps, fewer for a small goal. Each is one piece of work, says where, and can be checked.\n"
    "- `explanation` is the runbook: assumptions; scope, and what is left out; the files and interfaces "
    "touched; the approach, and why not another; risks, and how to go back; how it is accepted; the commands "
    "that validate it.\n"
    "- `title` names the result, `summary` says it in two or three sentences."
)


def fault(goal: str) -> str | None:
    """The reason why nothing can be planned for a goal; None if it can."""
    if not goal.strip():
        return "plan_request.goal: say what is to be planned"
    if (size := len(goal.encode("utf-8", "replace"))) > MOST_GOAL_BYTES:
        return (
            f"plan_request.goal: at most {MOST_GOAL_BYTES:,} bytes can be taken, and this has {size:,}; "
            "put the rest into a file and name it"
        )
    return None


def beginning(session: TurnSettings, goal: str, rules: Rules) -> Beginning:
    """The beginning of a planning session under the session's settings."""
    settings = _settings(session, rules)
    narrowed = context_told(task_settings(session), settings)
    instructions = Message(role="developer", content=(InputText(text=INSTRUCTIONS),))
    opening = (*([narrowed] if narrowed else []), instructions, user_message(goal))
    event = ev.EnteredPlanMode(goal=goal)
    return Beginning("plan", settings, tuple(map(written, opening)), event)


def _settings(session: TurnSettings, rules: Rules) -> TurnSettings:
    changes: SettingsChanges = {}
    if rules.plan_model is not None:
        changes["model"] = rules.plan_model
    if rules.plan_effort is not None:
        changes["effort"] = rules.plan_effort
    narrow = helper_settings(session.changed(changes), None)
    own = {"model": narrow.model, "reasoning_effort": narrow.effort, "developer_instructions": None}
    return replace(narrow, collaboration_mode={"mode": ModeKind.PLAN.value, "settings": own})


def decided(draft: Draft, call: Call, decision: str) -> None:
    """Ends the session by a person's decision, as soon as nothing of its response is left."""
    if isinstance(call.work, PlanWork) and decision in ("approved", "rejected"):
        plan = call.work.proposal if decision == "approved" else None
        draft.add(f.PlanDecided(call.call_id, plan))


def exit(task: Task, branch: Branch, message: str | None) -> Exit:
    """The rest of a planning session that ends; an approved plan stays, even if the end is an interrupt."""
    goal = message_text(branch.opening[-1])
    plan = task.result["plan"] if task.result is not None else None
    if plan is None:
        told = session_told(goal, "ended without a plan")
        return Exit(message, (ev.ExitedPlanMode(),), (user_message(told),))
    output = PlanOutputEvent.model_validate(plan)
    text = plan_text(output)
    events = ev.ExitedPlanMode(plan_output=output), ev.AgentMessage(message=text)
    said = Message(role="assistant", content=(OutputText(text=text),))
    told = session_told(goal, "the user approved the plan that follows")
    return Exit(text, events, (user_message(told), said), {**plan})
