"""Ending agents that no worker serves any more: their host is gone, or nobody started one again.

A cancel is a letter, and somebody has to read it. A worker of no pool, inside the command that
cancels, takes the sessions that lie there and lets them decide what has arrived. It begins
nothing: neither their folder nor their model is needed.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from orchestrator.cli.agents import Addressed
    from orchestrator.cli.opening import Opened
    from orchestrator.core.ids import SessionId
    from orchestrator.settings import Settings

SILENT_S = 2.0
"""How long a lease must have run out before its session counts as nobody's."""


@asynccontextmanager
async def reaper(settings: Settings) -> AsyncIterator[Callable[[Sequence[SessionId]], None]]:
    """What takes sessions that are due and has them read their letters; leaves when they have."""
    import asyncio

    from orchestrator.wiring import redis_url
    from orchestrator.wiring.worker import running_worker

    with redis_url(settings) as url:
        async with running_worker(settings, url, pools=()) as worker:
            running = asyncio.create_task(worker.run())
            try:
                yield worker.adopt
            finally:
                worker.drain()
                await running


async def unserved(found: Opened, target: Addressed) -> list[SessionId]:
    """The sessions that nobody holds, of those that are to end and of the root, which tells them.

    One that is done already has to say so, too: whoever is above it waits for that.
    """
    from orchestrator.core.ids import SessionId
    from orchestrator.core.registry import projected

    agents = projected(await found.broker.agents(target.tree)).agents
    sessions = [SessionId(agent.session) for agent in agents.values() if agent.marked]
    head = await found.broker.head(target.root)
    if head is not None and head.sq_tip != head.cursor:
        # With nothing to read it would be taken in vain, and be set aside after a few times.
        sessions.append(target.root)
    standings = await found.broker.revoke_tree(target.tree, sessions, SILENT_S) if sessions else ()
    return [standing.session for standing in standings if standing.state in ("free", "revoked")]
