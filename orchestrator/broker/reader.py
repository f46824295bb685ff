"""Reading: everything that can be known without the right to write.

Reads are plain commands and may be repeated at will. Knows no claims and no payloads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from orchestrator.broker.arguments import Argument
from orchestrator.broker.connection import Connection, ScriptCall, call
from orchestrator.broker.errors import Corrupt, DamagedEntry, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.keys import Keys
from orchestrator.broker.pool_service import Serving, serving
from orchestrator.broker.records import (
    START,
    BrokerConfig,
    Heard,
    OpenApproval,
    Place,
    PoolQueue,
    SessionHead,
    SqEntry,
    StoredEntry,
    StoredEvent,
)
from orchestrator.broker.registry import registry_of
from orchestrator.broker.replies import (
    HEAD_FIELDS,
    Reply,
    number_of,
    read_reply,
    session_head,
    sq_entry,
    stored_entry,
    stored_event,
    tree_entry,
)
from orchestrator.broker.tree_records import Registry, TreeEntry
from orchestrator.broker.witness import Witness
from orchestrator.core.ids import SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import Registry as RegistryFields

_PLACES_KEPT = 100_000
_HEADS = 500
_SCANNED = 100_000
"""Ids of one shard that are read at once: some ten milliseconds of Redis."""

Fielded = tuple[bytes, dict[bytes, bytes]]
"""An entry of a stream as Redis answers it."""
Decoded = TypeVar("Decoded")


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


class Reader:
    """Reads sessions, queues, logs and listings of one deployment."""

    def __init__(self, connection: Connection, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self.config = config
        self.keys = Keys(config.prefix, config.shards)
        self._connection = connection
        self._clock = RedisClock(monotonic)
        self._places: dict[SessionId, Place] = {}
        self._namespaces: dict[SessionId, str] = {}
        self._witnesses = [Witness(monotonic, config.watch_s) for _ in range(config.shards)]
        """A witness for each shard: the shards of a cluster may be on different servers."""

    async def _run(self, call: ScriptCall, subject: SessionId | str = "") -> Reply:
        """Runs a script; raises for what is wrong with its subject, and with its keys."""
        return read_reply(call, await self._connection.run(call), subject)

    def now_ms(self) -> int:
        """Redis's time as far as it is known here."""
        return self._clock.now_ms()

    def _note_time(self, shard: int, now_ms: int) -> int:
        """Takes the time that an answer of the shard's server carried."""
        self._witnesses[shard].note(now_ms)
        return self._clock.note(now_ms)

    async def place(self, session: SessionId) -> Place:
        """Tree and pool of a session; asked once, kept afterwards."""
        if session in self._places:
            return self._places[session]
        tree, pool = await self._connection.command("HMGET", self.keys.session(session), "tree", "pool")
        if tree is None:
            raise UnknownSession(session)
        return self._keep(Place(session, TreeId(tree.decode()), pool.decode()))

    async def namespace(self, session: SessionId) -> str:
        """The namespace of a session; asked once, kept afterwards."""
        if session not in self._namespaces:
            tree, named = await self._connection.command(
                "HMGET", self.keys.session(session), "tree", "namespace"
            )
            if tree is None:
                raise UnknownSession(session)
            self._keep_namespace(session, (named or b"").decode())
        return self._namespaces[session]

    def remember(self, head: SessionHead) -> None:
        """Keeps what a head says of its session that does not change while it lives."""
        self._keep(Place(head.session, head.tree, head.pool))
        self._keep_namespace(head.session, head.labels.namespace)

    def _keep_namespace(self, session: SessionId, namespace: str) -> None:
        if len(self._namespaces) >= _PLACES_KEPT:
            self._namespaces.clear()
        self._namespaces[session] = namespace

    def _keep(self, place: Place) -> Place:
        if len(self._places) >= _PLACES_KEPT:
            self._places.clear()
        self._places[place.session] = place
        return place

    async def head(self, session: SessionId) -> SessionHead | None:
        """The head of a session, or None if there is no such session."""
        values = await self._connection.command("HMGET", self.keys.session(session), *HEAD_FIELDS)
        try:
            return session_head(session, values)
        except ValueError as error:
            raise Corrupt(self.keys.session(session), f"a field of it cannot be read: {error}") from error

    async def count_sessions(self) -> int:
        """How many sessions there are."""
        rows = [("ZCARD", self.keys.sessions(shard)) for shard in range(self.config.shards)]
        return sum(await self._connection.commands(rows))

    async def heads(self, sessions: Sequence[SessionId]) -> tuple[SessionHead, ...]:
        """The heads of the sessions that exist, in the order given."""
        rows = [("HMGET", self.keys.session(session), *HEAD_FIELDS) for session in sessions]
        values = await self._connection.commands(rows) if rows else []
        found = (session_head(i, row) for i, row in zip(sessions, values, strict=True))
        return tuple(head for head in found if head is not None)

    async def newest(self, limit: int) -> tuple[SessionId, ...]:
        """The ids of the sessions that changed last, newest first."""
        shards = range(self.config.shards)
        found = await self._connection.commands(
            [("ZREVRANGE", self.keys.sessions(s), 0, limit - 1, "WITHSCORES") for s in shards]
        )
        newest = sorted(
            (pair for page in found for pair in _scored(page)), key=lambda pair: (-pair[1], pair[0])
        )
        return tuple(SessionId(member.decode()) for member, _ in newest[:limit])

    async def newest_of(self, shard: int, start: int, count: int) -> list[SessionId]:
        """Ids of a shard's sessions, newest first, from place `start` on."""
        key, last = self.keys.sessions(shard), start + count - 1
        found = await self._connection.command("ZREVRANGE", key, start, last)
        return [SessionId(member.decode()) for member in found]

    async def changed_since(
        self, shard: int, since_ms: int, limit: int, start: int = 0
    ) -> tuple[tuple[SessionId, int], ...]:
        """Sessions of a shard that changed at that time or later, with when, the first ones first.

        The first `start` of them are left out.
        """
        key, most = self.keys.sessions(shard), ("LIMIT", start, limit)
        found = await self._connection.command("ZRANGEBYSCORE", key, since_ms, "+inf", "WITHSCORES", *most)
        return tuple((SessionId(member.decode()), int(at)) for member, at in _scored(found))

    async def sessions(self, limit: int = 1_000) -> tuple[SessionHead, ...]:
        """The sessions that changed last, newest first."""
        return await self.heads(await self.newest(limit))

    async def heads_of_shard(self, shard: int) -> AsyncIterator[tuple[SessionHead, ...]]:
        """The heads of all sessions of a shard, some at a time."""
        found = await self._connection.command("ZRANGE", self.keys.sessions(shard), 0, -1)
        for start in range(0, len(found), _HEADS):
            page = [SessionId(member.decode()) for member in found[start : start + _HEADS]]
            yield await self.heads(page)

    async def session_ids(self) -> AsyncIterator[list[SessionId]]:
        """The ids of all sessions, a shard at a time, newest first in each."""
        for shard in range(self.config.shards):
            found = await self._connection.command("ZREVRANGE", self.keys.sessions(shard), 0, _SCANNED - 1)
            yield [SessionId(member.decode()) for member in found]

    async def serving(self, heads: Sequence[SessionHead]) -> dict[SessionId, Serving]:
        """How each session is served, which its hash does not say."""
        return await serving(self._connection, self.keys, heads)

    async def read_sq(self, session: SessionId, after: str = START, count: int = 100) -> tuple[SqEntry, ...]:
        """Queue entries after a cursor, oldest first."""
        found = await self._page(self.keys.sq(session), after, count)
        return _decoded(self.keys.sq(session), found, sq_entry)

    async def read_rollout(
        self, session: SessionId, after_seq: int = 0, count: int = 1_000
    ) -> tuple[StoredEntry, ...]:
        """Log entries after `after_seq`; those sealed into the archive are not here."""
        found = await self._page(self.keys.rollout(session), f"{after_seq}-0", count)
        return _decoded(self.keys.rollout(session), found, stored_entry)

    async def read_eq(
        self, session: SessionId, after_n: int = 0, count: int = 1_000
    ) -> tuple[StoredEvent, ...]:
        """Events after number `after_n` that are still kept."""
        found = await self._page(self.keys.eq(session), f"{after_n}-0", count)
        return _decoded(self.keys.eq(session), found, stored_event)

    async def read_eq_back(
        self, session: SessionId, before_n: int | None = None, count: int = 1_000
    ) -> tuple[StoredEvent, ...]:
        """The last events that are still kept, or the last before number `before_n`, newest first."""
        end = "+" if before_n is None else f"({before_n}-0"
        found = await self._connection.command("XREVRANGE", self.keys.eq(session), end, "-", "COUNT", count)
        return _decoded(self.keys.eq(session), found, stored_event)

    async def read_tree(self, tree: TreeId, after: int = 0, count: int = 1_000) -> tuple[TreeEntry, ...]:
        """Tree log entries after a `tree_seq`."""
        found = await self._page(self.keys.tree(tree), f"{after}-0", count)
        return _decoded(self.keys.tree(tree), found, tree_entry)

    async def read_tree_back(
        self, tree: TreeId, before: int | None = None, count: int = 1_000
    ) -> tuple[TreeEntry, ...]:
        """The last tree log entries, or the last before a `tree_seq`, newest first."""
        end = "+" if before is None else f"({before}-0"
        found = await self._connection.command("XREVRANGE", self.keys.tree(tree), end, "-", "COUNT", count)
        return _decoded(self.keys.tree(tree), found, tree_entry)

    async def _page(self, key: str, after: str, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found: list[tuple[bytes, dict[bytes, bytes]]] = await self._connection.command(
            "XRANGE", key, f"({after}", "+", "COUNT", count
        )
        return found

    async def wait_tree(self, tree: TreeId, after: int, timeout_s: float) -> tuple[TreeEntry, ...]:
        """Tree log entries after a `tree_seq`, waiting for the first of them if there is none yet."""
        found = await self._wait(self.keys.tree(tree), f"{after}-0", timeout_s)
        return _decoded(self.keys.tree(tree), found, tree_entry)

    async def registry(self, tree: TreeId) -> Registry:
        """The projection of a tree, all at one moment; raises `UnknownSession` if there is no such tree."""
        return (await self.projection(tree))[0]

    async def projection(self, tree: TreeId) -> tuple[Registry, dict[str, bytes]]:
        """The same with the flat fields that it was read from."""
        reply = await self._run(call("registry", [self.keys.agents(tree)]))
        read: RegistryFields = reply.fields
        found = {name.decode(): value for name, value in read["fields"].items()}
        if "root" not in found:
            raise UnknownSession(tree)
        return registry_of(tree, found, self._clock.note(read["now"])), found

    async def wait_eq(self, session: SessionId, after_n: int, timeout_s: float) -> tuple[StoredEvent, ...]:
        """Events after `after_n`, waiting for the first of them if there is none yet."""
        found = await self._wait(self.keys.eq(session), f"{after_n}-0", timeout_s)
        return _decoded(self.keys.eq(session), found, stored_event)

    async def wait_behind(
        self, session: SessionId, at: EqCursor, timeout_s: float
    ) -> tuple[StoredEvent, ...] | None:
        """The same behind an event that has to be there as the cursor names it; None if it is not."""
        key = self.keys.eq(session)

        def there(found: list[Fielded]) -> bool:
            return bool(found) and at.names(_decoded(key, found, stored_event)[0])

        read = ("XRANGE", key, f"{at.n}-0", f"{at.n}-0", "COUNT", 1)
        wait = _blocking(key, f"{at.n}-0", timeout_s)
        held, reply = await self._connection.wait_if(read, there, wait)
        return _decoded(key, reply[0][1] if reply else (), stored_event) if held else None

    async def _wait(self, key: str, after: str, timeout_s: float) -> list[Fielded]:
        reply = await self._connection.wait(*_blocking(key, after, timeout_s))
        return list(reply[0][1]) if reply else []

    async def snapshot_of(self, session: SessionId) -> bytes | None:
        """The folded state last stored, as its writer gave it."""
        found: bytes | None = await self._connection.command("GET", self.keys.snapshot(session))
        return found

    async def agents(self, tree: TreeId) -> dict[str, bytes]:
        """The projection of a tree in flat fields."""
        found = await self._connection.command("HGETALL", self.keys.agents(tree))
        return {name.decode(): value for name, value in found.items()}

    async def registries(self, trees: Sequence[TreeId]) -> list[dict[str, bytes]]:
        """The flat fields of several projections."""
        rows = [("HGETALL", self.keys.agents(tree)) for tree in trees]
        found = await self._connection.commands(rows) if rows else []
        return [{name.decode(): value for name, value in fields.items()} for fields in found]

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

    async def queue_of(self, pool: str) -> PoolQueue:
        """How much of a pool's work waits, and for how long; a look at each shard, not at one moment."""
        shards = range(self.config.shards)
        rows: list[tuple[str | int, ...]] = [("ZCARD", self.keys.due(shard, pool)) for shard in shards]
        rows += [("ZCARD", self.keys.leases(shard, pool)) for shard in shards]
        rows += [("ZRANGE", self.keys.due(shard, pool), 0, 0) for shard in shards]
        found = await self._connection.commands(rows)
        many = len(shards)
        next_ones = [SessionId(first[0].decode()) for first in found[2 * many :] if first]
        arrived = [await self._first_unread(head) for head in await self.heads(next_ones)]
        known = [at_ms for at_ms in arrived if at_ms is not None]
        age_ms = max(0, self.now_ms() - min(known)) if known else 0
        return PoolQueue(sum(map(int, found[:many])), sum(map(int, found[many : 2 * many])), age_ms)

    async def _first_unread(self, head: SessionHead) -> int | None:
        entries = await self.read_sq(head.session, head.cursor, 1)
        return entries[0].at_ms if entries else None

    async def workers(self) -> tuple[Heard, ...]:
        """Every worker that was heard from in the last day and has not left, latest first."""
        states_key, heard_key, _ = self.keys.workers()
        states, heard = await self._connection.commands(
            [("HGETALL", states_key), ("ZREVRANGE", heard_key, 0, -1, "WITHSCORES")]
        )
        return tuple(Heard(w.decode(), states.get(w, b""), int(at)) for w, at in _scored(heard))

    async def server_ms(self) -> int:
        """Redis's time now."""
        seconds, microseconds = await self._connection.command("TIME")
        return self._clock.note(int(seconds) * 1000 + int(microseconds) // 1000)

    async def command(self, *args: Argument) -> object:
        """A plain read for tools such as doctor, which look at the server itself."""
        found: object = await self._connection.command(*args)
        return found

    async def aclose(self) -> None:
        await self._connection.aclose()


def _blocking(key: str, after: str, timeout_s: float) -> tuple[Argument, ...]:
    block_ms = max(1, int(timeout_s * 1000))
    return "XREAD", "COUNT", 500, "BLOCK", block_ms, "STREAMS", key, after


def _decoded(
    key: str, found: Iterable[Fielded], decode: Callable[[bytes, dict[bytes, bytes]], Decoded]
) -> tuple[Decoded, ...]:
    """The entries of a stream; raises `DamagedEntry` for the first that is none."""
    decoded: list[Decoded] = []
    entry_id = b"0-0"
    try:
        for entry_id, fields in found:
            decoded.append(decode(entry_id, fields))
    except (KeyError, ValueError) as error:
        raise DamagedEntry(key, number_of(entry_id), error) from error
    return tuple(decoded)


def _scored(flat: Sequence[bytes]) -> list[tuple[bytes, float]]:
    """Members and scores as Redis lists them: one after the other."""
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def _approval(field: bytes, value: bytes) -> OpenApproval:
    session, _, key = field.decode().partition(":")
    opened, _, payload = value.partition(b":")
    return OpenApproval(SessionId(session), key, payload, int(opened))
