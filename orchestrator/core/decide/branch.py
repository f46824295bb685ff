"""Tasks with a conversation of their own, beside the session's: how they begin, and what every end leaves.

    plan    a planning session: `plan_task`
    review  a code review: `review_task`

Such a task is a root's. Its items join its own conversation (`Task.branch`), which ends with it; nothing of
it is a bookmark, and messages of other agents wait until it is over. A new kind is a module beside
`plan_task`, a kind of task, a case in each function here, and one in `evolve`, for what its conversation
begins with.
"""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.decide import plan_task, review_task
from orchestrator.core.decide.branch_parts import Beginning, Exit
from orchestrator.core.decide.draft import Draft
from orchestrator.core.review import request_fault
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.core.user_turns import UserTurnOp
from orchestrator.protocol import ops


def fault(state: State, op: ops.Plan | ops.Review) -> str | None:
    """The reason why a session cannot take such an op; None if it can."""
    if not state.facts.is_root:
        return f"{op.type} is the root's: this agent works for another one; submit it to the root's session"
    if isinstance(op, ops.Review):
        return request_fault(op.review_request)
    return plan_task.fault(op.plan_request.goal)


def beginning(draft: Draft, op: UserTurnOp) -> Beginning | None:
    """The beginning of the task that the op asks for; None if it works on the session's conversation."""
    match op:
        case ops.Plan():
            return plan_task.beginning(draft.state.settings, op.plan_request.goal, draft.moment.rules)
        case ops.Review():
            return review_task.beginning(draft.state.settings, op.review_request, draft.moment.rules)
        case _:
            return None


def decided(draft: Draft, call: Call, decision: str) -> None:
    """Notes what a person's decision on a call means for the task beside the answer."""
    if draft.task.kind == "plan":
        plan_task.decided(draft, call, decision)


def leave(draft: Draft, message: str | None = None) -> Exit:
    """Tells what came of the task, before its final event; `message` is the last that it said."""
    task = draft.task
    if task.branch is None:
        return Exit(message)
    match task.kind:
        case "plan":
            left = plan_task.exit(task, task.branch, message)
        case "review":
            left = review_task.exit(task, task.branch, message)
        case "user" | "compact" | "shell":
            left = Exit(message)
        case _:
            assert_never(task.kind)
    for event in left.events:
        draft.event(event)
    return left


def keep(draft: Draft, left: Exit) -> None:
    """Gives the session's conversation what stays of a task that has ended."""
    draft.add(*map(e.item, left.items))
    if left.plan is not None:
        draft.add(f.PlanPinned(left.plan))
