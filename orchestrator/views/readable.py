"""Heads of many sessions for a list: one whose key is damaged hides no other, and the process's log names it.

Who asks for one session alone is told of its damage by an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from orchestrator.broker.errors import Corrupt, DamagedEntry

if TYPE_CHECKING:
    from orchestrator.broker.logs import Logs
    from orchestrator.broker.records import SessionHead
    from orchestrator.broker.trees import IndexPlace, Listed, Trees
    from orchestrator.core.ids import SessionId

UNREADABLE: Final = (DamagedEntry, ValueError, KeyError, TypeError)
"""Errors of the entries of one log that no version of Dendro writes."""
MOST_TOLD = 1_000
"""Damaged sessions of which a process remembers that it has told."""
log = logging.getLogger("dendro.lists")
_told: dict[SessionId, None] = {}


async def readable(logs: Logs, sessions: Sequence[SessionId]) -> tuple[SessionHead, ...]:
    """The heads of those that there are and that can be read, in their order."""
    damaged: dict[SessionId, Corrupt] = {}
    heads = await logs.heads(sessions, damaged)
    tell(damaged)
    return heads


async def readable_head(logs: Logs, session: SessionId) -> SessionHead | None:
    """The head of a session beside the one that is meant; None if it is gone, or cannot be read."""
    try:
        return await logs.head(session)
    except Corrupt as error:
        tell({session: error})
        return None


async def readable_listed(
    trees: Trees, wanted: Listed, after: IndexPlace | None, limit: int
) -> tuple[tuple[IndexPlace, SessionHead], ...]:
    """The same of a page of the fleet's index, each with its place; fewer than `limit` at its end alone."""
    damaged: dict[SessionId, Corrupt] = {}
    page = await trees.listed_heads(wanted, after, limit, damaged)
    tell(damaged)
    return page


def tell(damaged: Mapping[SessionId, Exception]) -> None:
    """Tells of each session that a list leaves out, once."""
    for session, error in damaged.items():
        if session not in _told:
            log.warning("a list leaves out session %s: %s", session, error)
            _told[session] = None
    while len(_told) > MOST_TOLD:
        del _told[next(iter(_told))]
