"""How fast the broker is by itself, and how that compares with a bare loop of scripts on the same server.

A claim is measured as a worker meets it: it waits for the hint, then takes the session.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from bench.figures import Figure, at_most, spread
from bench.lab import Lab
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.follow import hash8_of
from orchestrator.broker.notices import Listener
from orchestrator.broker.records import BrokerConfig, Claimed, CommitRequest, Committed, NewTree, Submit
from orchestrator.config_keys import RedisSettings
from orchestrator.core.chain import SALT_BYTES, next_chain, payload_digest
from orchestrator.core.commit_parts import NewEntry, NewEvent, NewSession
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id

ENTRY = (
    b'{"timestamp":"2026-01-01T00:00:00.000Z","type":"response_item","payload":{"text":"'
    + b"x" * 300
    + b'"}}'
)
POOL = "bench"
_POOL_SIZE, _LISTEN_S = 100, 2.0
BARE = """
redis.call('HINCRBY', KEYS[1], 'n', 1)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 100, '*', 'p', ARGV[1])
return 1
"""


@dataclass(frozen=True, slots=True)
class BareLoop:
    """Rate of small scripts, one after the other, from one Python process: the client library's limit."""

    per_second: float
    cpu_ms: float

    def figure(self) -> Figure:
        note = f"{self.cpu_ms:.2f} ms of Python CPU each"
        return Figure("bare loop of scripts", self.per_second, "ops/s", note=note)


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Commits, claims and the bare loop, one after the other on an idle server."""
    commits, claims, bare = (400, 100, 1_500) if quick else (1_500, 300, 4_000)
    connection = connect(RedisSettings(url=lab.redis_url))
    broker = Broker(connection, BrokerConfig(), time.monotonic)
    try:
        await broker.open()
        return [
            await _submit_to_claim(broker, claims),
            await _woken(broker, connection),
            *await _commits(broker, commits),
            (await _bare_loop(connection, bare)).figure(),
        ]
    finally:
        await broker.aclose()


async def measured_bare_loop(lab: Lab, count: int) -> BareLoop:
    """The yardstick by itself, for a bench that shows a ratio to it."""
    connection = connect(RedisSettings(url=lab.redis_url))
    try:
        return await _bare_loop(connection, count)
    finally:
        await connection.aclose()


async def _bare_loop(connection: Connection, count: int) -> BareLoop:
    sha = await connection.command("SCRIPT", "LOAD", BARE)
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        await connection.command("EVALSHA", sha, 2, "bare:h", "bare:s", ENTRY)
    per_second = count / (time.perf_counter() - began)
    return BareLoop(per_second, (time.process_time() - cpu) / count * 1000)


async def _session(broker: Broker) -> SessionId:
    session = new_session_id(int(time.time() * 1000), secrets.randbelow(16), secrets.randbits(62))
    await broker.commits.create(NewTree(NewSession(session, TreeId(session), POOL, AgentId(0))))
    return session


async def _held(broker: Broker) -> Claimed:
    session = await _session(broker)
    await broker.commits.submit(Submit(session, "bench", "s", b"{}"))
    held = await broker.claims.claim_session(session, "bench", secrets.token_hex(8))
    assert held is not None
    return held


def _step(at: Claimed | Committed, held: Claimed, entries: int) -> CommitRequest:
    head, found = at.head, []
    for seq in range(at.seq + 1, at.seq + entries + 1):
        salt = secrets.token_bytes(SALT_BYTES)
        head = next_chain(head, seq, held.claim.epoch, payload_digest(salt, ENTRY))
        found.append(NewEntry(ENTRY, salt, head))
    events = tuple(NewEvent(ENTRY, at.seq + entries, hash8_of(head)) for _ in range(entries))
    identity = secrets.token_hex(8)
    return CommitRequest(held.claim, identity, at.seq, at.head, at.last_commit, tuple(found), events)


async def _commits(broker: Broker, count: int) -> list[Figure]:
    held = await _held(broker)
    at: Claimed | Committed = held
    times = []
    cpu = time.process_time()
    for _ in range(count):
        request = _step(at, held, 8)
        began = time.perf_counter()
        done = await broker.commits.commit(request)
        times.append(time.perf_counter() - began)
        assert isinstance(done, Committed)
        at = done
    cpu_ms = (time.process_time() - cpu) / count * 1000
    note = f"{len(ENTRY)} bytes each, with 8 events; {cpu_ms:.2f} ms of Python CPU, building it included"
    return [spread("commit of 8 entries", times, at_most(0.5), note)]


async def _submit_to_claim(broker: Broker, count: int) -> Figure:
    sessions = [await _session(broker) for _ in range(count)]
    cursors = (await broker.claims.wait_for_notices(POOL, "bench", {}, 1.0)).cursors
    times = []
    for session in sessions:
        waiting = asyncio.ensure_future(broker.claims.wait_for_notices(POOL, "bench", cursors, 5.0))
        # The worker must be waiting before the client submits, or no hint would be measured.
        await asyncio.sleep(0.001)
        began = time.perf_counter()
        await broker.commits.submit(Submit(session, "bench", "s", b"{}"))
        notices = await waiting
        [(shard, guess)] = notices.named.items()
        found = await broker.claims.claim(POOL, "bench", secrets.token_hex(8), shard, guess)
        times.append(time.perf_counter() - began)
        assert found is not None
        cursors = notices.cursors
        await broker.commits.commit(
            CommitRequest(
                found.claim,
                "read",
                found.seq,
                found.head,
                found.last_commit,
                cursor=found.sq_tip,
                release="park",
            )
        )
    return spread("submit → claimed, idle", times, at_most(2, p99=20), "hint, then claim, from one process")


async def _woken(broker: Broker, connection: Connection) -> Figure:
    """Workers of a large pool that a submission wakes: each waits for notices, and none looks meanwhile."""
    pool, names = "large", [f"w{n}" for n in range(_POOL_SIZE)]
    listeners = [Listener(connection, broker.keys) for _ in names]
    woken = []
    for name, ear in zip(names, listeners, strict=True):
        tips = (await ear.wait((pool, name), {}, 1.0)).cursors
        cursors = {**tips, broker.keys.near(name): await broker.claims.attend(name, [pool])}
        woken.append(asyncio.create_task(ear.wait((pool, name), cursors, _LISTEN_S)))
    session = new_session_id(int(time.time() * 1000), 0, secrets.randbits(64))
    await asyncio.sleep(_LISTEN_S / 4)
    await broker.commits.create(NewTree(NewSession(session, TreeId(session), pool, AgentId(0))))
    await broker.commits.submit(Submit(session, "client", "s", b"op"))
    answers = await asyncio.gather(*woken)
    count = sum(bool(found.shards or found.alone) for found in answers)
    note = f"{_POOL_SIZE} workers wait in the pool"
    return Figure("workers woken by one submission", count, "workers", at_most(2), note=note)
