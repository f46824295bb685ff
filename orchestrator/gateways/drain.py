"""Workers sent home by a person."""

from __future__ import annotations

import asyncio

from orchestrator.broker.claims import Claims
from orchestrator.views.workers import SeenWorker, named_worker, workers_of

LOOK_S = 0.5


async def drain(claims: Claims, name: str) -> SeenWorker | None:
    """Asks a worker to drain; answers which one, or None if it has left. Raises `ViewError`."""
    worker = named_worker(await workers_of(claims), name)
    return worker if await claims.drain(worker.name) else None


async def until_left(claims: Claims, worker: SeenWorker) -> SeenWorker | None:
    """Returns None when the worker has left, or the worker as it was heard from last once it is silent."""
    while True:
        found = [one for one in await workers_of(claims) if one.name == worker.name]
        if not found or found[0].silent:
            return found[0] if found else None
        await asyncio.sleep(LOOK_S)
