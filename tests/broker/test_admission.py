"""Requests of the fleet to a provider in a minute: counted once, exactly, by arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import GRACE_MS, PATIENCE_MS, Admitted, ProviderLimits, Wait
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig
from tests.broker.actors import Backend
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis


@dataclass
class Fleet:
    """Workers that ask for one provider, on a clock that moves when it is told to."""

    broker: Broker
    clock: FakeClock

    async def asks(self, ticket: str, tokens: int, limits: ProviderLimits) -> int:
        """0 if the ticket is admitted, else what it is told to wait."""
        match await self.broker.claims.admit("openai", ticket, tokens, limits):
            case Admitted():
                return 0
            case Wait(wait_ms):
                return wait_ms

    def after(self, ms: int) -> None:
        self.clock.advance(ms / 1000)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with redis_time(FakeClock()) as fake:
        yield fake


@pytest.fixture
async def fleet(clock: FakeClock) -> AsyncIterator[Fleet]:
    client = StatedRedis()
    broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
    yield Fleet(broker, clock)
    await broker.aclose()


# ── on every backend ──────────────────────────────────────────────────────────────────────────


async def test_workers_that_ask_at_once_are_admitted_up_to_the_limit(backend: Backend) -> None:
    workers = [backend.broker() for _ in range(3)]
    asks = [
        workers[n % 3].claims.admit("openai", f"s{n}", 1, ProviderLimits(requests_per_minute=10))
        for n in range(40)
    ]
    answers = await asyncio.gather(*asks)
    assert sum(isinstance(answer, Admitted) for answer in answers) == 10
    for worker in workers:
        await worker.aclose()


async def test_refused_request_is_told_when_its_tokens_will_be_there(broker: Broker) -> None:
    limits = ProviderLimits(tokens_per_minute=60_000)
    assert isinstance(await broker.claims.admit("openai", "a", 60_000, limits), Admitted)
    answer = await broker.claims.admit("openai", "b", 30_000, limits)
    assert isinstance(answer, Wait)
    assert 25_000 < answer.wait_ms <= 30_000


async def test_providers_are_counted_apart(broker: Broker) -> None:
    limits = ProviderLimits(requests_per_minute=1)
    assert isinstance(await broker.claims.admit("one", "a", 1, limits), Admitted)
    assert isinstance(await broker.claims.admit("two", "b", 1, limits), Admitted)
    assert isinstance(await broker.claims.admit("one", "c", 1, limits), Wait)


async def test_settled_usage_makes_room_or_debt(broker: Broker) -> None:
    limits = ProviderLimits(tokens_per_minute=1_000)
    await broker.claims.admit("openai", "a", 1_000, limits)
    await broker.claims.settle("openai", 1_000, 100, limits)
    assert isinstance(await broker.claims.admit("openai", "b", 800, limits), Admitted)
    await broker.claims.settle("openai", 800, 1_600, limits)
    answer = await broker.claims.admit("openai", "c", 1, limits)
    assert isinstance(answer, Wait)
    assert answer.wait_ms > 35_000, "700 tokens of debt are 42 s"


# ── by the clock ──────────────────────────────────────────────────────────────────────────────


async def test_waiting_request_goes_at_the_moment_it_was_told_and_not_before(fleet: Fleet) -> None:
    limits = ProviderLimits(requests_per_minute=6)
    for n in range(6):
        assert await fleet.asks(f"s{n}", 1, limits) == 0
    assert await fleet.asks("late", 1, limits) == 10_000
    fleet.after(9_999)
    assert await fleet.asks("late", 1, limits) == 1
    fleet.after(1)
    assert await fleet.asks("late", 1, limits) == 0


async def test_who_came_first_goes_first_and_asking_again_keeps_the_place(fleet: Fleet) -> None:
    limits = ProviderLimits(requests_per_minute=60)
    for n in range(60):
        await fleet.asks(f"s{n}", 1, limits)
    assert [await fleet.asks(t, 1, limits) for t in ("a", "b", "c")] == [1_000, 2_000, 3_000]
    fleet.after(1_000)
    assert await fleet.asks("c", 1, limits) == 2_000
    assert await fleet.asks("b", 1, limits) == 1_000
    assert await fleet.asks("a", 1, limits) == 0


async def test_small_request_goes_ahead_only_where_it_delays_nobody(fleet: Fleet) -> None:
    limits = ProviderLimits(tokens_per_minute=60_000)
    await fleet.asks("first", 30_000, limits)
    assert await fleet.asks("large", 40_000, limits) == 10_000
    assert await fleet.asks("small", 100, limits) == 10_100
    await fleet.broker.claims.settle("openai", 30_000, 19_000, limits)
    assert await fleet.asks("small", 100, limits) == 0
    assert await fleet.asks("large", 40_000, limits) == 0


async def test_large_request_is_not_starved_by_a_stream_of_small_ones(fleet: Fleet) -> None:
    limits = ProviderLimits(tokens_per_minute=60_000)
    await fleet.asks("first", 60_000, limits)
    waited = await fleet.asks("large", 20_000, limits)
    for n in range(20):
        assert await fleet.asks(f"small{n}", 1_000, limits) > 0
        fleet.after(1_000)
    assert waited == 20_000
    assert await fleet.asks("large", 20_000, limits) == 0


async def test_request_larger_than_a_minute_waits_for_a_whole_one_and_leaves_a_debt(fleet: Fleet) -> None:
    limits = ProviderLimits(tokens_per_minute=6_000)
    await fleet.asks("first", 3_000, limits)
    assert await fleet.asks("huge", 12_000, limits) == 30_000
    fleet.after(30_000)
    assert await fleet.asks("huge", 12_000, limits) == 0
    assert await fleet.asks("next", 1_000, limits) == PATIENCE_MS
    fleet.after(60_000)
    assert await fleet.asks("next", 1_000, limits) == 10_000


async def test_both_limits_must_have_room_and_a_refusal_spends_neither(fleet: Fleet) -> None:
    limits = ProviderLimits(requests_per_minute=2, tokens_per_minute=1_000)
    assert await fleet.asks("a", 1_000, limits) == 0
    assert await fleet.asks("b", 500, limits) == 30_000
    fleet.after(30_000)
    assert await fleet.asks("b", 500, limits) == 0
    assert await fleet.asks("c", 0, limits) == 0, "one request came back with the half minute"


async def test_ticket_that_nobody_asks_for_again_loses_its_place(fleet: Fleet) -> None:
    limits = ProviderLimits(tokens_per_minute=60_000)
    await fleet.asks("first", 60_000, limits)
    wait = await fleet.asks("lost", 20_000, limits)
    await fleet.asks("next", 40_000, limits)
    fleet.after(wait + GRACE_MS)
    assert await fleet.asks("next", 40_000, limits) > 0
    fleet.after(1)
    assert await fleet.asks("next", 40_000, limits) == 0


async def test_long_queue_is_served_in_order_to_its_end(fleet: Fleet) -> None:
    limits = ProviderLimits(requests_per_minute=240)
    for n in range(440):
        await fleet.asks(f"s{n}", 1, limits)
    assert await fleet.asks("s439", 1, limits) == 200 * 250
    for n in range(240, 440):
        fleet.after(125)
        assert await fleet.asks(f"s{n}", 1, limits) == 125
        fleet.after(125)
        assert await fleet.asks(f"s{n}", 1, limits) == 0
    assert await fleet.broker.command("ZCARD", fleet.broker.keys.provider("openai")[1]) == 0


async def test_settling_never_saves_more_than_a_minute(fleet: Fleet) -> None:
    limits = ProviderLimits(tokens_per_minute=1_000)
    await fleet.asks("a", 1_000, limits)
    fleet.after(59_000)
    await fleet.broker.claims.settle("openai", 1_000, 0, limits)
    assert await fleet.asks("b", 1_000, limits) == 0
    assert await fleet.asks("c", 1_000, limits) == PATIENCE_MS


async def test_clock_that_went_back_gives_nothing_and_takes_nothing(fleet: Fleet) -> None:
    limits = ProviderLimits(requests_per_minute=2)
    await fleet.asks("a", 1, limits)
    fleet.after(-3_600_000)
    assert await fleet.asks("b", 1, limits) == 0
    assert await fleet.asks("c", 1, limits) == 30_000


async def test_provider_without_a_token_limit_is_not_settled(fleet: Fleet) -> None:
    await fleet.broker.claims.settle("openai", 1, 2, ProviderLimits(requests_per_minute=1))
    assert await fleet.broker.command("KEYS", "*") == []


ASK = st.tuples(
    st.just("ask"), st.integers(0, 7), st.integers(1, 900), st.integers(0, 900)
)  # ticket, estimate, real usage
MOVE = st.tuples(st.just("move"), st.integers(1, 20_000), st.just(0), st.just(0))


@settings(max_examples=40, deadline=None)
@given(st.lists(ASK | MOVE, max_size=40))
def test_no_stretch_of_time_carries_more_than_it_refills_and_a_minute(
    story: list[tuple[str, int, int, int]],
) -> None:
    with redis_time(FakeClock()) as clock:
        asyncio.run(_never_too_much(story, clock))


async def _never_too_much(story: list[tuple[str, int, int, int]], clock: FakeClock) -> None:
    limits = ProviderLimits(requests_per_minute=6, tokens_per_minute=1_000)
    client = StatedRedis()
    fleet = Fleet(Broker(Connection(client, client), BrokerConfig(), clock.monotonic), clock)
    sent: list[tuple[int, int]] = []
    for kind, number, estimate, used in story:
        if kind == "move":
            fleet.after(number)
        elif await fleet.asks(f"s{number}", estimate, limits) == 0:
            await fleet.broker.claims.settle("openai", estimate, min(used, estimate), limits)
            sent.append((clock.now_ms(), min(used, estimate)))
    for first, (begin, _) in enumerate(sent):
        tokens = 0
        for count, (end, used) in enumerate(sent[first:], 1):
            tokens += used
            minutes = (end - begin) / 60_000
            assert count <= 6 * (1 + minutes)
            assert tokens <= 1_000 * (1 + minutes)
    await fleet.broker.aclose()
