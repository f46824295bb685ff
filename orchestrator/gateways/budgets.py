"""Additions to a tree's budgets: checked first, then added once, with an event that says by whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.broker.records import LimitChange, Registry
from orchestrator.core.commit_parts import TreeEvent
from orchestrator.core.entries import event
from orchestrator.core.entries.stored import encode_event
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.client import Client
from orchestrator.protocol.events import BackgroundEvent
from orchestrator.rollouts.source import LogSource
from orchestrator.views.costs import amount
from orchestrator.views.errors import ViewError


def require_limits(registry: Registry, add: Mapping[str, int]) -> None:
    """To take from no limit would begin one below what is used, and stop the tree."""
    for name, value in add.items():
        if value < 0 and name not in registry.limits:
            raise ViewError(f"the tree has no budget of {name} to take from; zero or more begins one")


async def require_prices(found: LogSource, registry: Registry, priced: Iterable[str]) -> None:
    """Under a budget of cost a model without a price is refused: better now than in the midst of its work."""
    sessions = [SessionId(registry.tree), *(agent.session for agent in registry.agents.values())]
    heads = [await found.broker.logs.head(session) for session in sessions]
    metas = [head.summary for head in heads if head is not None and head.meta]
    models = {meta["model"] for meta in metas if meta.get("model")}
    missing = sorted(models - set(priced))
    if missing:
        names = ", ".join(f'model_prices."{model}"' for model in missing)
        raise ViewError(
            f"a budget of cost needs the price of every model of the tree: set {names}, here and where the "
            "workers run, and start them anew; tokens=… or requests=… can be limited without"
        )


async def raise_limits(found: LogSource, client: Client, registry: Registry, add: Mapping[str, int]) -> int:
    """Raises the limits, once; answers how many agents it woke."""
    change = _change(registry.tree, add, client.who, client.client_id)
    return (await found.broker.trees.raise_limits(registry.tree, change)).woken


def _change(tree: TreeId, add: Mapping[str, int], who: str, id: str) -> LimitChange:
    parts = ", ".join(f"{amount(name, value)} {name}" for name, value in add.items())
    message = BackgroundEvent(message=f"{who} added to the tree's limits: {parts}")
    payload = encode_event(event("", message))
    return LimitChange(id, dict(add), TreeEvent((payload,), (SessionId(tree),)))
