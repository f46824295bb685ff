"""From settings to the parts: Redis, broker, models, tools, the worker's ports.

Composition roots (`cli`, `workers`) call this; nothing below it knows settings.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson

from orchestrator.broker.admission import Limits
from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import WireConfig, connect
from orchestrator.broker.embedded import EmbeddedConfig, EmbeddedRedis
from orchestrator.broker.keys import Keys
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.texts import Texts
from orchestrator.core.birth import Birth
from orchestrator.core.chain import ChainKey
from orchestrator.core.ids import new_session_id
from orchestrator.core.settings import Rules, SessionFacts, TreeRules, TurnSettings, WorkspaceMark
from orchestrator.core.snapshot import CORE_VERSION
from orchestrator.gateways.workspace import Workspace, mark
from orchestrator.model.provider import Provider, ProviderSecrets
from orchestrator.runtime.archive import Archive
from orchestrator.runtime.calls import ToolCalls
from orchestrator.runtime.patience import PatientTexts
from orchestrator.runtime.ports import Ports, ProviderPolicy
from orchestrator.runtime.providers import KnownProvider, ModelClients
from orchestrator.runtime.renewal import LeaseTimes, Renewal, Report
from orchestrator.runtime.runner import RunnerConfig
from orchestrator.runtime.worker import Worker, WorkerConfig
from orchestrator.sandbox.environment import EnvironmentRules
from orchestrator.sandbox.probe import probe
from orchestrator.settings import ProviderSettings, Settings
from orchestrator.tools.exec.keeper import Keeper, KeeperConfig
from orchestrator.tools.toolbox import Toolbox, ToolConfig

VERSION = version("dendro-orchestrator")

QUARANTINED = (
    "this session was set aside: five workers in a row took it and could not go on; "
    "`dendro verify` and the workers' logs tell why, `dendro revoke` lets it run again"
)


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def redis_url(settings: Settings) -> Iterator[str]:
    """The deployment's Redis, or the user's private one for as long as the context is open.

    Raises `EmbeddedError` if a private server is needed and cannot be had.
    """
    if settings.redis.url:
        yield settings.redis.url
        return
    with EmbeddedRedis.acquire(embedded_config(settings)) as server:
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


def wire_config(settings: Settings, url: str) -> WireConfig:
    """How to reach a server at `url`, with the patience that the settings ask for."""
    redis = settings.redis
    return WireConfig(url, redis.cluster, redis.connect_timeout_s, redis.command_timeout_s)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One process's view of Redis."""

    broker: Broker
    texts: Texts
    blobs: Blobs


def broker_config(settings: Settings) -> BrokerConfig:
    error = {"id": "", "msg": {"type": "error", "message": QUARANTINED}}
    return BrokerConfig(
        prefix=settings.redis.prefix,
        shards=settings.redis.shards,
        core_version=CORE_VERSION,
        lease_s=settings.worker.lease_s,
        quarantine_event=orjson.dumps(error),
    )


def open_broker(settings: Settings, url: str) -> Broker:
    """A broker with connections of its own; bound to the event loop that first uses it."""
    return Broker(connect(wire_config(settings, url)), broker_config(settings), time.monotonic)


@asynccontextmanager
async def deployment(settings: Settings, url: str) -> AsyncIterator[Deployment]:
    """Opens the broker, checks that process and deployment agree, and closes it again."""
    connection, config = connect(wire_config(settings, url)), broker_config(settings)
    broker = Broker(connection, config, time.monotonic)
    try:
        await broker.open()
        blobs = Blobs(connection, Keys(config.prefix, config.shards))
        yield Deployment(broker, Texts(blobs), blobs)
    finally:
        await broker.aclose()


# ── pools ─────────────────────────────────────────────────────────────────────────────────────


def session_pool(settings: Settings) -> str:
    """The pool that a new session asks for.

    A session names its provider, and its worker has the table: a worker of the same host
    with other tables would send the turn elsewhere. So tables that are not the built-in
    ones have a pool of their own on the host.
    """
    pool, host_pool = settings.session_defaults.pool, f"host:{settings.host.machine_id}"
    return f"{host_pool}{_tables_suffix(settings)}" if pool == host_pool else pool


def worker_pools(settings: Settings) -> tuple[str, ...]:
    """The pools that a worker with these settings serves."""
    own = session_pool(settings)
    return tuple(dict.fromkeys((*settings.worker.pools, own)))


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


# ── the worker ────────────────────────────────────────────────────────────────────────────────


def providers(settings: Settings) -> dict[str, KnownProvider]:
    """What this worker knows of model providers; tables without a URL are left out."""
    return {
        name: KnownProvider(_provider(name, table), ProviderSecrets(table.api_key, table.secret_headers))
        for name, table in settings.model.providers.items()
        if table.base_url
    }


def _provider(name: str, table: ProviderSettings) -> Provider:
    return Provider(
        name=name,
        base_url=table.base_url,
        env_key=table.env_key,
        query_params=table.query_params,
        http_headers=table.http_headers,
        request_max_retries=table.request_max_retries,
        stream_max_retries=table.stream_max_retries,
        stream_idle_timeout_s=table.stream_idle_timeout_s,
        proxy=table.proxy,
        ca_file=table.ca_file,
    )


def provider_policies(settings: Settings) -> dict[str, ProviderPolicy]:
    """How this worker treats each provider: the fleet's limits, and what is sent."""
    return {
        name: ProviderPolicy(
            limits=_limits(table),
            max_output_tokens=settings.model.max_output_tokens,
            previous_response_id=table.previous_response_id,
        )
        for name, table in settings.model.providers.items()
    }


def _limits(table: ProviderSettings) -> Limits | None:
    limits = Limits(table.requests_per_minute, table.tokens_per_minute)
    return None if limits == Limits() else limits


def tool_config(settings: Settings, url: str) -> ToolConfig:
    """Tries the machine's confinement once; some 50 ms of blocking work."""
    rules = settings.sandbox.environment
    return ToolConfig(
        support=probe(),
        environ=settings.host.environ,
        prefer=settings.sandbox.mechanism,
        environment=EnvironmentRules(
            rules.inherit, rules.ignore_default_excludes, rules.exclude, rules.set, rules.include_only
        ),
        hidden=hidden_paths(settings, url),
        timeout_s=settings.tools.timeout_s,
        max_processes=settings.sandbox.max_processes,
        max_deltas=settings.tools.max_deltas,
    )


def hidden_paths(settings: Settings, url: str) -> tuple[Path, ...]:
    """Dendro's own: a command that reaches Redis's socket could approve itself."""
    parts = urlsplit(url)
    return (settings.home, Path(unquote(parts.path))) if parts.scheme == "unix" else (settings.home,)


def chain_key(settings: Settings) -> ChainKey | None:
    chain = settings.chain
    return ChainKey(chain.key_id, chain.key.encode()) if chain.key else None


def archive(settings: Settings) -> Archive:
    """Where the sealed parts of logs are."""
    key = chain_key(settings)
    return Archive.at(settings.upkeep.archive_url, key.secret if key else b"")


def worker_name() -> str:
    """Unique among living workers: host, process, and when it began."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() % 10**9:x}"


@asynccontextmanager
async def running_worker(settings: Settings, url: str) -> AsyncIterator[Worker]:
    """A worker ready to `run`, with its keeper; everything is closed at the end."""
    tools = tool_config(settings, url)
    keeper = await Keeper.start(KeeperConfig(tools.support, tools.prefer))
    models = ModelClients(providers(settings))
    try:
        async with deployment(settings, url) as opened:
            texts = PatientTexts(opened.blobs, asyncio.sleep)
            ports = Ports(
                broker=opened.broker,
                texts=texts,
                models=models,
                tools=ToolCalls(Toolbox(tools, keeper), texts),
                keeper=keeper,
                policies=provider_policies(settings),
                archive=archive(settings),
                version=VERSION,
            )
            yield Worker(
                ports,
                _worker_config(settings, opened.broker),
                lambda report: _renewal(settings, url, keeper, report),
            )
    finally:
        await models.aclose()
        await keeper.close()


def _worker_config(settings: Settings, broker: Broker) -> WorkerConfig:
    worker = settings.worker
    return WorkerConfig(
        name=worker_name(),
        pools=worker_pools(settings),
        concurrency=worker.concurrency,
        runner=RunnerConfig(
            rules=Rules(auto_compact_limit=settings.model.auto_compact_token_limit),
            chain_key=chain_key(settings),
            confirm_effects=_confirmation(settings, broker),
            keep_deltas=settings.log.rollout_deltas,
            snapshot_every=settings.log.snapshot_every,
            quantum_s=worker.quantum_s,
            drain_grace_s=worker.drain_grace_s,
        ),
    )


def _confirmation(settings: Settings, broker: Broker) -> Callable[[], Awaitable[bool]] | None:
    """Under `effects = wait`: whether enough replicas have everything that was committed."""
    redis = settings.redis
    if redis.effects != "wait":
        return None

    async def confirmed() -> bool:
        have = await broker.command("WAIT", redis.wait_replicas, int(redis.wait_timeout_s * 1000))
        return isinstance(have, int) and have >= redis.wait_replicas

    return confirmed


def _renewal(settings: Settings, url: str, keeper: Keeper, report: Report) -> Renewal:
    worker = settings.worker
    times = LeaseTimes(worker.renew_s, worker.trust_s, worker.stall_s)
    return Renewal(lambda: open_broker(settings, url), times, keeper.extend, report)


# ── sessions ──────────────────────────────────────────────────────────────────────────────────


def new_birth(
    settings: Settings, workspace: Workspace, now_ms: int, random_bytes: Callable[[int], bytes]
) -> Birth:
    """The birth of a root session with these settings; the shard is drawn by chance.

    Marks the folder if machines beside this one may come to work in it.
    """
    defaults, pool = settings.session_defaults, session_pool(settings)
    noise = int.from_bytes(random_bytes(12), "big")
    session = new_session_id(now_ms, noise % settings.redis.shards, noise >> 16)
    facts = SessionFacts(
        session_id=session,
        tree_id=session,
        pool=pool,
        base_instructions=defaults.base_instructions or "",
        rollout_path=str(rollout_path(settings.home, session, now_ms)),
        on_user_input=defaults.on_user_input,
        approval_timeout_ms=None
        if defaults.approval_timeout_s is None
        else int(defaults.approval_timeout_s * 1000),
        workspace=_mark(defaults.cwd, pool, random_bytes),
        agents=settings.agents.enabled,
        tree_rules=tree_rules(settings),
    )
    instructions = [text for text in (defaults.user_instructions, workspace.instructions) if text]
    return Birth(
        facts,
        turn_settings(settings),
        version=VERSION,
        at_ms=now_ms,
        user_instructions="\n\n".join(instructions) or None,
        git=workspace.git or None,
    )


def _mark(cwd: Path, pool: str, random_bytes: Callable[[int], bytes]) -> WorkspaceMark | None:
    return None if pool.startswith("host:") else mark(cwd, random_bytes(16).hex())


def tree_rules(settings: Settings) -> TreeRules:
    """What a new tree begins with."""
    agents = settings.agents
    return TreeRules(
        slots=agents.slots,
        spawned=agents.spawned,
        depth=agents.depth,
        autosubmit=agents.autosubmit,
        await_floor_s=agents.await_floor_s,
        watchdogs=agents.watchdogs,
    )


def turn_settings(settings: Settings) -> TurnSettings:
    """What the first turn runs under."""
    defaults = settings.session_defaults
    return TurnSettings(
        cwd=str(defaults.cwd),
        approval_policy=defaults.approval_policy,
        sandbox_policy=defaults.sandbox.wire(),
        model=defaults.model,
        model_provider=defaults.model_provider,
        effort=defaults.effort,
        summary=defaults.summary,
        verbosity=defaults.verbosity,
        window=settings.model.context_window,
    )


def rollout_path(home: Path, session: str, at_ms: int) -> Path:
    """`<home>/sessions/YYYY/MM/DD/rollout-<time>-<session id>.jsonl`, in local time as the peer has it."""
    moment = datetime.fromtimestamp(at_ms / 1000)
    day = home / "sessions" / f"{moment:%Y}" / f"{moment:%m}" / f"{moment:%d}"
    return day / f"rollout-{moment:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"
