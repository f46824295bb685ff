"""How long a page of the fleet's list takes: 50 of 100,000 sessions of one namespace, with their heads.

The sessions are in the index and have a hash as if they had rested; nobody runs them.
"""

from __future__ import annotations

import secrets
import time

from bench.figures import Figure, at_most, spread
from bench.lab import Lab
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.trees import IndexPlace, Listed
from orchestrator.config_keys import RedisSettings
from orchestrator.core.ids import SessionId, new_session_id

SESSIONS, QUICK = 100_000, 10_000
PAGE, PAGES = 50, 100
NAMESPACE = "bench"
_AT_ONCE = 1_000
_META = b'{"title":"fix the build","cwd":"/work","model":"gpt-5","preview":"' + b"x" * 200 + b'"}'


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Pages from the front of the list, and each behind the one before."""
    connection = connect(RedisSettings(url=lab.redis_url))
    broker = Broker(connection, BrokerConfig(), time.monotonic)
    count = QUICK if quick else SESSIONS
    try:
        await broker.open()
        await fill(broker, connection, count)
        return [await _pages(broker, count)]
    finally:
        await broker.aclose()


async def fill(broker: Broker, connection: Connection, count: int, namespace: str = NAMESPACE) -> None:
    """Makes sessions of a namespace that rest."""
    now_ms = int(time.time() * 1000)
    for start in range(0, count, _AT_ONCE):
        rows: list[tuple[str | bytes | int, ...]] = []
        for at_ms in range(now_ms - start - _AT_ONCE, now_ms - start):
            shard = secrets.randbelow(broker.config.shards)
            session = new_session_id(at_ms, shard, secrets.randbits(62))
            rows += _rows(broker, session, (shard, at_ms), namespace)
        await connection.commands(rows)


def _rows(
    broker: Broker, session: SessionId, at: tuple[int, int], namespace: str
) -> list[tuple[str | bytes | int, ...]]:
    shard, at_ms = at
    fields = ("tree", session, "pool", "bench", "agent_id", 0, "status", "idle", "meta", _META)
    labels = ("namespace", namespace, "source", "cli", "created_ms", at_ms, "recency", at_ms)
    place = IndexPlace(at_ms, session).key
    members = [prefix + place for order in ("recency", "creation") for prefix in _prefixes(order, namespace)]
    scored = [word for member in members for word in (0, member)]
    return [
        ("HSET", broker.keys.session(session), *fields, *labels),
        ("ZADD", broker.keys.index(shard), *scored),
    ]


def _prefixes(order: str, namespace: str) -> list[bytes]:
    wanted = Listed(namespace, order="creation" if order == "creation" else "recency")
    return list(wanted.prefixes())


async def _pages(broker: Broker, count: int) -> Figure:
    wanted, after, times = Listed(NAMESPACE), None, []
    for _ in range(PAGES):
        began = time.perf_counter()
        page = await broker.trees.listed_heads(wanted, after, PAGE)
        times.append(time.perf_counter() - began)
        assert len(page) == PAGE
        after = page[-1][0]
    note = f"of {count:,} in one namespace, each with its head; {PAGES} pages one behind the other"
    return spread(f"page of {PAGE} sessions", times, at_most(10), note)
