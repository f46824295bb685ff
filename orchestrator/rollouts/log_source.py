"""The port for readers of logs: entries from Redis or the archive, and their large texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.records import StoredEntry
from orchestrator.core.ids import SessionId, TreeId


class LogSource(Protocol):
    """A deployment, as far as logs are read from it."""

    @property
    def broker(self) -> Broker: ...

    @property
    def texts(self) -> Texts: ...

    @property
    def secret(self) -> bytes:
        """The key of the hash chain; empty without one."""
        ...

    def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        """The session's entries after `after` up to `through`, wherever they are kept."""
        ...

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        """The texts that entries refer to, from Redis or the archive; one that is nowhere is left out."""
        ...
