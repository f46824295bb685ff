"""Accounting of a request: its reservation, its settlement, and warnings of budgets nearly used up."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.broker.records import UNPRICED, Account, Spend
from orchestrator.config_keys import ModelPrice, ModelSettings
from orchestrator.core import facts as f
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import TreeRules
from orchestrator.core.state import State
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.protocol.ids import ResponseId
from orchestrator.runtime.request_costs import Accounting, cost, nearly_used, warnings
from tests.core.driver import Session, op

PRICE = ModelPrice(input=2.0, cached_input=0.5, output=10.0)
MOST = 1_000
USAGE = {
    "input_tokens": 100,
    "cached_input_tokens": 40,
    "output_tokens": 20,
    "reasoning_output_tokens": 5,
    "total_tokens": 120,
}
SPENT = Spend(120, 60 * 2 + 20 + 20 * 10, 1)


def accounting(*models: str) -> Accounting:
    prices = dict.fromkeys(models, PRICE)
    return Accounting(ModelSettings.model_construct(max_output_tokens=MOST, prices=prices))


def asking() -> State:
    """A session whose request is in flight."""
    session = Session()
    session.say("go")
    session.begin()
    return session.state


ENDS: list[tuple[f.RequestEnded, Spend | None]] = [
    (f.RequestCompleted(1, response_id=ResponseId("r"), usage=USAGE), SPENT),
    (f.RequestCompleted(1, response_id=ResponseId("r")), None),
    (f.RequestRetried(1, served=True), None),
    (f.RequestRetried(1, served=False), Spend(0, 0, 1)),
    (f.RequestRetried(1, served=False, usage=USAGE), SPENT),
    (f.RequestRetried(1, served=True, usage=USAGE), SPENT),
    (f.RequestDelayed(1, http_used=1), Spend(0, 0, 0)),
    (f.RequestDelayed(1, http_used=1, usage=USAGE), SPENT),
    (f.RequestFailed(1, served=True), None),
    (f.RequestFailed(1, served=False), Spend(0, 0, 1)),
    (f.RequestFailed(1, served=False, usage=USAGE), SPENT),
    (f.RequestStopped(1), None),
    (f.RequestStopped(1, served=False), Spend(0, 0, 1)),
    (f.RequestStopped(1, usage=USAGE), SPENT),
]


@pytest.mark.parametrize(("end", "used"), ENDS)
def test_end_of_a_request_counts_what_is_known_of_its_use_and_else_what_was_reserved(
    end: f.RequestEnded, used: Spend | None
) -> None:
    settled = accounting("gpt-5").settlement(asking(), end)
    assert (settled.request, settled.used, settled.model) == ("1", used, "gpt-5")


def test_use_of_a_model_without_a_price_costs_nothing_that_is_known() -> None:
    settled = accounting("other").settlement(
        asking(), f.RequestCompleted(1, response_id=ResponseId("r"), usage=USAGE)
    )
    assert settled.used == Spend(120, 0, 1)
    assert accounting("other").reservation(asking(), f.RequestBegun(1, "turn", 1)).amount.cost == UNPRICED


@pytest.mark.parametrize(
    ("price", "usage", "micro"),
    [
        (PRICE, Usage(0, 0, 0, 0, 0), 0),
        (ModelPrice(input=0.1, cached_input=0.0, output=0.0), Usage(1, 0, 0, 0, 1), 1),
        (ModelPrice(input=0.1, cached_input=0.0, output=0.0), Usage(10, 0, 0, 0, 10), 1),
        (ModelPrice(input=0.1, cached_input=0.0, output=0.0), Usage(11, 0, 0, 0, 11), 2),
        (ModelPrice(input=5.0, cached_input=1.0, output=0.0), Usage(7, 7, 0, 0, 7), 7),
        (PRICE, Usage(100, 40, 20, 5, 120), 340),
    ],
)
def test_cost_is_rounded_up_and_what_was_cached_has_its_own_price(
    price: ModelPrice, usage: Usage, micro: int
) -> None:
    assert cost(price, usage) == micro


def with_budgets(state: State, **budgets: int) -> State:
    return replace(state, facts=replace(state.facts, tree_rules=TreeRules(budgets=budgets)))


@pytest.mark.parametrize("budgets", [{"tokens": 5}, {"cost": 5}, {"tokens": 5, "cost": 5, "requests": 1}])
def test_request_reserves_its_conversation_and_a_full_answer_where_the_tree_counts_them(
    budgets: dict[str, int],
) -> None:
    session = Session()
    session.say("x" * 4_000)
    one = accounting("gpt-5").estimate(with_budgets(session.state, **budgets))
    session.answers("y" * 4_000)
    session.say("more")
    two = accounting("gpt-5").estimate(with_budgets(session.state, **budgets))
    assert MOST + 1_000 < one.tokens < MOST + 1_100
    assert one.tokens + 1_000 < two.tokens < one.tokens + 1_150
    assert one.cost == (one.tokens - MOST) * 2 + MOST * 10
    assert one.requests == two.requests == 1


@pytest.mark.parametrize("budgets", [{}, {"requests": 5}, {"wall": 5}])
def test_request_of_a_tree_that_counts_no_tokens_reserves_as_much_as_the_last_one_used(
    budgets: dict[str, int],
) -> None:
    session = Session()
    session.say("x" * 4_000)
    assert accounting().estimate(with_budgets(session.state, **budgets)).tokens == MOST
    last = Usage(600, 0, 100, 0, 700)
    state = replace(session.state, tokens=TokenInfo(Usage(9_000, 0, 0, 0, 9_000), last))
    assert accounting().estimate(with_budgets(state, **budgets)).tokens == 700 + MOST


def test_request_reserves_the_plan_that_it_shows_and_the_conversation_of_its_own_task() -> None:
    session = Session()
    session.say("go")
    plain = accounting().estimate(with_budgets(session.state, tokens=5)).tokens
    plan = {"title": "p" * 4_000}
    shown = replace(session.state, task=replace(session.task, pinned=plan))
    assert plain + 1_000 <= accounting().estimate(with_budgets(shown, tokens=5)).tokens < plain + 1_020
    other = Session()
    other.say("x" * 40_000)
    other.answers("ok")
    other.submit(op("review", review_request={"prompt": "look", "user_facing_hint": "it"}))
    reviewed = accounting().estimate(with_budgets(other.state, tokens=5)).tokens
    assert reviewed < MOST + 5_000, "a review is shown nothing of the session's conversation"


def test_wait_for_room_is_for_what_the_request_reserves() -> None:
    state, own = with_budgets(asking(), tokens=5), accounting("gpt-5")
    assert own.wait(state).amount == own.reservation(state, f.RequestBegun(1, "turn", 1)).amount


@pytest.mark.parametrize(
    ("limit", "spent", "told"),
    [
        (100, 79, False),
        (100, 80, True),
        (100, 99, True),
        (100, 100, False),
        (100, 120, False),
        (10, 7, False),
        (10, 8, True),
        (1, 0, False),
        (0, 0, False),
        (None, 5, False),
    ],
)
def test_people_hear_of_a_budget_from_four_fifths_on_until_it_is_spent(
    limit: int | None, spent: int, told: bool
) -> None:
    account = Account("tokens", spent, 50, limit)
    assert nearly_used((account,)) == ([account] if told else [])


@pytest.mark.parametrize("kinds", [("tokens",), ("requests", "cost"), ("wall", "tokens", "cost")])
def test_each_budget_that_is_nearly_used_up_is_told_at_the_root_under_a_name_of_its_own(kinds: Any) -> None:
    state = asking()
    accounts = [Account(kind, 85 + place, 0, 100) for place, kind in enumerate(kinds)]
    assert nearly_used((*accounts, Account("requests", 1, 0, 100))) == accounts
    part = warnings(state, accounts)
    assert part is not None
    assert [event.once for event in part.events] == [f"{kind}:80" for kind in kinds]
    for place, event in enumerate(part.events):
        assert event.targets == (SessionId(state.facts.tree_id),)
        told = orjson.loads(event.parts[0])
        assert (told["id"], told["msg"]["type"]) == ("s1", "warning")
        assert f"{85 + place} of 100 of its budget of {kinds[place]}" in told["msg"]["message"]
        assert told["msg"]["budget"] == {
            "kind": kinds[place],
            "limit": 100,
            "used": 85 + place,
            "agent_id": 0,
        }
    assert warnings(state, []) is None
