"""Additions to a tree's budgets: what is needed before one begins, of every agent and every limit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import Account, Spend
from orchestrator.config_keys import AgentSettings, limits_of, settings_of
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import first_limits
from orchestrator.gateways.submit import MOST_LIMIT, require_limits, require_prices
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.views import ViewError
from orchestrator.wiring.new_sessions import tree_rules

ROOT = SessionId("0199a2b4-0000-7000-8000-000000000000")
KINDS = ("tokens", "cost", "requests", "wall", "slots", "spawned")


def tree(*models: str | None, costs: tuple[int, ...] = (0, 0, 0)) -> tuple[Any, Any]:
    """A deployment and the registry of a tree whose sessions have asked these models, the root's first."""
    sessions = [SessionId(f"{ROOT[:-1]}{number}") for number in range(len(models))]
    known = dict(zip(sessions, models, strict=True))

    async def heads(sessions: Sequence[SessionId], damaged: dict[SessionId, Exception]) -> list[Any]:
        """Heads of the sessions that are there; those that are gone or damaged have none."""
        there = [one for one in sessions if known[one] != "gone"]
        return [SimpleNamespace(summary={"model": model} if (model := known[one]) else {}) for one in there]

    agents = {
        number: SimpleNamespace(session=session, used=Spend(5, cost, 1))
        for number, (session, cost) in enumerate(zip(sessions, costs, strict=True))
        if number
    }
    broker = SimpleNamespace(logs=SimpleNamespace(heads=heads))
    registry = SimpleNamespace(
        tree=ROOT, agents=agents, budget={"cost": Account("cost", sum(costs), 0, None)}
    )
    return cast(Any, SimpleNamespace(broker=broker)), cast(Any, registry)


async def test_budget_of_cost_needs_a_price_for_the_model_of_every_agent() -> None:
    for models in product(["priced", "dear", "other", None, "gone"], repeat=3):
        found, registry = tree(*models)
        missing = sorted({"dear", "other"} & set(models))
        if not missing:
            await require_prices(found, registry, ["priced"])
            continue
        with pytest.raises(ViewError) as refused:
            await require_prices(found, registry, ["priced"])
        assert [name for name in ("dear", "other", "priced") if f'"{name}"' in str(refused.value)] == missing


@pytest.mark.parametrize("costs", list(product([0, 7], repeat=3)))
async def test_budget_of_cost_needs_no_price_here_for_a_model_whose_requests_have_cost_something(
    costs: tuple[int, ...],
) -> None:
    models = ("of the root", "of one agent", "of another")
    found, registry = tree(*models, costs=costs)
    missing = [model for model, cost in zip(models, costs, strict=True) if not cost]
    if not missing:
        await require_prices(found, registry, [])
        return
    with pytest.raises(ViewError) as refused:
        await require_prices(found, registry, [])
    assert [model for model in models if f'"{model}"' in str(refused.value)] == missing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has", [True, False])
@pytest.mark.parametrize("amount", [-1, 0, 1])
@pytest.mark.parametrize("beside", [{}, {"tokens": 5}, {"slots": 1}])
def test_less_is_taken_of_limits_that_there_are_alone(
    kind: str, has: bool, amount: int, beside: dict[str, int]
) -> None:
    registry = cast(Any, SimpleNamespace(limits={kind: 7} if has else {}))
    add = {**beside, kind: amount}
    if amount < 0 and not has:
        with pytest.raises(ViewError, match=f"no budget of {kind} to take from"):
            require_limits(registry, add)
    else:
        require_limits(registry, add)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("limit", "amount", "taken"),
    [
        (None, MOST_LIMIT, True),
        (None, MOST_LIMIT + 1, False),
        (7, MOST_LIMIT - 7, True),
        (7, MOST_LIMIT - 6, False),
        (7, -MOST_LIMIT - 1, False),
        (MOST_LIMIT << 20, -5, True),
    ],
)
def test_limit_that_redis_could_not_hold_exactly_is_refused(
    kind: str, limit: int | None, amount: int, taken: bool
) -> None:
    registry = cast(Any, SimpleNamespace(limits={} if limit is None else {kind: limit}))
    if taken:
        require_limits(registry, {kind: amount})
        return
    with pytest.raises(ViewError, match=f"a limit of {kind} goes up to .*: nothing was changed"):
        require_limits(registry, {kind: amount})


def test_tree_whose_settings_are_as_large_as_they_may_be_begins_with_limits_that_redis_holds_exactly(
    tmp_path: Path,
) -> None:
    keys = dict(settings_of(AgentSettings))
    names = ["slots", "spawned", *(name for name in keys if name.startswith("budget_"))]
    most = {name: limits_of(AgentSettings.model_fields[name])[1] for name in names}
    given = tuple(f"{keys[name].key}={value:.0f}" for name, value in most.items() if value is not None)
    assert len(given) == len(KINDS)
    settings = load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path)}, overrides=given))
    limits = {name: int(value) for name, value in first_limits(tree_rules(settings)).items()}
    assert limits.keys() == {f"limit:{kind}" for kind in KINDS}
    assert max(limits.values()) <= MOST_LIMIT
