"""The end of a session by another process: is the session left as it is, or deleted?

`dendro rm --force` closes a tree before it deletes it, so a front sees the end of its task first.
"""

from __future__ import annotations

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.notices import until
from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import projected
from orchestrator.rollouts.source import LogSource

MOST_S = 10.0
"""For the agents of the tree to end."""
CLOSED_S = 2.0
"""From the close of a session to its deletion, if it is to be deleted: some tenths of a second."""


async def left_behind(found: LogSource, session: SessionId) -> SessionHead | None:
    """The session after its task's end, once the other process is done with it; None: it was deleted."""

    async def ended() -> bool:
        """Whether no close is under way: nothing tells of it before the agents below have ended."""
        head = await found.broker.logs.head(session)
        if head is None or head.status != "idle":
            # It is gone, it is closed, or its next task has begun.
            return True
        if not head.parked:
            return False
        try:
            agents = projected(await found.broker.trees.agents(head.tree)).agents.values()
        except UnknownSession:
            return True
        return not any(agent.marked and agent.active for agent in agents)

    async def open_or_gone() -> bool:
        head = await found.broker.logs.head(session)
        return head is None or head.status != "closed"

    await until(found.broker, [session], ended, MOST_S)
    await until(found.broker, [session], open_or_gone, CLOSED_S)
    return await found.broker.logs.head(session)
