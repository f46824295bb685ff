"""The subagent tools' port for look-ups: the runtime implements it over the tree's projection and logs."""

from __future__ import annotations

from typing import Any, Protocol

from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.registry import RegistryView

LoggedEvent = tuple[int, int, dict[str, Any]]
"""(entry number, Unix milliseconds, Event)."""


class LogUnreadable(Exception):
    """A part of an agent's log was sealed and cannot be read; the message says which, for the model."""


class Tree(Protocol):
    """A session's view of its tree."""

    @property
    def version(self) -> str:
        """Of the program: what a new session's first line names."""
        ...

    async def reserve(self, call: str, wanted: int) -> tuple[AgentId, SessionId, str | None]:
        """A new agent's number, session id and rollout path; the same again for the same call.

        `wanted` numbers are taken in one go: as many as calls of one response may need.
        """
        ...

    async def registry(self) -> RegistryView:
        """Reads the agents of the tree."""
        ...

    async def log(self, session: str) -> list[LoggedEvent]:
        """The newest events of an agent's log, oldest first; raises `LogUnreadable`."""
        ...
