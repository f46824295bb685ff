"""A worker of no pool, for processes that end cancelled agents which no worker serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.runtime.worker import Worker
from orchestrator.settings import Settings
from orchestrator.wiring.worker import running_worker


@asynccontextmanager
async def reaping(settings: Settings, url: str) -> AsyncIterator[Worker]:
    """A running worker that claims only what it adopts; it leaves when that has read its letters."""
    async with running_worker(settings, url, pools=()) as worker:
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            await running
