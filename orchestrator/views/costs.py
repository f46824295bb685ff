"""The usage of a tree and its budgets, in figures with their units."""

from __future__ import annotations

from dataclasses import asdict

from orchestrator.broker.records import BudgetKind, Registry
from orchestrator.core.counts import age, counted

MICRO = 1_000_000


def used_of(registry: Registry, kind: BudgetKind) -> str:
    """A tree's usage of a kind of budget; the cost of requests whose prices were unknown is not zero."""
    spent = registry.budget[kind].spent
    unpriced = kind == "cost" and not spent and registry.budget["tokens"].spent
    return "unknown" if unpriced else amount(kind, spent)


def uncounted(registry: Registry) -> str:
    """The requests that a cost budget set now does not count; empty if it counts all."""
    used = [agent.used for agent in registry.agents.values()]
    unknown = sum(spend.requests for spend in used if spend.tokens and not spend.cost)
    if not registry.budget["cost"].spent and registry.budget["requests"].spent:
        unknown = registry.budget["requests"].spent
    if not unknown:
        return ""
    return f"cost: {counted(unknown, 'earlier request')} ran where no price was known: not counted"


def amount(kind: str, value: int) -> str:
    """A budget's figure with its unit."""
    match kind:
        case "cost":
            return money(value)
        case "wall":
            return age(value / 1000)
        case _:
            return f"{value:,}"


def money(micro: int) -> str:
    """Millionths of a dollar, to a hundredth of a cent at least."""
    return f"${micro / MICRO:,.4f}"


def budget_value(registry: Registry) -> dict[str, object]:
    """For programs."""
    return {
        "tree_id": registry.tree,
        "budget": {kind: asdict(account) for kind, account in registry.budget.items()},
        "counters": dict(registry.counters),
        "limits": dict(registry.limits),
        "waiting": dict(registry.waiting),
    }
