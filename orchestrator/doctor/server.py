"""The doctor's checks of Redis: is it there, and what do its settings mean for the sessions kept on it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.broker.connection import connect
from orchestrator.broker.embedded import EmbeddedError
from orchestrator.broker.errors import BrokerError, Misconfigured
from orchestrator.broker.keys import Keys
from orchestrator.broker.rights import missing_rights, remedy
from orchestrator.broker.server_binary import OLDEST, writer_of
from orchestrator.broker.server_facts import ServerFacts, examine
from orchestrator.doctor.findings import Finding, without_credentials
from orchestrator.settings import Settings
from orchestrator.tables import RedisSettings
from orchestrator.wiring.deployment import client_name, redis_url

CLOCK_TOLERANCE_S = 1.0
DEFAULT_STREAM_NODE_BYTES = 4096
MAX_LAG_S = 2
"""With it a primary that is cut off stops writing within three seconds; see docs/claims.md."""
LOSES = {"always": "nothing acknowledged is lost", "everysec": "a crash of its host may lose a second"}


async def check_redis(settings: Settings) -> list[Finding]:
    """Asks the server of the deployment, or starts the private one for as long as the check takes."""
    try:
        with redis_url(settings) as url:
            facts = await examine(_connection(settings, url))
            rights = await _check_rights(settings, url)
    except EmbeddedError as error:
        return [Finding("redis", "missing", "no private server can be had", str(error))]
    except Misconfigured as error:
        advice = "correct redis.url (DENDRO_REDIS_URL), or ask who runs it for these rights"
        return [Finding("redis", "missing", f"{_place(settings)}: {error}", advice)]
    except BrokerError as error:
        advice = "start it, or correct redis.url (DENDRO_REDIS_URL); without one a private server is used"
        return [Finding("redis", "missing", f"{_place(settings)}: {error}", advice)]
    found = [*judge_server(facts, settings), *judge_data(facts), *judge_access(settings)]
    return [*found, *rights, *await _check_upkeep(settings)]


async def _check_rights(settings: Settings, url: str) -> list[Finding]:
    keys = Keys(settings.redis.prefix, settings.redis.shards)
    async with aclosing(connect(_connection(settings, url), client_name("cli"))) as connection:
        missing = await missing_rights(connection, keys)
    if not missing:
        return []
    detail = f"the user may not run {', '.join(missing)} on {keys.prefix}*"
    return [Finding("redis rights", "missing", detail, remedy(missing, keys))]


def judge_server(facts: ServerFacts, settings: Settings) -> Iterator[Finding]:
    """Judges the server's version and settings."""
    yield _judge_kind(facts, settings)
    wanted = settings.redis.wait_replicas
    if settings.redis.effects == "wait" and facts.replicas < wanted:
        detail = f'{facts.replicas} replicas; effects = "wait" needs {wanted}'
        yield Finding("redis replicas", "missing", detail, "add replicas, or no command will ever start")
    if abs(facts.clock_ahead_s) > CLOCK_TOLERANCE_S:
        detail = f"the server's is {facts.clock_ahead_s:+.1f} s ahead of this machine's"
        yield Finding("clock", "warn", detail, "run NTP on both: times in logs will not agree")
    if facts.settings is None:
        remedy = "ask who runs it for: AOF on, maxmemory-policy noeviction, stream-node-max-bytes 512"
        yield Finding("redis settings", "warn", "the server does not tell its settings", remedy)
    else:
        yield _judge_log(facts.settings)
        yield from _judge_memory(facts.settings)
        if facts.replicas:
            yield from _judge_failover(facts.settings)


def _judge_kind(facts: ServerFacts, settings: Settings) -> Finding:
    what = f"{facts.version}, {_place(settings)}, round trip {facts.round_trip_s * 1000:.1f} ms"
    if facts.version.release < OLDEST:
        return Finding("redis", "missing", what, "upgrade to Redis 6.2 or newer, or to Valkey")
    if facts.clustered and not settings.redis.cluster:
        return Finding("redis", "missing", f"{what}: a node of a cluster", "set redis.cluster = true")
    if settings.redis.cluster and not facts.clustered:
        return Finding("redis", "missing", f"{what}: not a cluster", "set redis.cluster = false")
    return Finding("redis", "ok", what)


def judge_data(facts: ServerFacts) -> Iterator[Finding]:
    """Whether a server of this machine passes over a newer server's log in its own data folder."""
    named = (facts.settings or {}).get("dir", "")
    try:
        writer = writer_of(Path(named)) if named.startswith("/") else None
    except OSError:
        return
    if writer is not None and not facts.version.opens(writer):
        detail = (
            f"{named} holds the data of {writer}, which {facts.version} cannot read: it serves without them"
        )
        remedy = (
            f"stop it, and start {writer} or newer on that folder: what was written since is not in its log"
        )
        yield Finding("redis data", "missing", detail, remedy)


def judge_access(settings: Settings) -> Iterator[Finding]:
    """Whether a server that was reached lets in any client that finds its port."""
    parts = urlsplit(settings.redis.url or "")
    if parts.scheme in ("", "unix") or parts.password or "ssl_certfile=" in parts.query:
        return
    place = _place(settings)
    detail = (
        f"{place} asks for no password: any program that reaches its port can do anything to every session"
    )
    if settings.session_defaults.sandbox.network_access:
        detail += ", and so can commands of agents, which have the network (network_access = true)"
    remedy = (
        "set requirepass in redis.conf, or a user (docs/operations.md), and redis://:PASSWORD@… as the URL"
    )
    yield Finding("redis access", "warn", detail, remedy)


def _judge_log(found: Mapping[str, str]) -> Finding:
    if found.get("appendonly") != "yes":
        detail = "AOF is off: a restart loses all that came after the last dump"
        remedy = "CONFIG SET appendonly yes, and the same in redis.conf (see ops/redis.conf)"
        return Finding("redis log", "warn", detail, remedy)
    policy = found.get("appendfsync", "")
    if policy not in LOSES:
        detail = f"AOF {policy}: the kernel decides what a power failure loses"
        return Finding("redis log", "warn", detail, "CONFIG SET appendfsync everysec")
    return Finding("redis log", "ok", f"AOF {policy}: {LOSES[policy]}")


def _judge_memory(found: Mapping[str, str]) -> Iterator[Finding]:
    limited, policy = int(found.get("maxmemory", 0)) > 0, found.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        detail = f"maxmemory-policy {policy}: a full server deletes parts of sessions"
        remedy = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        yield Finding("redis memory", "missing" if limited else "warn", detail, remedy)
    if int(found.get("stream-node-max-bytes", 0)) >= DEFAULT_STREAM_NODE_BYTES:
        detail = "stream-node-max-bytes 4096: a session with little in it takes four times the memory"
        remedy = "CONFIG SET stream-node-max-bytes 512, and the same in redis.conf"
        yield Finding("redis memory", "warn", detail, remedy)
    if int(found.get("timeout", 0)) > 0:
        detail = (
            f"timeout {found['timeout']}: idle connections are cut, waiting workers reconnect for nothing"
        )
        yield Finding("redis connections", "warn", detail, "CONFIG SET timeout 0")


def _judge_failover(found: Mapping[str, str]) -> Iterator[Finding]:
    if int(found.get("min-replicas-to-write", 0)) < 1:
        detail = "a primary that is cut off from its replicas goes on serving while one of them is promoted"
        remedy = f"CONFIG SET min-replicas-to-write 1, min-replicas-max-lag {MAX_LAG_S} (see ops/redis.conf)"
        yield Finding("redis failover", "warn", detail, remedy)
    elif int(found.get("min-replicas-max-lag", 0)) > MAX_LAG_S:
        detail = (
            f"min-replicas-max-lag {found['min-replicas-max-lag']}: a primary that is cut off serves so long"
        )
        remedy = f"CONFIG SET min-replicas-max-lag {MAX_LAG_S}, and the same in redis.conf"
        yield Finding("redis failover", "warn", detail, remedy)


async def _check_upkeep(settings: Settings) -> list[Finding]:
    url = settings.upkeep.url
    if url is None or url == settings.redis.url:
        return []
    place = without_credentials(url)
    try:
        facts = await examine(_connection(settings, url))
    except BrokerError as error:
        remedy = "start it, or correct upkeep.url (DENDRO_UPKEEP_URL); sessions run on without it"
        return [Finding("upkeep", "warn", f"{place}: {error}", remedy)]
    if facts.clustered:
        return [Finding("upkeep", "missing", f"{place} is a cluster", "name a single server in upkeep.url")]
    return [Finding("upkeep", "ok", f"{facts.version}, {place}")]


def _connection(settings: Settings, url: str) -> RedisSettings:
    # One node is asked about itself, also where it belongs to a cluster.
    return settings.redis.model_copy(update={"url": url, "cluster": False})


def _place(settings: Settings) -> str:
    return without_credentials(settings.redis.url) if settings.redis.url else "private server"
