"""The usage of requests stands under the model that was asked: not every task has its session's."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from orchestrator.config_keys import ModelPrice, ModelSettings
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime.request_costs import Accounting
from orchestrator.runtime.runner import Ended
from orchestrator.views.spend import last_days
from tests.core.driver import RULES, op
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message

PRICES = {
    "gpt-5": ModelPrice(input=1.0, cached_input=1.0, output=1.0),
    "other": ModelPrice(input=100.0, cached_input=100.0, output=100.0),
}
DEAR, CHEAP = 1200, 12
"""The cost of a response by the other model, and by the session's own."""


async def by_model(harness: Harness) -> dict[str, tuple[int, int]]:
    """The requests that were settled in the last days, and what they cost, by their models."""
    broker = harness.broker
    requests, costs = Counter[str](), Counter[str]()
    for row in await broker.trees.spent_on(last_days(await broker.server_ms(), 2)):
        requests[row.model] += row.spend.requests
        costs[row.model] += row.spend.cost
    return {model: (requests[model], costs[model]) for model in requests}


async def served(harness: Harness, session: SessionId) -> None:
    rules = replace(RULES, review_model="other", plan_model="other")
    accounting = Accounting(ModelSettings(prices=PRICES))
    assert await harness.run(session, rules=rules, accounting=accounting) is Ended.PARKED


@pytest.mark.parametrize("kind", ["review", "plan"])
async def test_tasks_with_a_model_of_their_own_are_spent_on_it_and_those_around_them_on_the_sessions(
    harness: Harness, kind: str
) -> None:
    session = await harness.session()
    asked = {
        "review": op("review", review_request={"prompt": "look", "user_facing_hint": "it"}),
        "plan": op("plan", plan_request={"goal": "do it"}),
    }
    for times in (1, 2):
        await harness.say(session)
        await served(harness, session)
        await harness.submit(session, asked[kind])
        await served(harness, session)
        assert await by_model(harness) == {"gpt-5": (times, times * CHEAP), "other": (times, times * DEAR)}


async def test_requests_of_a_turn_while_which_another_model_is_chosen_are_spent_on_that_of_the_turn(
    harness: Harness,
) -> None:
    session, gate = await harness.session(), Gate()
    harness.models.will([gate, calls("c1"), ends()], [message("done"), ends()])
    await harness.say(session)
    running = asyncio.create_task(served(harness, session))
    await gate.reached.wait()
    await harness.submit(session, ops.OverrideTurnContext(model="other"))
    gate.open()
    await running
    assert await by_model(harness) == {"gpt-5": (2, 2 * CHEAP)}
    await harness.say(session)
    await served(harness, session)
    assert await by_model(harness) == {"gpt-5": (2, 2 * CHEAP), "other": (1, DEAR)}
