"""Settings of the service: Redis, chain, workers, logs, upkeep, connections, notifications."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import field_validator, model_validator

from orchestrator.tables.base import KIB, LOOPBACK_URL, MIB, Secret, Table, conflict, setting, unfit

Notification = Literal["agent-turn-complete", "approval-requested"]
WebhookEvent = Literal["needs_you", "done", "failed"]
BASE64 = re.compile(r"([A-Za-z0-9+/]{4})+([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
WEBHOOK = rf"^(https://[^\s#]+|{LOOPBACK_URL}(\?[^\s#]*)?)$"


class RedisSettings(Table):
    """Redis: where the SQ, the EQ and every rollout live."""

    url: str | None = setting(None, "redis.url", hidden=True, shown_default="a private server of this user")
    """Server of the deployment: `redis://`, `rediss://` (TLS), `unix://`, or `redis+sentinel://host,host/name/0`
    for the primary that Sentinels name. Without it, `dendro` starts a private server under its home folder
    and shares it among all `dendro` processes of this user."""

    cluster: bool = setting(False, "redis.cluster")
    """Whether `url` names a node of a Redis cluster. The upkeep queue then needs a server of its own."""

    prefix: str = setting("dendro:", "redis.prefix", pattern=r"^[A-Za-z0-9_.:-]+$")
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

    def at(self, url: str) -> Self:
        """The same for the server at `url`: a private one, or that of the upkeep queue."""
        return self.model_copy(update={"url": url})


class ChainSettings(Table):
    """The hash chain over every rollout."""

    key: Secret | None = setting(None, "chain.secret", hidden=True)
    """A secret of at most 64 bytes that keys the chain: who can write to Redis still cannot forge a log.
    Without it the chain shows damage and careless edits only. Give it by `DENDRO_CHAIN_SECRET` rather than
    in a file."""

    key_id: str = setting("", "chain.key_id", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    """Name under which entries mention the key, so that it can be changed. Needed with a key."""

    @model_validator(mode="after")
    def _named_and_short(self) -> Self:
        if self.key is not None and not self.key_id:
            raise conflict("chain.key_id", "''", "a chain secret needs a name, such as 2026-01")
        if self.key is not None and len(self.key.encode()) > 64:
            raise conflict("chain.secret", "(hidden)", "at most 64 bytes")
        return self


class WorkerSettings(Table):
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
    difference is what clocks may drift and what the supervisor needs to kill."""

    stall_s: float = setting(2.0, "worker.stall_s", at_least=0.1)
    """Seconds without a tick of the event loop after which renewals stop: a worker that cannot act must not
    keep others from acting."""

    drain_grace_s: float = setting(10.0, "worker.drain_grace_s", at_least=0)
    """Seconds that a running command gets on SIGTERM before it is killed and recorded as killed."""

    metrics_port: int | None = setting(
        None, "worker.metrics_port", at_least=0, at_most=65_535, shown_default="none are served"
    )
    """Port at which each worker answers `/healthz`, `/readyz` and `/metrics` ([metrics](metrics.md)). 0 takes
    a free one and prints it; a port that is taken is a warning."""

    metrics_host: str = setting("127.0.0.1", "worker.metrics_host", pattern=r"^[A-Za-z0-9_.:-]+$")
    """Address of that port. Nobody is asked who they are there: another address than loopback shows every
    host that reaches it how much work there is, which models are asked and what they cost."""

    tracing: bool = setting(False, "worker.tracing")
    """Whether the worker sends traces by OpenTelemetry ([tracing](tracing.md)), which needs the extra `otel`.
    The standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and the like) say where they go."""

    trace_contents: bool = setting(False, "worker.trace_contents")
    """Whether traces hold what people say, what agents answer, and what tools are given and give back, 4,096
    characters each. Without it they hold none of it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.renew_s < self.trust_s < self.lease_s:
            found = f"{self.renew_s}, {self.trust_s}, {self.lease_s}"
            keys = "worker.renew_s, worker.trust_s, worker.lease_s"
            raise conflict(keys, found, "each must be smaller than the next")
        return self


class LogSettings(Table):
    """Rollouts: what is kept, and what makes resuming cheap."""

    rollout_deltas: bool = setting(False, "rollout_deltas")
    """Keep deltas in the rollout too. The finished item holds their text; a rollout grows about tenfold."""

    snapshot_every: int = setting(256, "log.snapshot_every", at_least=16)
    """Entries after a snapshot that call for the next one: what a takeover has to fold at most."""

    file_days: float = setting(0.0, "log.file_days", at_least=0)
    """Days for which a rollout file below a worker's home folder stays there when its session was deleted, by
    `upkeep.retention_days` or `dendro rm` on any machine. From 30 on it stays for ever: for so long Redis
    knows what was deleted. Files of sessions that were not deleted are never removed."""


class UpkeepSettings(Table):
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
    """Days after its end for which a closed session and its agents stay in Redis. Later they are in the
    archive alone, and come back when somebody speaks to them."""

    archive_idle_days: float | None = setting(
        None, "upkeep.archive_idle_days", at_least=0, shown_default="never"
    )
    """Days without any work after which a session that nobody closed goes to the archive with its agents.
    It comes back when somebody speaks to it. It stays while one of them waits for a person's answer, or has a
    process or a timer."""

    retention_days: float | None = setting(
        None, "upkeep.retention_days", at_least=0, shown_default="for ever"
    )
    """Days after its end for which a closed session is kept: then its whole tree is deleted from Redis and
    from the archive."""

    verify_sessions: int = setting(20, "upkeep.verify_sessions", at_least=0)
    """Sessions whose hash chain is checked from the first entry every ten minutes, in turn. A broken chain
    is an error in the log of `dendro upkeep`."""


class WebhookSettings(Table):
    """The webhook: upkeep tells a server of the owner's who is needed, and which tasks have ended."""

    url: str | None = setting(None, "webhook.url", pattern=WEBHOOK, hidden=True)
    """Address that gets a signed `POST` for each event of `webhook.events`
    ([upkeep](upkeep.md#the-webhook)). `https://`, or `http://` on loopback. Needs `webhook.secret`. It is
    told of the sessions of every namespace."""

    secret: Secret | None = setting(None, "webhook.secret", hidden=True)
    """Secret of 16 to 256 characters by which the server knows that a call is upkeep's. Behind `whsec_` it is
    base64, as Standard Webhooks writes it. Give it by `DENDRO_WEBHOOK_SECRET` rather than in a file."""

    events: tuple[WebhookEvent, ...] = setting(
        ("needs_you", "done", "failed"), "webhook.events", shown_default="all of them"
    )
    """Of what it is told: `needs_you`, a request or a spent budget waits for a person; `done` and `failed`, a
    root has ended a task. Nobody is told of a task that a person stopped."""

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, secret: Secret | None) -> Secret | None:
        if secret is None:
            return None
        encoded = secret.removeprefix("whsec_")
        if not 16 <= len(encoded) <= 256:
            raise unfit("a secret of 16 to 256 characters")
        if encoded != secret and not BASE64.fullmatch(encoded):
            raise unfit("behind whsec_ the secret in base64")
        return secret


class WireSettings(Table):
    """Clients: what a connection may send."""

    line_limit_bytes: int = setting(8 * MIB, "wire.line_limit_bytes", at_least=KIB)
    """Longest line of NDJSON that is read. A longer one is skipped to its end and answered with an
    `error`."""


class ExecSettings(Table):
    """Runs of `dendro exec`, which a program starts for one turn each."""

    approvals: Literal["refuse", "queue"] = setting("refuse", "exec.approvals")
    """The fate of a call that needs a person: it is refused, the model reads so, and the run ends by
    itself (`approval_policy` is `never`, whatever was asked for); or it waits in the fleet's queue
    (`dendro approvals`), and the run waits with it."""


class FrontSettings(Table):
    """Calling the person: from `dendro run` and `dendro attach`, when they are needed."""

    notify: tuple[str, ...] = setting((), "notify", folder="trusted")
    """A program with its arguments that is started with one more: a JSON object with `type`
    (`agent-turn-complete` or `approval-requested`), `thread-id`, `turn-id`, `cwd`, and `input-messages` and
    `last-assistant-message`, or `call-id`, `command` or `paths`, and `reason`. It runs as the person's own
    program, outside of any sandbox, for at most 5 seconds. Started by the process in front of the person,
    never by a worker."""

    notifications: tuple[Notification, ...] = setting((), "tui.notifications", switch=True, folder="trusted")
    """Of which news the terminal makes a sound or a desktop notification: a list of `agent-turn-complete` and
    `approval-requested`, or `true` for both."""

    notification_method: Literal["auto", "osc9", "bel"] = setting(
        "auto", "tui.notification_method", folder="trusted"
    )
    """How: `osc9` is a desktop notification where the terminal knows the escape sequence, `bel` the
    terminal's bell; `auto` takes `osc9` in terminals that are known to have it."""
