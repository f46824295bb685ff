"""The ground of the broker's ports: the connection, the clock, and what is known of sessions for good."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.records import BrokerConfig, Place, SessionHead
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import Reply, read_reply
from orchestrator.broker.scripts import Argument
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.recent import Recent

if TYPE_CHECKING:
    from orchestrator.broker.replies import SubmitMoved

_KNOWN_MOST = 10_000
_KNOWN_S = 600.0
"""Sessions that a process knows, half a kilobyte each, since their last use; another one costs a read."""


class RedisClock:
    """Estimates Redis's time between replies from a monotonic clock of the caller."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._server_ms = 0
        self._noted_at = 0.0

    def note(self, now_ms: int) -> int:
        """Takes the time that a reply carried."""
        self._server_ms, self._noted_at = now_ms, self._monotonic()
        return now_ms

    def now_ms(self) -> int:
        """Redis's time, behind by at most the last reply's way back; 0 before the first reply."""
        if not self._server_ms:
            return 0
        return self._server_ms + int((self._monotonic() - self._noted_at) * 1000)


class Deployment:
    """The deployment that all ports of a broker speak to."""

    def __init__(self, connection: Connection, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self.config = config
        self.monotonic = monotonic
        self.keys = Keys(config.prefix, config.shards, connection.clustered)
        self.connection = connection
        self.clock = RedisClock(monotonic)
        self.places: Recent[SessionId, Place] = Recent(_KNOWN_MOST, seconds=_KNOWN_S, clock=monotonic)
        self.namespaces: Recent[SessionId, str] = Recent(_KNOWN_MOST, seconds=_KNOWN_S, clock=monotonic)
        many = config.shards if connection.clustered else 1
        witnesses = [Witness(monotonic, config.watch_s) for _ in range(many)]
        self.witnesses = witnesses * (config.shards // many)
        """A witness for each shard: the shards of a cluster may be on different servers."""

    async def run(self, call: ScriptCall, subject: SessionId | str = "") -> Reply:
        """Runs a script; raises for what is wrong with its subject, and with its keys."""
        return read_reply(call, await self.connection.run(call), subject)

    def now_ms(self) -> int:
        """Redis's time as far as it is known here."""
        return self.clock.now_ms()

    def note_time(self, shard: int, now_ms: int) -> int:
        """Takes the time that an answer of the shard's server carried."""
        self.witnesses[shard].note(now_ms)
        return self.clock.note(now_ms)

    async def place(self, session: SessionId) -> Place:
        """Tree and pool of a session; asked once, kept afterwards."""
        if known := self.places.use(session):
            return known
        tree, pool = await self.connection.command("HMGET", self.keys.session(session), "tree", "pool")
        if tree is None:
            raise UnknownSession(session)
        return self.keep(Place(session, TreeId(tree.decode()), pool.decode()))

    async def namespace(self, session: SessionId) -> str:
        """The namespace of a session; asked once, kept afterwards."""
        if (known := self.namespaces.use(session)) is not None:
            return known
        tree, named = await self.connection.command("HMGET", self.keys.session(session), "tree", "namespace")
        if tree is None:
            raise UnknownSession(session)
        namespace = (named or b"").decode()
        self.namespaces.put(session, namespace, 1)
        return namespace

    def remember(self, head: SessionHead) -> None:
        """Keeps what a head says of its session that does not change while it lives."""
        self.keep(Place(head.session, head.tree, head.pool))
        self.namespaces.put(head.session, head.labels.namespace, 1)

    def keep(self, place: Place) -> Place:
        self.places.put(place.session, place, 1)
        return place

    async def server_ms(self) -> int:
        """Redis's time now."""
        seconds, microseconds = await self.connection.command("TIME")
        return self.clock.note(int(seconds) * 1000 + int(microseconds) // 1000)


class Port:
    """A part of the broker, for callers that need no other."""

    def __init__(self, deployment: Deployment) -> None:
        self.config = deployment.config
        self.keys = deployment.keys
        self._deployment = deployment
        self._connection = deployment.connection
        self._clock = deployment.clock
        self._places = deployment.places
        self._namespaces = deployment.namespaces
        self._witnesses = deployment.witnesses
        self._run = deployment.run
        self._place = deployment.place
        self._keep = deployment.keep
        self._note_time = deployment.note_time

    def now_ms(self) -> int:
        """Redis's time as far as it is known here."""
        return self._deployment.now_ms()

    async def server_ms(self) -> int:
        """Redis's time now."""
        return await self._deployment.server_ms()

    async def _each(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        """The answers to several reads of one key each; None for keys of another type."""
        try:
            return list(await self._connection.commands(rows))
        except Corrupt:
            if len(rows) == 1:
                return [None]
            # One such key is no reason to know nothing of the others.
            return [(await self._each([row]))[0] for row in rows]

    async def _placed(self, session: SessionId, build: Callable[[Place], ScriptCall]) -> Reply:
        """Runs a call whose keys depend on the session's place, once more if it had moved."""
        reply = await self._run(build(await self._place(session)), session)
        if reply.code != "MOVED":
            return reply
        moved: SubmitMoved = reply.fields
        self._keep(Place(session, TreeId(moved["tree"]), moved["pool"]))
        return await self._run(build(await self._place(session)), session)

    def _is_done(self, reply: Reply, unless: str) -> bool:
        """Whether the script has done it; False for the code `unless`, and any other is an error."""
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
                return True
            case code if code == unless:
                return False
            case _:
                raise reply.unexpected()


def scored(flat: Sequence[bytes]) -> list[tuple[bytes, float]]:
    """Members and scores as Redis lists them: one after the other."""
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


# ── witness ───────────────────────────────────────────────────────────────────────────────────────
# Redis's clock, borne out by this process's own: how much time has certainly passed for a lease.
#
# A lease is counted by the clock of the server that gave it. That clock may be set while leases run (NTP
# steps it, a replica with another one is promoted), and a lease would seem to have run out before its
# holder stops. So a process believes only what its own clock bears out: Redis's time is at most this
# clock's plus the smallest difference of the two that it has seen in the last `memory_s`, which covers a
# lease. A step forward thus delays, by as much and for that long, what is taken because of an expiry. A
# process that has watched for a shorter time takes nothing.


NEVER_BOUNDED = (1 << 53) - 1
"""Later than any clock shows."""
_APART_S = 0.5
"""Looks that are nearer to each other count as one."""


class Witness:
    """The readings of one server's clock that one process took."""

    def __init__(self, monotonic: Callable[[], float], memory_s: float) -> None:
        self._monotonic = monotonic
        self._memory_s = memory_s
        self._seen: deque[tuple[float, float]] = deque()
        """(when, by how much Redis's clock was ahead at least), the first from before what is remembered."""

    def note(self, now_ms: int) -> None:
        """Notes the time that an answer of Redis carried: it was read before this moment."""
        if not self._memory_s:
            return
        at = self._monotonic()
        ahead = now_ms / 1000 - at
        if self._seen and at - self._seen[-1][0] < _APART_S:
            when, before = self._seen[-1]
            self._seen[-1] = when, min(before, ahead)
        else:
            self._seen.append((at, ahead))
        while len(self._seen) > 1 and self._seen[1][0] <= at - self._memory_s:
            self._seen.popleft()

    def certain_ms(self) -> int:
        """The time by Redis's clock up to which leases have certainly run out; 0 if nothing is certain."""
        if not self._memory_s:
            return NEVER_BOUNDED
        at = self._monotonic()
        if not self._seen or at - self._seen[0][0] < self._memory_s:
            return 0
        return int((at + min(ahead for _, ahead in self._seen)) * 1000)
