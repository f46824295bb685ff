"""Actors of the tests: sessions to create, steps to commit, a view of all that Redis holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Commands, Connection, ScriptCall
from orchestrator.broker.follow import hash8_of
from orchestrator.broker.records import (
    BrokerConfig,
    BudgetPart,
    Claim,
    Claimed,
    CommitRequest,
    Committed,
    NewTree,
    Submit,
    Submitted,
)
from orchestrator.core.chain import next_chain, payload_digest
from orchestrator.core.commit_parts import NewEntry, NewEvent, NewSession, TreePart
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id

POOL = "default"
SHARD = 3
_numbers = itertools.count(1)
_GROUPED = {
    "tree_events": ("tree", "events"),
    **{
        name: ("tree", name)
        for name in ("outbox", "children", "summary", "debits", "unless_flagged", "taken", "secrets_dropped")
    },
    **{name: ("budget", name) for name in ("settlements", "reservation")},
    "within_budget": ("budget", "within"),
    "budget_wait": ("budget", "wait"),
}


def session_id(shard: int = SHARD) -> SessionId:
    return new_session_id(1_700_000_000_000, shard, next(_numbers))


def new_session(session: SessionId | None = None, **changes: Any) -> NewSession:
    chosen = session or session_id()
    return replace(NewSession(chosen, TreeId(chosen), POOL, AgentId(0)), **changes)


def entries_after(head: bytes, seq: int, epoch: int, payloads: Sequence[bytes]) -> tuple[NewEntry, ...]:
    found = []
    for number, payload in enumerate(payloads, start=seq + 1):
        salt = number.to_bytes(16, "big")
        head = next_chain(head, number, epoch, payload_digest(salt, payload))
        found.append(NewEntry(payload, salt, head))
    return tuple(found)


def step(
    at: Claimed | Committed,
    claim: Claim,
    commit_id: str,
    payloads: Sequence[bytes] = (b"entry",),
    **more: Any,
) -> CommitRequest:
    """A commit on top of `at` with entries and one event for the last of them."""
    entries = entries_after(at.head, at.seq, claim.epoch, payloads)
    head = entries[-1].chain if entries else at.head
    events = (NewEvent(b"event", at.seq + len(entries), hash8_of(head)),) if entries else ()
    request = CommitRequest(claim, commit_id, at.seq, at.head, at.last_commit, entries=entries, events=events)
    return replace(request, **grouped(**more))


def grouped(**named: Any) -> dict[str, Any]:
    """The fields of a commit, where what concerns the tree and its budgets may be named flat."""
    groups: dict[str, dict[str, Any]] = {"": {}, "tree": {}, "budget": {}}
    for name, value in named.items():
        group, field = _GROUPED.get(name, ("", name))
        groups[group][field] = value
    parts = {"tree": TreePart(**groups["tree"]), "budget": BudgetPart(**groups["budget"])}
    return parts | groups[""]


@dataclass
class Backend:
    """A server, or the double: brokers to act with and clients to look with."""

    name: str
    connect: Callable[[], Connection]
    look: Callable[[], Sequence[Commands]]
    real: bool

    def broker(self, config: BrokerConfig | None = None, connection: Connection | None = None) -> Broker:
        return Broker(connection or self.connect(), config or BrokerConfig(), lambda: 0.0)


async def created(broker: Broker, session: SessionId | None = None, **changes: Any) -> SessionId:
    """A root session without work."""
    born = new_session(session, **changes)
    await broker.commits.create(NewTree(born))
    return born.session


async def submitted(
    broker: Broker, session: SessionId, submission: str = "s1", payload: bytes = b"op"
) -> Submitted:
    return await broker.commits.submit(Submit(session, "client", submission, payload))


async def claimed(broker: Broker, session: SessionId, worker: str = "w1", claim_id: str = "c1") -> Claimed:
    found = await broker.claims.claim_session(session, worker, claim_id)
    assert found is not None
    return found


async def lease_runs_out(broker: Broker, session: SessionId) -> None:
    """The session's holder has not renewed its claim for long enough."""
    place = await broker.logs.place(session)
    leases = broker.keys.leases(broker.keys.shard_of(place.tree), place.pool)
    await broker.command("ZADD", leases, "XX", 0, session)


async def holder_died(broker: Broker, session: SessionId) -> None:
    """The lease of whoever holds it has run out, and the claim is taken: the session is due."""
    await lease_runs_out(broker, session)
    await broker.trees.revoke(session)


async def working(broker: Broker, **changes: Any) -> Claimed:
    """A session with one submission, held by w1."""
    session = await created(broker, **changes)
    await submitted(broker, session)
    return await claimed(broker, session)


class RecordingConnection(Connection):
    """Remembers every script call on its way."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.clustered = inner.clustered
        self.calls: list[ScriptCall] = []
        self.before: Callable[[ScriptCall], Any] | None = None

    async def run(self, call: ScriptCall) -> list[Any]:
        self.calls.append(call)
        if self.before is not None:
            await self.before(call)
        return await self._inner.run(call)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return [await self.run(call) for call in calls]

    async def command(self, *args: Any) -> Any:
        return await self._inner.command(*args)

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._inner.commands(rows)

    async def wait(self, *args: Any) -> Any:
        return await self._inner.wait(*args)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def everything(clients: Sequence[Commands]) -> dict[bytes, tuple[bytes, Any]]:
    """All keys with type and content, byte for byte."""
    found = {}
    for client in clients:
        for key in await client.execute_command("KEYS", "*"):
            kind = await client.execute_command("TYPE", key)
            if kind == b"none":
                # It has expired since.
                continue
            found[key] = (kind, await _content(client, key, kind))
    return found


async def _content(client: Commands, key: bytes, kind: bytes) -> Any:
    match kind:
        case b"string":
            return await client.execute_command("GET", key)
        case b"hash":
            return await client.execute_command("HGETALL", key)
        case b"zset":
            return await client.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
        case b"set":
            return set(await client.execute_command("SMEMBERS", key))
        case b"stream":
            return await client.execute_command("XRANGE", key, "-", "+")
        case b"list":
            return await client.execute_command("LRANGE", key, 0, -1)
    raise AssertionError(f"{key!r} is a {kind!r}")
