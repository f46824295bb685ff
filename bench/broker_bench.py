"""How fast the broker is, and how that compares with a bare loop of scripts on the same server.

    python -m bench.broker_bench

Measures on a private server with AOF everysec over a unix socket. A claim is measured as a worker meets
it: it waits for the hint, then takes the session.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Wire, WireConfig, connect
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.follow import hash8_of
from orchestrator.broker.records import (
    BrokerConfig,
    Claimed,
    CommitRequest,
    Committed,
    NewEntry,
    NewEvent,
    NewSession,
    NewTree,
    Submit,
)
from orchestrator.core.chain import SALT_BYTES, next_chain, payload_digest
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id

ENTRY = (
    b'{"timestamp":"2026-01-01T00:00:00.000Z","type":"response_item","payload":{"text":"'
    + b"x" * 300
    + b'"}}'
)
POOL = "default"
BARE = """
redis.call('HINCRBY', KEYS[1], 'n', 1)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 100, '*', 'p', ARGV[1])
return 1
"""


def run(commits: int = 1_500, claims: int = 300, bare: int = 4_000) -> dict[str, float]:
    """All figures, in milliseconds and operations a second."""
    with tempfile.TemporaryDirectory(prefix="dr-") as folder:
        server = _start(Path(folder))
        try:
            return asyncio.run(_measure(f"unix://{folder}/s", commits, claims, bare))
        finally:
            server.terminate()
            server.wait(10)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    binary = shutil.which("redis-server")
    if binary is None:
        raise SystemExit("redis-server is not installed; install it, or put one into PATH")
    flags = ["--port", "0", "--unixsocket", str(folder / "s"), "--dir", str(folder), "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "everysec", "--stream-node-max-bytes", "512"]
    return subprocess.Popen([binary, *flags, *durable], stdout=subprocess.DEVNULL)


async def _measure(url: str, commits: int, claims: int, bare: int) -> dict[str, float]:
    wire = connect(WireConfig(url))
    broker = Broker(wire, BrokerConfig(), time.monotonic)
    while True:
        try:
            await broker.open()
            break
        except Unavailable:
            await asyncio.sleep(0.01)
    try:
        return {
            **await _commits(broker, commits),
            **await _submit_to_claim(broker, claims),
            **await _bare_loop(wire, bare),
        }
    finally:
        await broker.aclose()


async def _session(broker: Broker) -> SessionId:
    session = new_session_id(int(time.time() * 1000), secrets.randbelow(16), secrets.randbits(62))
    await broker.create(NewTree(NewSession(session, TreeId(session), POOL, AgentId(0))))
    return session


async def _held(broker: Broker) -> Claimed:
    session = await _session(broker)
    await broker.submit(Submit(session, "bench", "s", b"{}"))
    held = await broker.claim_session(session, "bench", secrets.token_hex(8))
    assert held is not None
    return held


def _step(at: Claimed | Committed, held: Claimed, entries: int) -> CommitRequest:
    head, found = at.head, []
    for seq in range(at.seq + 1, at.seq + entries + 1):
        salt = secrets.token_bytes(SALT_BYTES)
        head = next_chain(head, seq, held.claim.epoch, payload_digest(salt, ENTRY))
        found.append(NewEntry(ENTRY, salt, head))
    events = tuple(NewEvent(ENTRY, at.seq + entries, hash8_of(head)) for _ in range(entries))
    return CommitRequest(held.claim, secrets.token_hex(8), at.seq, at.head, tuple(found), events)


async def _commits(broker: Broker, count: int) -> dict[str, float]:
    held = await _held(broker)
    at: Claimed | Committed = held
    times = []
    cpu = time.process_time()
    for _ in range(count):
        request = _step(at, held, 8)
        started = time.perf_counter()
        done = await broker.commit(request)
        times.append(time.perf_counter() - started)
        assert isinstance(done, Committed)
        at = done
    spent = (time.process_time() - cpu) / count * 1000
    return {**_spread("commit of 8 entries, 8 events", times), "commit: Python CPU ms": spent}


async def _submit_to_claim(broker: Broker, count: int) -> dict[str, float]:
    sessions = [await _session(broker) for _ in range(count)]
    cursors = (await broker.wait_for_hints(POOL, "bench", {}, 1.0)).cursors
    times = []
    for session in sessions:
        waiting = asyncio.ensure_future(broker.wait_for_hints(POOL, "bench", cursors, 5.0))
        # The worker must be waiting before the client submits, or no hint would be measured.
        await asyncio.sleep(0.001)
        started = time.perf_counter()
        await broker.submit(Submit(session, "bench", "s", b"{}"))
        hints = await waiting
        found = await broker.claim(POOL, "bench", secrets.token_hex(8), hints.shards[0])
        times.append(time.perf_counter() - started)
        assert found is not None
        cursors = hints.cursors
        await broker.commit(
            CommitRequest(found.claim, "read", found.seq, found.head, cursor=found.sq_tip, release="park")
        )
    return _spread("submit to claimed, idle", times)


async def _bare_loop(wire: Wire, count: int) -> dict[str, float]:
    sha = await wire.command("SCRIPT", "LOAD", BARE)
    per_second = await _rate(lambda: wire.command("EVALSHA", sha, 2, "bare:h", "bare:s", ENTRY), count)
    return {"bare script loop ops/s": per_second}


async def _rate(act: Callable[[], Awaitable[Any]], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        await act()
    return count / (time.perf_counter() - started)


def _spread(name: str, times: list[float]) -> dict[str, float]:
    marks = statistics.quantiles(times, n=100)
    return {
        f"{name}: p50 ms": statistics.median(times) * 1000,
        f"{name}: p99 ms": marks[98] * 1000,
        f"{name}: ops/s": len(times) / sum(times),
    }


def table(figures: dict[str, float]) -> str:
    """The figures as lines of text."""
    width = max(map(len, figures))
    return "\n".join(f"{name:<{width}}  {value:>10.3f}" for name, value in figures.items())


if __name__ == "__main__":
    print(table(run()))
