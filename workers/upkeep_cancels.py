"""Ends cancelled agents where no worker is left at all: upkeep brings one of no pool for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from orchestrator.broker.broker import Broker
from orchestrator.core.ids import TreeId
from orchestrator.runtime.unserved_cancels import forsaken
from orchestrator.runtime.worker import Worker

log = logging.getLogger("dendro.upkeep")

POLL_S = 0.2
AT_MOST_S = 60.0
"""Time limit of `end_cancelled`: a cancel that is not over by then is found again when its timer fires."""

Opening = Callable[[], AbstractAsyncContextManager[Worker]]


async def end_cancelled(broker: Broker, tree: TreeId, reaping: Opening) -> bool:
    """Brings the tree's cancels to an end, unless another worker does; returns whether they are over."""
    worker: Worker | None = None
    async with AsyncExitStack() as stack:
        for _ in range(int(AT_MOST_S / POLL_S)):
            found = await forsaken(broker, tree)
            if found.lying:
                if worker is None:
                    log.info("tree %s: ending its cancelled agents, which no worker serves", tree)
                    worker = await stack.enter_async_context(reaping())
                worker.adopt(found.lying)
            elif not found.left or worker is None:
                return not found.left
            await asyncio.sleep(POLL_S)
    return False
