"""Requests that wait for room at their provider: slept through, parked, settled, or never asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.broker.claims import Admitted, ProviderLimits, Wait
from orchestrator.config_keys import ModelSettings, ProviderSettings
from orchestrator.core.history import Log
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import SessionFacts, TreeRules
from orchestrator.core.state import State
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.model.prompt import Prompt
from orchestrator.model.provider_errors import FatalKind, FatalModelError
from orchestrator.protocol import ops
from orchestrator.runtime.model_request import _asking
from orchestrator.runtime.request_costs import IMAGE_BYTES, Accounting, estimated_tokens
from orchestrator.runtime.runner import Ended
from tests.runtime.connections import lost
from tests.runtime.harness import Harness
from tests.runtime.players import USAGE, ends, message

MINUTE = 100_000
LIMITS = ProviderLimits(tokens_per_minute=MINUTE)


def limited(
    harness: Harness, limits: ProviderLimits = LIMITS, sleep: Callable[[float], Awaitable[None]] | None = None
) -> None:
    """The worker's table limits the provider; an answer is thought to take 1,000 tokens."""
    openai = ProviderSettings(id="openai", base_url="http://openai/v1", **asdict(limits))
    settings = ModelSettings(providers={"openai": openai}, max_output_tokens=1_000)
    harness.ports = replace(harness.ports, model_settings=settings, sleep=sleep or harness.ports.sleep)


async def spent(harness: Harness, tokens: int) -> None:
    """Another worker of the fleet uses this much."""
    assert isinstance(await harness.broker.claims.admit("openai", "another", tokens, LIMITS), Admitted)


async def spent_too_much(harness: Harness, tokens: int) -> None:
    """Somebody's request used more than it was thought to."""
    await harness.broker.claims.settle("openai", 0, tokens, LIMITS)


async def given_back(harness: Harness, tokens: int) -> None:
    await harness.broker.claims.settle("openai", tokens, 0, LIMITS)


async def timer_comes(harness: Harness, session: SessionId) -> None:
    """The session's retry timer is due now, whatever it was set to."""
    shard = harness.broker.keys.shard_of(session)
    await harness.broker.command("ZADD", harness.broker.keys.timers(shard), "XX", 0, f"{session}:retry")
    assert len(await harness.broker.claims.fire(shard)) == 1


async def test_provider_without_limits_is_never_asked_about(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    assert (harness.connection.sent["admit"], harness.connection.sent["settle"]) == (0, 0)


async def test_request_with_room_is_sent_at_once_and_settled_by_its_usage(harness: Harness) -> None:
    limited(harness)
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    assert len(harness.models.prompts) == 1
    asked = next(args for name, args in harness.connection.calls if name == "admit")
    settled = next(args for name, args in harness.connection.calls if name == "settle")
    assert list(settled) == [asked[1], USAGE["total_tokens"], MINUTE]


async def test_short_wait_is_slept_through_with_the_session_held(harness: Harness) -> None:
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        if seconds > 0.1:
            naps.append(seconds)
            await given_back(harness, MINUTE)

    limited(harness, sleep=nap)
    await spent(harness, 99_500)
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert len(naps) == 1
    assert 0 < naps[0] <= 5
    assert await harness.facts(session, "request_ended") == [
        {"kind": "request_ended", "n": 1, "outcome": "completed", "response_id": "resp", "usage": USAGE}
    ]


async def test_long_wait_parks_the_session_until_its_timer_and_is_told_to_nobody(harness: Harness) -> None:
    limited(harness)
    await spent(harness, MINUTE)
    await spent_too_much(harness, 20_000)
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.prompts == []
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert (head.status, head.holder) == ("retrying", None)

    await given_back(harness, MINUTE)
    await timer_comes(harness, session)
    assert await harness.run(session) is Ended.PARKED
    assert len(harness.models.prompts) == 1
    assert await harness.logged_events(session, "stream_error") == []
    ended = await harness.facts(session, "request_ended")
    assert [(fact["outcome"], fact.get("http_used")) for fact in ended] == [
        ("waiting", 0),
        ("completed", None),
    ]


async def test_parked_session_keeps_its_place_before_those_who_came_later(harness: Harness) -> None:
    limited(harness)
    await spent(harness, MINUTE)
    await spent_too_much(harness, 20_000)
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    await given_back(harness, 20_500)
    later = await harness.broker.claims.admit("openai", "later", 400, LIMITS)
    assert isinstance(later, Wait)


async def test_session_that_waits_for_room_can_be_interrupted(harness: Harness) -> None:
    limited(harness)
    await spent(harness, MINUTE)
    await spent_too_much(harness, 20_000)
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    await harness.submit(session, ops.Interrupt())
    await harness.run(session)
    assert len(await harness.logged_events(session, "turn_aborted")) == 1
    assert harness.models.prompts == []


async def test_request_that_is_interrupted_while_it_waits_for_room_costs_no_token(harness: Harness) -> None:
    waits = asyncio.Event()

    async def nap(seconds: float) -> None:
        if seconds > 0.1:
            waits.set()
            await asyncio.Event().wait()

    limited(harness, sleep=nap)
    await spent(harness, 99_500)
    session = await harness.session()
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    task = asyncio.ensure_future(runner.run())
    await waits.wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    await task
    assert harness.models.prompts == []
    assert await harness.facts(session, "request_ended") == [
        {"kind": "request_ended", "n": 1, "outcome": "stopped", "served": False}
    ]


async def test_lost_answers_about_room_are_asked_for_again(harness: Harness) -> None:
    async def nap(seconds: float) -> None:
        pass

    limited(harness, sleep=nap)
    harness.connection.before["admit"] = lost(2)
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    assert (harness.connection.sent["admit"], len(harness.models.prompts)) == (3, 1)


async def test_account_that_cannot_be_settled_spoils_no_response(harness: Harness) -> None:
    limited(harness)
    harness.connection.before["settle"] = lost(1)
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert [
        event["last_agent_message"] for event in await harness.logged_events(session, "task_complete")
    ] == ["Bye."]


async def test_usage_that_the_provider_does_not_tell_leaves_the_estimate(harness: Harness) -> None:
    limited(harness)
    harness.models.will([message("Hi."), replace(ends(), usage=None)])
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    assert harness.connection.sent["settle"] == 0


async def test_response_that_failed_is_settled_by_the_usage_that_it_told(harness: Harness) -> None:
    limited(harness)
    broken = FatalModelError(FatalKind.INVALID_PROMPT, "no", "bad_request")
    broken.usage = USAGE
    harness.models.will([broken])
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    settled = next(args for name, args in harness.connection.calls if name == "settle")
    assert settled[1] == USAGE["total_tokens"]
    assert await harness.facts(session, "request_ended") == [
        {"kind": "request_ended", "n": 1, "outcome": "failed", "usage": USAGE}
    ]


def prompt(**changes: Any) -> Prompt:
    fields: dict[str, Any] = {
        "model": "gpt-5",
        "instructions": "x" * 400,
        "input": [],
        "tools": [],
        "effort": None,
        "summary": None,
        "verbosity": None,
        "session_id": "s",
        "supports_reasoning": False,
    }
    return Prompt(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "remembered", "tokens"),
    [
        ({}, 0, 100),
        ({}, 7_000, 7_100),
        ({"input": [{"t": "é" * 200}]}, 0, 200),
        ({"input": [{"": "data:image/png;base64," + "A" * 1_000_000}]}, 0, 100 + IMAGE_BYTES // 4),
        ({"tools": [{"strict": True}]}, 0, 101),
    ],
)
def test_estimate_counts_what_is_said_what_is_remembered_and_the_longest_answer(
    changes: dict[str, Any], remembered: int, tokens: int
) -> None:
    assert estimated_tokens(prompt(**changes), remembered, 1_000) == tokens + 1_000


def test_request_that_goes_on_from_a_response_counts_what_the_provider_holds_of_the_last_one() -> None:
    table = ProviderSettings.model_validate({"id": "openai", "base_url": "http://x", "tokens_per_minute": 9})
    state = State(tokens=TokenInfo(Usage(total_tokens=5_000), Usage(total_tokens=700)))
    following: Any = SimpleNamespace(
        table=table, state=state, provider="openai", ports=SimpleNamespace(model_settings=ModelSettings())
    )
    told = [_asking(following, prompt(previous_response_id=known)) for known in (None, "r1")]
    whole, short = (each.tokens for each in told if each is not None)
    assert short - whole == 700


@pytest.mark.parametrize(
    "url", ["data:image/png;base64," + "A" * 1_400_000, {"$blob": "0" * 64, "bytes": 1_400_000}]
)
def test_a_picture_costs_a_budget_what_it_costs_the_limits_of_a_provider(url: Any) -> None:
    picture = [{"type": "input_image", "image_url": url}]
    item = {"type": "function_call_output", "call_id": "c1", "output": picture}
    state = State(
        facts=SessionFacts(tree_rules=TreeRules(budgets={"tokens": 1_000_000})),
        history=Log.of([item]),
    )
    reserved = Accounting(ModelSettings(max_output_tokens=1_000)).estimate(state).tokens
    assert IMAGE_BYTES // 4 <= reserved - 1_000 <= IMAGE_BYTES // 4 + 50


def test_budget_counts_what_a_history_holds_by_its_bytes() -> None:
    def reserved(item: dict[str, Any]) -> int:
        state = State(
            facts=SessionFacts(tree_rules=TreeRules(budgets={"tokens": 1_000_000})), history=Log.of([item])
        )
        return Accounting(ModelSettings.model_construct(max_output_tokens=0)).estimate(state).tokens

    plain = {"type": "message", "text": "é" * 2_000}
    assert reserved({**plain, "text": "é" * 4_000}) - reserved(plain) == 1_000
    assert reserved({**plain, "": [True] * 1_000}) - reserved(plain) == 1_000
