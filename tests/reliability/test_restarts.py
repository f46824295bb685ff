"""Redis ends and comes back while sessions are at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.crash.driver import CrashHarness, crash_harness, rested, violations
from tests.crash.people import Character, watching

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 90.0
CALM = (Character("plain"), Character("sandboxed", mode="workspace-write"), Character("plain"))


@contextlib.asynccontextmanager
async def at_work(seed: int, fsync: str) -> AsyncIterator[tuple[CrashHarness, Callable[[], Awaitable[None]]]]:
    """Three sessions at work on two worker processes; the callable lets them finish and rest."""
    async with (
        asyncio.timeout(WITHIN_S),
        crash_harness(seed, {"appendfsync": fsync}, sessions=3) as harness,
        watching(harness.people),
    ):
        for person, character in zip(harness.people, CALM, strict=True):
            person.character = character
        for _ in range(2):
            await harness.fork_server.start()
        enough = asyncio.Event()
        lives = asyncio.gather(*(person.live(enough) for person in harness.people))

        async def finish() -> None:
            enough.set()
            await lives
            await rested(harness)

        yield harness, finish


async def everybody_runs(harness: CrashHarness) -> None:
    await asyncio.gather(*(person.until("exec_command_begin") for person in harness.people))


@pytest.mark.parametrize(("fsync", "how"), [("everysec", "terminate"), ("always", "kill"), ("no", "kill")])
async def test_a_restart_under_load_loses_nothing_that_was_acknowledged(fsync: str, how: str) -> None:
    async with at_work(5, fsync) as (harness, finish):
        for _ in range(3):
            await everybody_runs(harness)
            await asyncio.to_thread(getattr(harness.redis, how))
            await asyncio.to_thread(harness.redis.start)
        await finish()
        # A process that dies loses nothing of what it gave to the kernel. Under `everysec` it keeps writes
        # back while the disk is slow to sync, and a kill may cost them; under `no` it never does.
        assert await violations(harness) == []


async def test_a_short_absence_of_redis_costs_no_command_its_life() -> None:
    async with at_work(6, "everysec") as (harness, finish):
        for _ in range(3):
            await everybody_runs(harness)
            await asyncio.to_thread(harness.redis.restart)
        await finish()
        assert not harness.ledger.told, "nothing is in doubt: every worker lived, and kept its claims"
        assert await violations(harness) == []


async def test_connections_that_are_cut_again_and_again_cost_nothing() -> None:
    async with at_work(7, "everysec") as (harness, finish):
        with contextlib.closing(harness.redis.client()) as client:
            for _ in range(20):
                await everybody_runs(harness)
                await asyncio.to_thread(
                    client.execute_command, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
                )
        await finish()
        assert not harness.ledger.told
        assert await violations(harness) == []
