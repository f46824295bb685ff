"""Which connection a request is lent: one that is free, the one used last; never one more than allowed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from orchestrator.model.connections import Connections, Lane
from orchestrator.tables import ProviderSettings

KEPT_S = 30.0


def connections(most: int = 8) -> Connections:
    return Connections(ProviderSettings(id="openai", base_url="http://localhost"), most)


async def lent(among: Connections, at_once: int) -> list[Lane]:
    """Lanes that so many exchanges side by side are lent; the last one ends first."""
    async with AsyncExitStack() as stack:
        return [(await stack.enter_async_context(among.lend())).lane for _ in range(at_once)]


async def test_exchange_gets_the_connection_that_came_free_last() -> None:
    among = connections()
    first, second = await lent(among, 2)
    assert first is not second
    assert await lent(among, 1) == [first]
    assert await lent(among, 2) == [first, second]
    await among.aclose()


async def test_exchanges_beyond_the_limit_share_the_least_busy_connection() -> None:
    among = connections(2)
    lanes = await lent(among, 4)
    assert len(set(lanes)) == 2
    assert lanes[2] is not lanes[3]
    assert set(await lent(among, 2)) == set(lanes), "both are free again"
    await among.aclose()


async def test_connection_that_nobody_wants_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    among, closed, late_s = connections(), list[Lane](), 0.0
    loop = asyncio.get_running_loop()
    clock, close = loop.time, Lane.aclose

    async def noted(lane: Lane) -> None:
        closed.append(lane)
        await close(lane)

    monkeypatch.setattr(loop, "time", lambda: clock() + late_s, raising=False)
    monkeypatch.setattr(Lane, "aclose", noted)
    first, second = await lent(among, 2)
    assert await lent(among, 1) == [first]
    late_s = KEPT_S + 1
    assert await lent(among, 1) == [first]
    assert closed == [second]
    await among.aclose()
    assert closed == [second, first]
