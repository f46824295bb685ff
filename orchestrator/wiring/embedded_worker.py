"""A worker inside of another program, for as long as that program wants one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from orchestrator.runtime.worker import Worker
from orchestrator.settings import Settings
from orchestrator.settings.private_home import require_private
from orchestrator.tools.custom import CustomTool
from orchestrator.wiring.deployment import redis_url
from orchestrator.wiring.worker import running_worker


@asynccontextmanager
async def run_worker(
    settings: Settings, pools: tuple[str, ...] | None = None, tools: Sequence[CustomTool] = ()
) -> AsyncIterator[Worker]:
    """Serves the pools that the settings name, or these, until the block ends; then gives every session back.

    It shares the program's event loop: what blocks the loop for seconds makes the worker stop what it runs,
    because it could not tell whether it still may. Raises what ended the worker, at the end of the block.
    `tools` are offered to models beside the built-in ones; raises `ValueError` for one that cannot be.
    """
    require_private(settings)
    with redis_url(settings) as url:
        async with _serving(settings, url, pools, tools) as worker:
            yield worker


@asynccontextmanager
async def reaping(settings: Settings, url: str) -> AsyncIterator[Worker]:
    """A running worker of no pool, for processes that end cancelled agents which no worker serves.

    It claims only what it adopts, and leaves when that has read its messages.
    """
    async with _serving(settings, url, ()) as worker:
        yield worker


@asynccontextmanager
async def _serving(
    settings: Settings, url: str, pools: tuple[str, ...] | None, tools: Sequence[CustomTool] = ()
) -> AsyncIterator[Worker]:
    async with running_worker(settings, url, pools, own_tools=tools) as worker:
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            await running
