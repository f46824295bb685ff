"""Tasks with a conversation of their own, beside the session's: how they begin, and what every end leaves.

    plan    a planning session
    review  a code review

Such a task is a root's. Its items join its own conversation (`Task.branch`), which ends with it; nothing of
it is a bookmark, and messages of other agents wait until it is over. A new kind is a section beside
theirs, a kind of task, a case in each function here, and one in `evolve`, for what its conversation begins
with.
"""

from __future__ import annotations

from typing import Final, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import PlanWork
from orchestrator.core.compaction import LONG_TEXT
from orchestrator.core.context import SHELL, context_told, environment_context
from orchestrator.core.decide.draft import Draft
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, message_text, user_message
from orchestrator.core.modes import task_settings
from orchestrator.core.narrowing import helper_settings
from orchestrator.core.plans import plan_text, session_told
from orchestrator.core.review import assignment, brief, request_fault, review_message, reviewed
from orchestrator.core.settings import Rules, SettingsChanges, TurnSettings
from orchestrator.core.state import Branch, State, Task
from orchestrator.core.task_kinds import TaskKind
from orchestrator.core.turn_calls import Call
from orchestrator.core.user_turns import UserTurnOp
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.items import InputText, Message, OutputText
from orchestrator.protocol.plans import PlanOutputEvent
from orchestrator.protocol.review import ReviewRequest
from orchestrator.protocol.scalars import ModeKind
from orchestrator.protocol.wire import EventModel, ItemModel, JsonObject, written


def fault(state: State, op: ops.Plan | ops.Review) -> str | None:
    """The reason why a session cannot take such an op; None if it can."""
    if not state.facts.is_root:
        return f"{op.type} is the root's: this agent works for another one; submit it to the root's session"
    if isinstance(op, ops.Review):
        return request_fault(op.review_request)
    return goal_fault(op.plan_request.goal)


def beginning(draft: Draft, op: UserTurnOp) -> Beginning | None:
    """The beginning of the task that the op asks for; None if it works on the session's conversation."""
    match op:
        case ops.Plan():
            return plan_beginning(draft.state.settings, op.plan_request.goal, draft.moment.rules)
        case ops.Review():
            return review_beginning(draft.state.settings, op.review_request, draft.moment.rules)
        case _:
            return None


def decided(draft: Draft, call: Call, decision: str) -> None:
    """Notes what a person's decision on a call means for the task beside the answer."""
    if draft.task.kind == "plan":
        plan_decided(draft, call, decision)


def leave(draft: Draft, message: str | None = None) -> Exit:
    """Tells what came of the task, before its final event; `message` is the last that it said."""
    task = draft.task
    if task.branch is None:
        return Exit(message)
    match task.kind:
        case "plan":
            left = plan_exit(task, task.branch, message)
        case "review":
            left = review_exit(task, task.branch, message)
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


# ── branch parts ──────────────────────────────────────────────────────────────────────────────────
# Beginning and exit of a task with a conversation of its own, as the kinds of such tasks make them.


@record
class Beginning:
    """The beginning of such a task."""

    kind: TaskKind
    settings: TurnSettings
    opening: tuple[Item, ...]
    """The items that say what it is about, behind those that it begins with by its kind."""
    event: EventModel
    """The event behind `task_started`."""


@record
class Exit:
    """The rest of a task that ends, however it ends."""

    message: str | None = None
    """Its last message."""
    events: tuple[EventModel, ...] = ()
    """The events before its final one."""
    items: tuple[ItemModel, ...] = ()
    """The items that join the session's conversation."""
    plan: JsonObject | None = None
    """A plan that the next task of a person is shown."""


# ── plan task ─────────────────────────────────────────────────────────────────────────────────────
# Planning sessions: a task of kind `plan`, which explores, asks, and puts a plan to a person.
#
# It begins with the session's conversation and ends by itself, by the person's decision, or as any task
# ends.


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


def goal_fault(goal: str) -> str | None:
    """The reason why nothing can be planned for a goal; None if it can."""
    if not goal.strip():
        return "plan_request.goal: say what is to be planned"
    if (size := len(goal.encode("utf-8", "replace"))) > MOST_GOAL_BYTES:
        return (
            f"plan_request.goal: at most {MOST_GOAL_BYTES:,} bytes can be taken, and this has {size:,}; "
            "put the rest into a file and name it"
        )
    return None


def plan_beginning(session: TurnSettings, goal: str, rules: Rules) -> Beginning:
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


def plan_decided(draft: Draft, call: Call, decision: str) -> None:
    """Ends the session by a person's decision, as soon as nothing of its response is left."""
    if isinstance(call.work, PlanWork) and decision in ("approved", "rejected"):
        plan = call.work.proposal if decision == "approved" else None
        draft.add(f.PlanDecided(call.call_id, plan))


def plan_exit(task: Task, branch: Branch, message: str | None) -> Exit:
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


# ── review task ───────────────────────────────────────────────────────────────────────────────────
# Code reviews: a task of kind `review`, which looks at a change and answers with findings.
#
# It begins with nothing of the session's conversation, and leaves a message with its findings behind.


TOO_LONG: Final = (
    "The reviewer's answer is too long to be read: a text of more than 64 KiB is kept beside the log. "
    "Ask for a review of a part of the change."
)


def review_beginning(session: TurnSettings, request: ReviewRequest, rules: Rules) -> Beginning:
    """The beginning of a review under the session's settings."""
    settings = _review_settings(session, rules)
    opening = (environment_context(settings.wire(), SHELL), brief(), user_message(assignment(request)))
    event = ev.EnteredReviewMode(
        prompt=request.prompt, target=request.target, user_facing_hint=request.user_facing_hint
    )
    return Beginning("review", settings, tuple(map(written, opening)), event)


def _review_settings(session: TurnSettings, rules: Rules) -> TurnSettings:
    """The session's settings, narrowed to reading; a mode is agreed on for the conversation alone."""
    return replace(helper_settings(session, rules.review_model), collaboration_mode=None, personality=None)


def review_exit(task: Task, branch: Branch, message: str | None) -> Exit:
    """The findings of a review; one without an answer leaves nothing but the news that it is over."""
    if message is None:
        return Exit(message, (ev.ExitedReviewMode(),))
    said = TOO_LONG if message == LONG_TEXT else message
    found = reviewed(said, task.settings.cwd)
    events: list[EventModel] = [ev.ExitedReviewMode(review_output=found.output)]
    if found.left_out:
        events.insert(0, ev.WarningEvent(message=_left_out(found.left_out)))
    told = review_message(message_text(branch.opening[-1]), found.output)
    return Exit(message, tuple(events), (user_message(told),))


def _left_out(count: int) -> str:
    findings = "1 finding of the review does" if count == 1 else f"{count:,} findings of the review do"
    return f"{findings} not fit and are left out: the task's last message has the reviewer's whole answer"
