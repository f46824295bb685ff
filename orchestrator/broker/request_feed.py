"""Requests to people as they are opened and settled, without asking for them again and again.

A commit that opens or closes a request says so in its shard's stream, in the same script. An entry there
says "look", and nothing else is believed of it: the shard's hash of open approvals is the truth, and the feed
tells how it differs from what it told before. So nothing is lost where the stream was trimmed, Redis was put
back, or the connection was away: the next look finds it. A request that was opened and settled between two
looks is not told at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.keys import Keys
from orchestrator.broker.notices import Listener
from orchestrator.broker.records import OpenApproval
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId


@record
class Opened:
    """A request that waits for a person."""

    request: OpenApproval


@record
class Settled:
    """A request that waits for nobody any more, however it ended."""

    session: SessionId
    key: str


RequestChange: TypeAlias = Opened | Settled
_Id: TypeAlias = tuple[SessionId, str]


class Approvals(Protocol):
    """The reads that a feed needs."""

    @property
    def keys(self) -> Keys: ...

    async def approvals_of(self, shards: Sequence[int]) -> tuple[OpenApproval, ...]: ...


class Namespaces(Protocol):
    """The same of sessions."""

    async def namespace(self, session: SessionId) -> str: ...


class RequestFeed:
    """The open requests of a namespace, and how they change."""

    def __init__(
        self, requests: Approvals, sessions: Namespaces, listener: Listener, namespace: str | None
    ) -> None:
        self._requests = requests
        self._sessions = sessions
        self._listener = listener
        self._namespace = namespace
        self._shards = {requests.keys.asked(shard): shard for shard in range(requests.keys.shards)}
        self._cursors: dict[str, str] = {}
        """Where the streams were read to; empty before the first look, and after a failure."""
        self._told: dict[_Id, OpenApproval] = {}

    async def changes(self, timeout_s: float = 5.0) -> tuple[RequestChange, ...]:
        """Changes since the last call, at first every open request; waits at most so long for one.

        Raises `Unavailable` when Redis goes away; the call after it finds what happened meanwhile.
        """
        cursors, self._cursors = self._cursors, {}
        if not cursors:
            cursors = await self._listener.tips(list(self._shards))
            changed = await self._look(self._shards.values())
            if changed:
                self._cursors = cursors
                return changed
        found = await self._listener.read(cursors, timeout_s)
        # Without an entry all are looked at: Redis may have gone back, or an earlier version may be at work.
        changed = await self._look(self._shards[key] for key in found or self._shards)
        self._cursors = {**cursors, **{key: entries[-1][0].decode() for key, entries in found.items()}}
        return changed

    async def _look(self, shards: Iterable[int]) -> tuple[RequestChange, ...]:
        """Tells how the shards' open requests differ from what was told of them."""
        looked = frozenset(shards)
        there = await self._visible(await self._requests.approvals_of(sorted(looked)))
        shard_of = self._requests.keys.shard_of
        gone = [known for known in self._told if known not in there and shard_of(known[0]) in looked]
        new = [asked for known, asked in there.items() if self._told.get(known) != asked]
        for known in gone:
            del self._told[known]
        self._told.update({(asked.session, asked.key): asked for asked in new})
        return (*(Settled(*known) for known in gone), *map(Opened, new))

    async def _visible(self, asked: Iterable[OpenApproval]) -> Mapping[_Id, OpenApproval]:
        found = {}
        for request in asked:
            if self._namespace is None or await self._is_ours(request.session):
                found[request.session, request.key] = request
        return found

    async def _is_ours(self, session: SessionId) -> bool:
        try:
            return await self._sessions.namespace(session) == self._namespace
        except UnknownSession:
            return False

    async def aclose(self) -> None:
        """Ends the reads that wait."""
        await self._listener.aclose()
