"""The end of a session by another process: is the session left as it is, or deleted?

`dendro rm --force` closes a tree before it deletes it, so a front sees the end of its task first.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import projected
from orchestrator.rollouts.source import LogSource

MOST_S = 10.0
"""For the agents of the tree to end."""
CLOSED_S = 2.0
"""From the close of a session to its deletion, if it is to be deleted: some tenths of a second."""
POLL_S = 0.05


async def left_behind(found: LogSource, session: SessionId) -> SessionHead | None:
    """The session after its task's end, once the other process is done with it; None: it was deleted."""
    with suppress(TimeoutError):
        async with asyncio.timeout(MOST_S):
            # Neither a release nor a deletion is an event, so they have to be looked for.
            while await _ends(found, session):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSED_S):
            while (head := await found.broker.logs.head(session)) is not None and head.status == "closed":  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    return await found.broker.logs.head(session)


async def _ends(found: LogSource, session: SessionId) -> bool:
    """Whether a close may be under way: nothing tells of it before the agents below have ended."""
    head = await found.broker.logs.head(session)
    if head is None or head.status != "idle":
        # It is gone, it is closed, or its next task has begun.
        return False
    if head.holder is not None or head.has_unread:
        return True
    try:
        agents = projected(await found.broker.trees.agents(head.tree)).agents.values()
    except UnknownSession:
        return False
    return any(agent.marked and agent.active for agent in agents)
