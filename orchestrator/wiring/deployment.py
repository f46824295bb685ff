"""Redis as the settings mean it, and the broker on it; which workers may run which session."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import orjson

from orchestrator.broker.blobs import ArchivedText, Blobs, Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Outage, RetryingConnection, connect
from orchestrator.broker.embedded import EmbeddedConfig, EmbeddedRedis
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.rights import COMMANDS, READS, require_rights
from orchestrator.broker.sockets import other_scheme
from orchestrator.config_keys import ProviderSettings
from orchestrator.core.chain import ChainKey
from orchestrator.core.frozen import record
from orchestrator.core.ids import TreeId
from orchestrator.settings import Settings
from orchestrator.settings.load import usual_pools

OPENING_S = 10.0
"""The wait of a process at its start for a Redis that does not answer."""
HANDED_KEY = "CODEX_API_KEY"
"""The variable in which a program hands a key to the one process that it starts."""
EVERY_WORKER = "default"
"""The pool that workers serve without being told to: a machine's own would hold a portable session on it."""
QUARANTINED = (
    "this session was quarantined: five workers in a row took it and could not go on; "
    "`dendro verify` and the workers' logs tell why, `dendro revoke` lets it run again"
)
QUARANTINE_EVENT = orjson.dumps({"id": "", "msg": {"type": "error", "message": QUARANTINED}})
"""The `error` event of a quarantine, as bytes: a command that lists sessions loads no events."""


@contextmanager
def redis_url(settings: Settings, say: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """The deployment's Redis, or the user's private one for as long as the context is open.

    `say` gets a line when the private Redis had ended and was started again.

    Raises `EmbeddedError` if a private server is needed and cannot be had.
    """
    if settings.redis.url:
        yield settings.redis.url
        return
    with EmbeddedRedis.acquire(embedded_config(settings), say) as server:
        yield server.url


def embedded_config(settings: Settings) -> EmbeddedConfig:
    """The private server that these settings mean; equal in every process, or they would not share it."""
    host = settings.host
    return EmbeddedConfig(
        home=settings.home,
        runtime_dir=host.runtime_dir,
        search_path=host.search_path,
        host=host.machine_id,
        temp_dir=Path("/tmp"),
        appendfsync=settings.redis.appendfsync,
    )


@record
class Deployment:
    """A process's view of Redis."""

    broker: Broker
    texts: Texts
    blobs: Blobs


def broker_config(settings: Settings) -> BrokerConfig:
    return BrokerConfig(
        prefix=settings.redis.prefix,
        shards=settings.redis.shards,
        lease_s=settings.worker.lease_s,
        watch_s=settings.worker.lease_s,
        quarantine_event=QUARANTINE_EVENT,
        machine=settings.host.machine_id,
        leave_s=settings.workspace.leave_s,
        salted=settings.receipts.url is not None,
    )


ProcessKind = Literal["worker", "gateway", "upkeep", "cli", "burial", "notary"]


_WITH_KEY = ("worker", "gateway")
"""Processes that write logs; a command does where it makes a session."""


def client_name(kind: ProcessKind) -> str:
    """The name of this process's connections in Redis's `CLIENT LIST`; names there have no blanks."""
    return re.sub(r"[^!-~]", "-", f"dendro-{kind}-{socket.gethostname()}-{os.getpid()}")


def open_broker(
    settings: Settings,
    url: str,
    patience_s: float,
    outage: Outage | None = None,
    kind: ProcessKind = "cli",
) -> Broker:
    """A broker with connections of its own, of less patience; bound to the loop that first uses it."""
    usual = settings.redis
    brief = {
        "connect_timeout_s": min(usual.connect_timeout_s, patience_s),
        "command_timeout_s": min(usual.command_timeout_s, patience_s),
    }
    connection = connect(usual.model_copy(update={"url": url, **brief}), client_name(kind))
    connection.outage = outage
    return Broker(connection, broker_config(settings), time.monotonic)


@asynccontextmanager
async def deployment(
    settings: Settings,
    url: str,
    outage: Outage | None = None,
    patience_s: float = 0.0,
    kind: ProcessKind = "cli",
) -> AsyncIterator[Deployment]:
    """Opens the broker, checks that process and deployment agree, and closes it again.

    A Redis that does not answer is waited for at the opening, and with `patience_s` at every request.
    A notary needs no right to write.
    """
    connection, config = connect(settings.redis.at(url), client_name(kind)), broker_config(settings)
    connection.outage = outage
    look = partial(other_scheme, url, settings.redis.connect_timeout_s)
    retrying = RetryingConnection(connection, patience_s or OPENING_S, look)
    if patience_s:
        connection = retrying
    broker = Broker(connection, config, time.monotonic)
    try:
        reads = kind == "notary"
        await require_rights(retrying, broker.keys, READS if reads else COMMANDS)
        await broker.open(reads=reads)
        if kind in _WITH_KEY:
            await broker.hold_key(chain_key(settings))
        blobs = Blobs(connection, broker.keys)
        yield Deployment(broker, Texts(blobs, archived=archived_text(settings)), blobs)
    finally:
        await broker.aclose()


def archived_text(settings: Settings) -> ArchivedText:
    """Reads a large text that left Redis; the archive is opened when the first one is wanted."""

    async def read(tree: TreeId, digest: str) -> bytes | None:
        from orchestrator.rollouts.archive import Archive

        return await Archive.at(settings.upkeep.archive_url).text(tree, digest)

    return read


def chain_key(settings: Settings) -> ChainKey | None:
    chain = settings.chain
    return ChainKey(chain.key_id, chain.key.encode()) if chain.key else None


def session_pool(settings: Settings) -> str:
    """The pool that a new session asks for.

    A session names its provider, and its worker has the table: a worker of the same host
    with other tables would send the turn elsewhere. So tables that are not the built-in
    ones have a pool of their own on the host. A key that was handed to this process alone has
    one, too: another key would pay for the turn.
    """
    pool, host_pool = settings.session_defaults.pool, f"host:{settings.host.machine_id}"
    return f"{host_pool}{_tables_suffix(settings)}{_key_suffix(settings)}" if pool == host_pool else pool


def portable_pool(settings: Settings) -> str:
    """The pool of a new session with a portable folder: the one that is named, or that of every worker."""
    pool = session_pool(settings)
    return EVERY_WORKER if pool.startswith("host:") else pool


def worker_pools(settings: Settings) -> tuple[str, ...]:
    """The pools that a worker with these settings serves."""
    own, usual = session_pool(settings), usual_pools(settings.host)
    if _key_suffix(settings) and settings.worker.pools == usual:
        # A key for one process pays for no turn of others, unless a person names their pool.
        return (own,)
    return tuple(dict.fromkeys((*settings.worker.pools, own)))


def _key_suffix(settings: Settings) -> str:
    """A mark of the key that a program handed to this process; empty without one."""
    key = settings.host.environ.get(HANDED_KEY, "")
    if not key or all(provider.env_key != HANDED_KEY for provider in settings.model.providers.values()):
        return ""
    return ":key-" + hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:12]


def _tables_suffix(settings: Settings) -> str:
    tables = {name: _table(provider) for name, provider in sorted(settings.model.providers.items())}
    if tables == {"openai": ("https://api.openai.com/v1", (), ())}:
        return ""
    return ":" + hashlib.sha256(orjson.dumps(list(tables.items()))).hexdigest()[:8]


def _table(provider: ProviderSettings) -> tuple[str, tuple[object, ...], tuple[object, ...]]:
    return (
        provider.base_url,
        tuple(sorted(provider.query_params.items())),
        tuple(sorted(provider.http_headers.items())),
    )


def worker_name() -> str:
    """Unique among living workers: host, process, and when it began."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() % 10**9:x}"
