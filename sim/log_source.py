"""The logs that a person's process reads whole: from Redis and the archive, as the product's readers do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.records import StoredEntry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import full_log


@dataclass(frozen=True)
class StoredLogs:
    """A log source over what a process of a deployment reaches."""

    storage: Storage
    texts: Texts

    @property
    def broker(self) -> Broker:
        return self.storage.broker

    @property
    def secret(self) -> bytes:
        return self.storage.secret

    def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        return full_log(self.broker.logs, self.storage.archive, session, after, through)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        wanted = list(digests)
        await self.texts.fetch(tree, wanted)
        found = {digest: self.texts.get(digest) for digest in wanted}
        return {digest: text for digest, text in found.items() if text is not None}
