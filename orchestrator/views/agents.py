"""Naming an agent on the command line: by its tree and its number, or by its own session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.core.frozen import record
from orchestrator.views.errors import ViewError
from orchestrator.views.find import find, find_one, find_tree

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.ids import SessionId, TreeId
    from orchestrator.rollouts.source import LogSource


@record
class Addressed:
    """An agent that a command is about."""

    head: SessionHead

    @property
    def session(self) -> SessionId:
        return self.head.session

    @property
    def agent_id(self) -> int:
        return int(self.head.agent_id)

    @property
    def tree(self) -> TreeId:
        return self.head.tree

    @property
    def root(self) -> SessionId:
        """The root's session, whose id is the tree's."""
        from orchestrator.core.ids import SessionId

        return SessionId(self.head.tree)

    @property
    def name(self) -> str:
        """As a person speaks of it."""
        return f"agent {self.agent_id}" if self.agent_id else "the root"


async def addressed(found: LogSource, text: str, agent: int | None, *, certain: bool = False) -> Addressed:
    """The agent `agent` of the tree that `text` belongs to, else the session itself; raises `ViewError`.

    `certain`, for what cannot be undone: a text that fits several sessions does not mean their root.
    """
    from orchestrator.core.ids import SessionId

    if agent is None:
        return Addressed(await (find_one(found, text) if certain else find(found, text)))
    tree = await find_tree(found, text)
    if agent == 0:
        return Addressed(await _known(found, SessionId(tree)))
    fields = await found.broker.trees.agents(tree)
    session = fields.get(f"s:{agent}")
    if session is None:
        raise ViewError(f"there is no agent {agent} in the tree {tree}; {_there_are(fields)}")
    return Addressed(await _known(found, SessionId(session.decode())))


async def labels(found: LogSource, tree: TreeId) -> Mapping[int, str]:
    """The labels of a tree's agents; empty for one that has none."""
    from orchestrator.core.registry import projected

    agents = projected(await found.broker.trees.agents(tree)).agents.values()
    return {agent.agent_id: str(agent.record.get("label") or "") for agent in agents}


async def _known(found: LogSource, session: SessionId) -> SessionHead:
    head = await found.broker.logs.head(session)
    if head is None:
        raise ViewError(f"the session {session} of this agent is gone: its tree was deleted")
    return head


def _there_are(fields: Mapping[str, bytes]) -> str:
    numbers = sorted(int(name[2:]) for name in fields if name.startswith("s:") and name != "s:0")
    if not numbers:
        return "its root has made none"
    shown = ", ".join(map(str, numbers[:20])) + (" …" if len(numbers) > 20 else "")
    return f"there are {shown}; `dendro tree` shows them"
