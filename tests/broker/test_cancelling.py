"""A task that is told to stop while it talks to Redis stops, wherever in its command that meets it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from orchestrator.broker.connection import connect
from orchestrator.config_keys import RedisSettings
from tests.servers import start_redis

pytestmark = pytest.mark.realredis


async def stopped_after(turns: int, url: str) -> bool:
    """Whether a blocking command, cancelled after so many turns of the loop, ends as cancelled."""
    connection = connect(RedisSettings(url=url))
    await connection.command("PING")
    asking = asyncio.create_task(connection.command("BLPOP", "empty", 1))
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    await connection.aclose()
    return asking.cancelled()


def test_cancelled_command_stays_cancelled(tmp_path: Path) -> None:
    with start_redis(tmp_path) as server:
        for turns in range(8):
            assert uvloop.run(stopped_after(turns, server.url)), turns
