"""What can be set: one frozen record per concern, every setting documented under its field.

The documentation page is generated from here, so a field without its text is a bug.
This module knows names, types, defaults and limits. It must not know where values come
from: files, environment and flags are read in `orchestrator.settings` alone.
"""

# ruff: noqa: RUF009
# `setting` makes a field, as `dataclasses.field` does; the rule knows only the latter.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.settings.command_records import (
    SandboxPolicy,
    SandboxSettings,
    ToolSettings,
)
from orchestrator.settings.model_records import ModelSettings
from orchestrator.settings.setting import KIB, MIB, Secret, setting
from orchestrator.settings.trust import FolderConfig

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
APPROVAL_POLICIES = ("untrusted", "on-request", "on-failure", "never")
"""From the one that asks most to the one that never does."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Summary = Literal["auto", "concise", "detailed", "none"]
Verbosity = Literal["low", "medium", "high"]

NOTIFICATIONS = ("agent-turn-complete", "approval-requested")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Redis: where the SQ, the EQ and every rollout live."""

    url: str | None = setting(None, "redis.url", hidden=True, shown_default="a private server of this user")
    """Server of the deployment: `redis://`, `rediss://` (TLS), `unix://`, or `redis+sentinel://host,host/name/0`
    for the primary that Sentinels name. Without it, `dendro` starts a private server under its home folder
    and shares it among all `dendro` processes of this user."""

    cluster: bool = setting(False, "redis.cluster")
    """Whether `url` names a node of a Redis cluster. The upkeep queue then needs a server of its own."""

    prefix: str = setting("dendro:", "redis.prefix", pattern=r"[A-Za-z0-9_.:-]+")
    """First part of every key, separator included, so that several deployments can share a server. No
    braces: they would move the hash tag, and with it the shard."""

    shards: int = setting(16, "redis.shards", at_least=16, at_most=4096)
    """Hash tags over which trees are spread. Counts only when the deployment is created: the figure is kept
    in Redis, because the ids of living sessions carry their shard and nothing could move them."""

    connect_timeout_s: float = setting(2.0, "redis.connect_timeout_s", at_least=0.1)
    """Seconds to wait for a connection. Below a lease, so that a worker learns in time that it cannot
    renew."""

    command_timeout_s: float = setting(5.0, "redis.command_timeout_s", at_least=0.1)
    """Seconds to wait for a reply. A commit without a reply is sent again under its id, so a timeout is
    safe."""

    appendfsync: Literal["everysec", "always"] = setting("everysec", "redis.appendfsync")
    """How often the private server syncs its log to disk. `everysec` may lose about a second when the machine
    dies; `always` loses nothing acknowledged, and every commit waits for the disk."""

    effects: Literal["none", "wait"] = setting("none", "effects")
    """`wait` holds every command back until its begin has been confirmed by `redis.wait_replicas` replicas,
    so that a failover cannot forget that it ran. Costs one round trip to the replicas per command."""

    wait_replicas: int = setting(1, "redis.wait_replicas", at_least=1)
    """Replicas that must confirm under `effects = "wait"`."""

    wait_timeout_s: float = setting(1.0, "redis.wait_timeout_s", at_least=0.01)
    """Seconds to wait for these confirmations before the command is refused."""


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """The hash chain over every rollout."""

    key: Secret | None = setting(None, "chain.secret", hidden=True)
    """A secret of at most 64 bytes that keys the chain: who can write to Redis still cannot forge a log.
    Without it the chain shows damage and careless edits only. Give it by `DENDRO_CHAIN_SECRET` rather than
    in a file."""

    key_id: str = setting("", "chain.key_id", pattern=r"[A-Za-z0-9_.-]{0,64}")
    """Name under which entries mention the key, so that it can be changed. Needed with a key."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Workers: how many sessions, for how long, and when a claim may be trusted."""

    pools: tuple[str, ...] = setting((), "worker.pools", shown_default='this host and "default"')
    """Labels that the worker serves, beside that of sessions made here (`pool`). A session made in a local
    folder asks for `host:<machine id>`, because only that machine has the folder; `default` is for folders
    that every worker of the pool can see."""

    concurrency: int = setting(16, "worker.concurrency", at_least=1, at_most=10_000)
    """Sessions that one worker runs at once. Parked sessions do not count."""

    quantum_s: float = setting(30.0, "worker.quantum_s", at_least=0.1)
    """Seconds after which a session gives way to a waiting one, between two steps."""

    lease_s: float = setting(6.0, "worker.lease_s", at_least=1)
    """Seconds until other workers may take over a session whose holder is silent. The longest pause that a
    crash costs; shorter leases suffer false alarms on busy machines."""

    renew_s: float = setting(2.0, "worker.renew_s", at_least=0.1)
    """Seconds between two renewals. A third of the lease, so that one may be lost."""

    trust_s: float = setting(4.0, "worker.trust_s", at_least=0.2)
    """Seconds for which a worker trusts its claim after the last renewal that it sent. Below the lease: the
    difference is what clocks may drift and what the keeper needs to kill."""

    stall_s: float = setting(2.0, "worker.stall_s", at_least=0.1)
    """Seconds without a tick of the event loop after which renewals stop: a worker that cannot act must not
    keep others from acting."""

    drain_grace_s: float = setting(10.0, "worker.drain_grace_s", at_least=0)
    """Seconds that a running command gets on SIGTERM before it is killed and recorded as killed."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Rollouts: what is kept, and what makes resuming cheap."""

    rollout_deltas: bool = setting(False, "rollout_deltas")
    """Keep deltas in the rollout too. The finished item holds their text; a rollout grows about tenfold."""

    snapshot_every: int = setting(256, "log.snapshot_every", at_least=16)
    """Entries after a snapshot that call for the next one: what a takeover has to fold at most."""


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """Upkeep: sealing, archiving, retention. Losing it for an hour loses only tidiness."""

    url: str | None = setting(None, "upkeep.url", hidden=True, shown_default="`redis.url`")
    """Redis server of the upkeep queue. Its job runner cannot use a cluster: name a single server then."""

    archive_url: str = setting("", "upkeep.archive_url", shown_default="`archive` in the home folder")
    """Where sealed segments of rollouts go: a folder (`file:///…`) or an object store (`s3://…`, with its
    fsspec plug-in). Every worker must be able to read it."""

    seal_after: int = setting(1024, "upkeep.seal_after", at_least=1)
    """Entries behind a snapshot that call for a new segment: what a living session's log keeps in Redis
    for nothing. Longer logs are sealed in larger stretches, so that their segments stay few."""

    archive_after_days: float = setting(7.0, "upkeep.archive_after_days", at_least=0)
    """Days after its end for which a closed session stays in Redis. Later it is in the archive alone, and
    comes back when somebody resumes it."""

    retention_days: float | None = setting(
        None, "upkeep.retention_days", at_least=0, shown_default="for ever"
    )
    """Days after its end for which a closed session is kept: then its whole tree is deleted from Redis and
    from the archive."""

    verify_sessions: int = setting(20, "upkeep.verify_sessions", at_least=0)
    """Sessions whose hash chain is checked from the first entry every ten minutes, in turn. A broken chain
    is an error in the log of `dendro upkeep`."""


@dataclass(frozen=True, slots=True)
class SessionDefaults:
    """What a new session starts with. It travels with the session, wherever that runs."""

    cwd: Path

    model: str = setting("gpt-5", "model", folder="free")
    """Model of the first turn; `user_turn` and `override_turn_context` may change it."""

    model_provider: str = setting("openai", "model_provider", folder="trusted")
    """Name of a provider; its URL and key are looked up by the worker that runs the turn."""

    effort: Effort | None = setting(
        None, "model_reasoning_effort", folder="free", shown_default="the model's own"
    )
    """How much the model thinks."""

    summary: Summary = setting("auto", "model_reasoning_summary", folder="free")
    """How much of that thinking it tells."""

    verbosity: Verbosity | None = setting(
        None, "model_verbosity", folder="free", shown_default="the model's own"
    )
    """Length of answers; sent to `gpt-5` models only."""

    approval_policy: ApprovalPolicy = setting("on-request", "approval_policy", folder=APPROVAL_POLICIES)
    """Who is asked before a command: always unless known to be safe, after a denial by the sandbox, when
    the model asks for more, or never."""

    approval_timeout_s: float | None = setting(
        None, "approval_timeout_s", folder="down", at_least=1, shown_default="never"
    )
    """Seconds after which an open approval is denied in the timer's name."""

    on_user_input: Literal["replace", "steer"] = setting("replace", "on_user_input", folder="free")
    """What input does to a running task: end it and start anew, or join it."""

    pool: str = setting("", "pool", folder="trusted", shown_default="`host:<machine id>`")
    """Which workers may run the session."""

    base_instructions: str | None = setting(
        None, "base_instructions", folder="trusted", shown_default="Dendro's own"
    )
    """Replaces the system prompt. `model_instructions_file` names a file that holds it."""

    user_instructions: str | None = setting(None, "user_instructions", folder="free", shown_default="none")
    """Added to the first message of every session."""

    sandbox: SandboxPolicy = field(default_factory=SandboxPolicy)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Trees: what the agents of one may do and use, settled when its root is made."""

    enabled: bool = setting(True, "agents.enabled", folder=(False, True))
    """Offer the model the tools that make agents."""

    slots: int = setting(8, "max_active_subagents", folder="down", at_least=1, at_most=10_000)
    """Agents of one tree that may be at work at once. A model that makes more is refused until one is
    done; 64 is plenty for one machine, a fleet may take more."""

    spawned: int = setting(200, "agents.max_spawned", folder="down", at_least=1)
    """Agents that one tree may make in all, finished ones counted: what ends a tree that breeds."""

    depth: int = setting(4, "agents.max_depth", folder="down", at_least=1, at_most=32)
    """Generations below the root."""

    autosubmit: bool = setting(True, "subagent_root_inbox_autosubmit", folder=(False, True))
    """Let a child's result begin a turn of its idle parent. Otherwise it waits for the next input."""

    await_floor_s: float = setting(300.0, "agents.await_floor_s", folder="up", at_least=0, at_most=1800)
    """Shortest wait that `subagent_await` accepts. The protocol's is 300 s; lower it for tests only: a
    model that polls costs tokens."""

    watchdog_floor_s: float = setting(30.0, "agents.watchdog_floor_s", folder="up", at_least=1)
    """Shortest interval of a watchdog. Each bark may begin a turn of whoever is watched, so a short one costs
    tokens all the time; lower it for tests only."""

    watchdogs: int = setting(16, "agents.max_watchdogs", folder="down", at_least=0)
    """Watchdogs that one agent may keep."""

    budget_tokens: int | None = setting(
        None, "agents.budget_tokens", folder="down", at_least=1, shown_default="no limit"
    )
    """Tokens that one tree may use, the root's too. Reserved before each request and settled after it: the
    overshoot is what is in flight. At the end of a budget the tree pauses, and goes on when more is added."""

    budget_cost: float | None = setting(
        None, "agents.budget_cost", folder="down", at_least=0, shown_default="no limit"
    )
    """Dollars, by `model_prices`. A model without a price is refused then."""

    budget_requests: int = setting(10_000, "agents.budget_requests", folder="down", at_least=1)
    """Model requests of one tree. A night of eight agents that each ask every 23 s comes to 10,000; so does a
    model that only repeats itself, and it is paused then instead of being paid for for ever. At 80 % people
    are warned; `dendro budget ID --add requests=N` lets a tree go on."""

    budget_wall_s: float | None = setting(
        None, "agents.budget_wall_s", folder="down", at_least=1, shown_default="no limit"
    )
    """Seconds since the tree was made."""


@dataclass(frozen=True, slots=True)
class WireSettings:
    """Clients: what a connection may send."""

    line_limit_bytes: int = setting(8 * MIB, "wire.line_limit_bytes", at_least=KIB)
    """Longest line of NDJSON that is read. A longer one is skipped to its end and answered with an
    `error`."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The machine and the process: read once, passed down, so that no other module looks."""

    machine_id: str
    """Stable name of this machine: what `host:<…>` pools are made of."""

    search_path: str
    """`PATH`: where programs are looked for."""

    user_home: Path
    """`HOME`."""

    runtime_dir: Path | None
    """`XDG_RUNTIME_DIR`: where the private server's socket goes if it is there."""

    temp_dir: Path | None
    """`TMPDIR`, if set."""

    environ: Mapping[str, str] = field(repr=False)
    """The whole environment: what commands inherit from, after the filter."""


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """Calling the person: from `dendro run` and `dendro attach`, when they are needed."""

    notify: tuple[str, ...] = setting((), "notify", folder="trusted")
    """A program with its arguments that is started with one more: a JSON object with `type`
    (`agent-turn-complete` or `approval-requested`), `thread-id`, `turn-id`, `cwd`, and `input-messages` and
    `last-assistant-message`, or `call-id`, `command` or `paths`, and `reason`. It runs as the person's own
    program, outside of any sandbox, for at most 5 seconds. Started by the process in front of the person,
    never by a worker."""

    notifications: tuple[str, ...] = setting((), "tui.notifications", choices=NOTIFICATIONS, folder="trusted")
    """Of which news the terminal makes a sound or a desktop notification: a list of `agent-turn-complete` and
    `approval-requested`, or `true` for both."""

    notification_method: Literal["auto", "osc9", "bel"] = setting(
        "auto", "tui.notification_method", folder="trusted"
    )
    """How: `osc9` is a desktop notification where the terminal knows the escape sequence, `bel` the
    terminal's bell; `auto` takes `osc9` in terminals that are known to have it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set, resolved."""

    home: Path
    config_file: Path | None
    """The person's own file, named by `--config` or in the home folder."""

    host: HostSettings
    session_defaults: SessionDefaults
    model: ModelSettings
    redis: RedisSettings
    chain: ChainSettings
    worker: WorkerSettings
    log: LogSettings
    upkeep: UpkeepSettings
    tools: ToolSettings
    sandbox: SandboxSettings
    wire: WireSettings
    agents: AgentSettings = field(default_factory=AgentSettings)
    front: FrontSettings = field(default_factory=FrontSettings)
    folder_config: FolderConfig | None = None
    """The file of the current folder, and whether the person trusts it."""

    warnings: tuple[str, ...] = ()
    """Keys that nobody reads, and settings that deserve a second look: to be shown, never fatal."""
