"""Requests to people that are open, and what is kept beside logs for those who answer them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.broker.history import History
from orchestrator.broker.logs import Logs
from orchestrator.broker.notes import Notes
from orchestrator.broker.notices import Listener
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import OpenApproval
from orchestrator.broker.request_feed import RequestFeed
from orchestrator.broker.secrets import Secrets
from orchestrator.broker.tokens import Tokens
from orchestrator.core.ids import SessionId


class Requests(History, Notes, Secrets, Tokens):
    """The port to what people are asked and tell: open requests, secrets, notes, typed texts, tokens."""

    def __init__(self, deployment: Deployment, logs: Logs) -> None:
        super().__init__(deployment)
        self._logs = logs

    async def approvals(self, session: SessionId | None = None) -> tuple[OpenApproval, ...]:
        """Open approvals of the fleet, or of one session, oldest first."""
        shards = range(self.config.shards) if session is None else [self.keys.shard_of(session)]
        opened = await self.approvals_of(shards)
        return tuple(asked for asked in opened if session is None or asked.session == session)

    async def approvals_of(self, shards: Sequence[int]) -> tuple[OpenApproval, ...]:
        """Open approvals of some shards, oldest first."""
        if not shards:
            return ()
        found = await self._connection.commands([("HGETALL", self.keys.approvals(s)) for s in shards])
        opened = [_approval(f, value) for page in found for f, value in page.items()]
        return tuple(sorted(opened, key=lambda a: (a.opened_ms, a.session, a.key)))

    async def count_open_requests(self) -> int:
        """The number of requests in the fleet that wait for a person."""
        rows = [("HLEN", self.keys.approvals(shard)) for shard in range(self.config.shards)]
        return sum(map(int, await self._connection.commands(rows)))

    def request_feed(self, namespace: str | None = None) -> RequestFeed:
        """A feed of the requests to people in a namespace; of all of them if it is None."""
        return RequestFeed(self, self._logs, Listener(self._connection, self.keys), namespace)


def _approval(field: bytes, value: bytes) -> OpenApproval:
    session, _, key = field.decode().partition(":")
    opened, _, payload = value.partition(b":")
    return OpenApproval(SessionId(session), key, payload, int(opened))
