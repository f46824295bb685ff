"""A task whose tree has no budget left: it waits, holding nothing, until there is room again."""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.commands import CommitRefused
from orchestrator.core.decide.draft import Draft
from orchestrator.core.timers import BUDGET_TIMER
from orchestrator.protocol.agents import BudgetReport
from orchestrator.protocol.events import WarningEvent

FAR_MS = 365 * 24 * 3_600_000
"""The timer's own time hardly matters: the commit that makes room makes it due."""


def unpriced(model: str) -> str:
    """The text for people where a tree limits its cost and the model has no price."""
    setting = f'model_prices."{model}"'
    return (
        f"the tree has a budget of cost, and model {model} has no price: set {setting} where its workers run"
    )


_EXAMPLES = {"tokens": "1000000", "cost": "5", "requests": "1000", "wall": "2h"}


def more(kind: str, tree: str) -> str:
    """How people give a tree more of a budget."""
    return f"`dendro budget {tree} --add {kind}={_EXAMPLES.get(kind, 'N')}` adds some"


def pause(draft: Draft, refused: CommitRefused) -> None:
    """Pauses the task: the owed request does not fit beside what others hold, or the budget is spent."""
    draft.add(f.AgentChanged({"paused": refused.reason}))
    draft.set_timer(BUDGET_TIMER, draft.moment.at_ms + FAR_MS)
    draft.budget_wait = True
    if refused.reason == "budget_spent":
        _tell(draft, refused)


def _tell(draft: Draft, refused: CommitRefused) -> None:
    """Sends one event for the whole tree, which goes on when the budget is raised."""
    facts, account = draft.state.facts, dict(refused.budget)
    message = WarningEvent(
        message=f"the tree's budget of {refused.detail} is spent: it is paused until more is added; "
        f"{more(refused.detail, facts.tree_id)}",
        budget=BudgetReport.model_validate({**account, "agent_id": facts.agent_id}),
    )
    once = f"{refused.detail}:100"
    draft.tree.publish(draft.task_id, message, (facts.tree_id,), once=once)


def resume(draft: Draft) -> None:
    """Lets the request be tried again: there may be room now."""
    if draft.state.tree.paused:
        draft.add(f.AgentChanged({"paused": None}))


def give_up_waiting(draft: Draft) -> None:
    """Ends the wait for a budget of a task that ends."""
    if draft.state.tree.paused:
        draft.clear_timer(BUDGET_TIMER)
        draft.add(f.AgentChanged({"paused": None}))
