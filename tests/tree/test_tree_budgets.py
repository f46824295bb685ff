"""Budgets of a tree: reserved, settled, warned of, spent, raised."""

from __future__ import annotations

import pytest

from orchestrator.broker.records import LimitChange
from orchestrator.config_keys import ModelPrice, ModelSettings
from orchestrator.core.frozen import replace
from orchestrator.model.provider_errors import FatalKind, FatalModelError, RateLimited
from orchestrator.runtime import request_costs
from orchestrator.runtime.request_costs import Accounting
from tests.runtime.connections import Gate
from tests.runtime.players import USAGE, calls, message
from tests.tree.harness import TreeHarness, asks

PRICE = ModelPrice(input=1.25, cached_input=0.125, output=10.0)
WAITS = [asks("w", "await")]
pytestmark = pytest.mark.realredis


async def test_spent_budget_pauses_the_tree_and_more_of_it_lets_it_go_on(trees: TreeHarness) -> None:
    trees.models.will("root", [calls("c1")], [calls("c2")], [message("through")])
    await trees.plant(budgets={"tokens": 20})
    trees.start()
    events = await trees.harness.until(trees.root, "warning")
    told = events[-1].msg
    assert "is spent" in told["message"]
    assert told["budget"] == {"kind": "tokens", "limit": 20, "used": 24, "agent_id": 0}
    assert len(trees.models.prompts) == 2, "no third request"
    assert trees.tools.started["c2"] == 1, "what was asked for before still runs"
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("more", {"tokens": 1_000_000}))
    events = await trees.harness.until(trees.root, "task_complete")
    assert events[-1].msg["last_agent_message"] == "through"


async def test_warning_comes_before_the_end_of_a_budget_and_once(trees: TreeHarness) -> None:
    trees.models.will("root", *[[calls(f"c{n}")] for n in range(8)], [message("through")])
    await trees.plant(budgets={"requests": 10})
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    (warning,) = [event.msg for event in events if event.type == "warning"]
    assert (warning["budget"]["kind"], warning["budget"]["used"]) == ("requests", 8)
    assert f"`dendro budget {trees.tree} --add requests=1000` adds some" in warning["message"]


async def test_budget_that_is_raised_while_its_agent_works_is_warned_of_again(trees: TreeHarness) -> None:
    gate = Gate()
    before, behind = ([[calls(f"c{n}")] for n in some] for some in (range(8), range(9, 16)))
    trees.models.will("root", *before, [gate, calls("c8")], *behind, [message("through")])
    await trees.plant(budgets={"requests": 10})
    trees.start()
    await gate.reached.wait()
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("more", {"requests": 10}))
    gate.open()
    events = await trees.harness.until(trees.root, "task_complete")
    told = [event.msg["budget"] for event in events if event.type == "warning"]
    assert [(budget["limit"], budget["used"]) for budget in told] == [(10, 8), (20, 16)]


async def test_a_budget_of_requests_does_not_read_the_conversation_for_each(
    trees: TreeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_costs, "_size", None)
    trees.models.will("root", [message("through")])
    await trees.plant(budgets={"requests": 10_000})
    trees.start()
    await trees.harness.until(trees.root, "task_complete")


async def test_children_draw_from_the_trees_budget(trees: TreeHarness) -> None:
    trees.models.will("root", [asks("a", "spawn", prompt="[a] work")], WAITS, [message("ok")])
    trees.models.will("a", [message("x")])
    await trees.plant(budgets={"tokens": 1_000_000})
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    registry = await trees.harness.broker.trees.registry(trees.tree)
    assert registry.budget["tokens"].spent == 12 * len(trees.models.prompts)
    assert registry.budget["tokens"].held == 0
    assert registry.agents[1].used.tokens == 12  # type: ignore[index]


async def test_request_that_a_provider_turned_away_costs_its_tree_no_token(trees: TreeHarness) -> None:
    refused = FatalModelError(FatalKind.BAD_REQUEST, "no such thing", "bad_request").unserved()
    cut = FatalModelError(FatalKind.INVALID_PROMPT, "no", "bad_request")
    trees.models.will(
        "root",
        [asks("a", "spawn", prompt="[a] be turned away"), asks("b", "spawn", prompt="[b] be cut off")],
        WAITS,
        WAITS,
        [message("ok")],
    )
    trees.models.will("a", [refused])
    trees.models.will("b", [cut])
    await trees.plant(budgets={"tokens": 1_000_000, "requests": 100})
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    used = {
        id: agent.used for id, agent in (await trees.harness.broker.trees.registry(trees.tree)).agents.items()
    }
    assert (used[1].tokens, used[1].requests) == (0, 1)  # type: ignore[index]
    assert used[2].tokens >= 16_000, "its answer had begun: the reservation stands for what nobody told"  # type: ignore[index]


async def test_response_that_failed_costs_its_tree_what_its_server_told(trees: TreeHarness) -> None:
    cut = FatalModelError(FatalKind.INVALID_PROMPT, "no", "bad_request")
    cut.usage = USAGE
    later = RateLimited("slow down", 0.01)
    later.usage = USAGE
    trees.models.will("root", [later], [calls("c1")], [cut])
    await trees.plant(budgets={"tokens": 1_000_000, "requests": 100})
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    registry = await trees.harness.broker.trees.registry(trees.tree)
    assert (registry.budget["tokens"].spent, registry.budget["tokens"].held) == (36, 0)
    assert registry.budget["requests"].spent == 3


async def test_request_that_others_reservations_crowd_out_waits_and_is_woken(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will(
        "root", [asks("a", "spawn", prompt="[a] work")], [gate, message("first")], [message("ok")]
    )
    trees.models.will("a", [message("second")])
    await trees.plant(budgets={"tokens": 20_000})
    trees.start()
    await gate.reached.wait()
    while (await trees.harness.until(trees.root, "subagent_lifecycle"))[-1].msg.get("status") != "running":
        pass
    assert [trees.models.name_of(prompt) for prompt in trees.models.prompts] == ["root", "root"]
    gate.open()
    await trees.harness.until(trees.root, "task_complete")
    await trees.harness.until(await trees.session_of(1), "task_complete")
    assert len(trees.models.seen_by("a")) == 1
    assert not [e for e in await trees.log() if e.message["type"] == "warning"], "nothing is spent: no alarm"


async def test_model_without_a_price_is_refused_under_a_cost_budget(trees: TreeHarness) -> None:
    await trees.plant(budgets={"cost": 1_000_000})
    trees.start()
    events = await trees.harness.until(trees.root, "task_complete")
    assert "has no price" in next(event.msg["message"] for event in events if event.type == "error")
    assert trees.models.prompts == []


async def test_cost_is_counted_in_millionths(trees: TreeHarness) -> None:
    trees.models.will("root", [message("ok")])
    await trees.plant(budgets={"cost": 1_000_000})
    trees.start(accounting=Accounting(ModelSettings(prices={"gpt-5": PRICE})))
    await trees.harness.until(trees.root, "task_complete")
    registry = await trees.harness.broker.trees.registry(trees.tree)
    assert registry.budget["cost"].spent == 33, "10 tokens in, 2 out: 12.5 + 20, rounded up"


ROW = {"input": 1.25, "cached_input": 0.125, "output": 10.0}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("prices", "kept"), [({"gpt-5": PRICE}, {"price": {"cost_micro": 33, **ROW}}), ({"o3": PRICE}, {})]
)
async def test_log_keeps_the_cost_of_each_response_and_its_prices(
    trees: TreeHarness, fails: bool, prices: dict[str, ModelPrice], kept: dict[str, object]
) -> None:
    """A model without a price has none there: what is not known is not zero."""
    failure = FatalModelError(FatalKind.INVALID_PROMPT, "no", "bad_request")
    failure.usage = USAGE
    trees.models.will("root", [failure] if fails else [message("ok")])
    await trees.plant()
    trees.harness.ports = replace(trees.harness.ports, model_settings=ModelSettings(prices=prices))
    trees.start()
    await trees.harness.until(trees.root, "task_complete")
    (ended,) = await trees.harness.facts(trees.root, "request_ended")
    assert {name: ended[name] for name in ended.keys() & {"price"}} == kept


async def test_budget_given_to_a_tree_that_had_none_stops_all_of_it(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will("root", [asks("a", "spawn", prompt="[a] work")], WAITS, [message("through")])
    trees.models.will("a", [calls("c1")], [gate, calls("c2")], [message("more")])
    await trees.plant()
    trees.start()
    await gate.reached.wait()
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("first", {"tokens": 1}))
    gate.open()
    told = (await trees.harness.until(trees.root, "warning"))[-1].msg
    assert told["budget"]["agent_id"] == 1
    assert len(trees.models.seen_by("a")) == 2, "the request that was in flight was the last one"
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("more", {"tokens": 1_000}))
    await trees.harness.until(trees.root, "task_complete")
    assert (await trees.harness.broker.trees.registry(trees.tree)).budget["tokens"].held == 0


async def test_budget_given_to_a_root_that_is_alone_stops_it(trees: TreeHarness) -> None:
    gate = Gate()
    trees.models.will("root", [calls("c1")], [gate, calls("c2")], [message("through")])
    await trees.plant()
    trees.start()
    await gate.reached.wait()
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("first", {"requests": 1}))
    gate.open()
    told = (await trees.harness.until(trees.root, "warning"))[-1].msg
    assert told["budget"] == {"kind": "requests", "limit": 2, "used": 2, "agent_id": 0}
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("more", {"requests": 1}))
    await trees.harness.until(trees.root, "task_complete")


async def test_cost_budget_given_to_a_tree_that_had_none_counts_and_asks_for_prices(
    trees: TreeHarness,
) -> None:
    gate = Gate()
    trees.models.will("root", [calls("c1")], [gate, calls("c2")], [message("through")])
    await trees.plant()
    trees.start(accounting=Accounting(ModelSettings(prices={"gpt-5": PRICE})))
    await gate.reached.wait()
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("first", {"cost": 1}))
    gate.open()
    told = (await trees.harness.until(trees.root, "warning"))[-1].msg
    assert told["budget"] == {"kind": "cost", "limit": 34, "used": 66, "agent_id": 0}
    await trees.bury()
    trees.start()
    await trees.harness.broker.trees.raise_limits(trees.tree, LimitChange("more", {"cost": 1_000}))
    events = await trees.harness.until(trees.root, "task_complete")
    said = next(event.msg["message"] for event in events if event.type == "error")
    assert said.endswith('model gpt-5 has no price: set model_prices."gpt-5" where its workers run')
    assert len(trees.models.prompts) == 2, "a request whose cost nobody knows is not begun"
