"""`dendro doctor`: what is there, what is missing, and what to do about it.

Looks at this machine with the settings that a worker here would have. Changes nothing that lasts: a file is
written and removed to see that it can be, and a private server is started and stopped. Shows no secret.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from arq.constants import health_check_key_suffix

from orchestrator.broker.connection import connect
from orchestrator.broker.embedded import OLDEST, EmbeddedError, writer_of
from orchestrator.broker.errors import BrokerError, Misconfigured
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.rights import ServerFacts, examine, missing_rights, remedy
from orchestrator.config_keys import McpServerSettings, RedisSettings
from orchestrator.core.frozen import record
from orchestrator.home import folder_of
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects, UnknownStore
from orchestrator.sandbox.trusted_files import find_named_program, find_program, not_found
from orchestrator.settings import FolderConfig, Settings
from orchestrator.settings.private_home import open_folders
from orchestrator.tools.exec_policy import CommandRules
from orchestrator.views.workers import FleetStats, SeenWorker, fleet_stats, waits_for, workers_of
from orchestrator.wiring.deployment import chain_key, client_name, open_broker, redis_url
from orchestrator.workspaces.pack_keys import KeyUnavailable, PackKeys
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

# ── findings ──────────────────────────────────────────────────────────────────────────────────────
# Findings of `dendro doctor`, for people and for programs.


Level = Literal["ok", "warn", "missing"]


@record
class Finding:
    """A finding of a check. `missing`: Dendro does not work like this; `warn`: it does, at a risk."""

    name: str
    level: Level
    detail: str
    remedy: str = ""


def exit_code(findings: Sequence[Finding]) -> int:
    """2 if something needed is missing."""
    return 2 if any(finding.level == "missing" for finding in findings) else 0


def as_json(findings: Sequence[Finding]) -> str:
    """The same for programs."""
    return json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2)


def without_credentials(url: str) -> str:
    """A URL as it may be shown: user, password, query and fragment left out.

    Nothing but its scheme is shown where a password may stand that holds a `/`, `?` or `#` as it is: all that
    reads a URL takes it for the end of the host.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        # Its host cannot be read, so nobody knows where a password ends.
        return f"{url.partition('://')[0]}://…"
    beyond = f"{parts.path}{parts.fragment}{'' if '=' in parts.query else parts.query}"
    if parts.netloc and "@" in beyond:
        return f"{parts.scheme}://…"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


# ── machine ───────────────────────────────────────────────────────────────────────────────────────


GIB = 1024**3
LITTLE_SPACE = 2 * GIB
TOO_LITTLE_SPACE = GIB // 10
EARLIEST_TIME_S = 1_767_225_600
"""1 January 2026: a clock before that was never set, and ids made with it would sort before all others."""


async def diagnose(settings: Settings) -> list[Finding]:
    """The findings about this machine, checked at once."""
    checks = (_check_sandbox, _check_git, _check_home, _check_archive, _check_workspaces)
    redis, fleet, keys, *others = await asyncio.gather(
        check_redis(settings),
        check_fleet(settings),
        check_pack_keys(settings),
        *(asyncio.to_thread(check, settings) for check in checks),
    )
    found_here = [finding for findings in others for finding in findings]
    judged = [*_judge_settings(settings), *judge_model(settings), *judge_clock(time.time())]
    judged += judge_mcp_servers(settings)
    judged += judge_rules(settings)
    return [*judged, *redis, *fleet, *found_here, *keys]


def _judge_settings(settings: Settings) -> Iterator[Finding]:
    yield Finding("settings", "ok", str(settings.config_file or "no file, the defaults count"))
    if (folder := settings.folder_config) is not None:
        yield _judge_folder(folder)
    for warning in settings.warnings:
        yield Finding("settings", "warn", warning, "correct or remove it")


def _judge_folder(folder: FolderConfig) -> Finding:
    if not folder.ignored:
        return Finding("settings", "ok", f"{folder.path}, {'trusted' if folder.trusted else 'this folder'}")
    what = f"{folder.path} is not trusted and may not set {', '.join(folder.ignored)}"
    return Finding("settings", "warn", what, f"read it, then: dendro trust {shlex.quote(str(folder.path))}")


def judge_model(settings: Settings) -> Iterator[Finding]:
    """The finding about the chosen model: its place, the way there, and what is missing. Sends no request."""
    provider = settings.model.providers[settings.model.provider]
    model = f"{settings.model.model} at {without_credentials(provider.base_url)} ({provider.name})"
    if provider.wire_api == "chat":
        model += " by chat completions"
    if provider.proxy:
        model += f" through the proxy {without_credentials(provider.proxy)}"
    if unusable := _unusable(settings):
        yield Finding("model", "warn", model, unusable)
        return
    if provider.auth == "login":
        yield Finding("model", "ok", f"{model}, key of the sign-in")
    elif provider.env_key is None:
        yield Finding("model", "ok", f"{model}, no key needed")
    elif provider.api_key is not None:
        yield Finding("model", "ok", f"{model}, key from {provider.env_key}")
    else:
        # The demo, replay, verify and export need no model: a gap, not a fault of the machine.
        remedy = provider.env_key_instructions or f"export {provider.env_key}=…"
        yield Finding("model", "warn", f"{model}, but {provider.env_key} is not set", remedy)


def _unusable(settings: Settings) -> str:
    """The reason why no worker could ask the chosen provider; empty if one could."""
    from orchestrator.model.connections import InvalidProvider, require_proxy, verification

    provider = settings.model.providers[settings.model.provider]
    try:
        require_proxy(provider)
        verification(provider)
    except InvalidProvider as error:
        return str(error)
    return ""


def judge_clock(now_s: float) -> Iterator[Finding]:
    """Whether this machine's clock has been set at all."""
    if now_s < EARLIEST_TIME_S:
        shown = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        remedy = "set it, or run NTP: session ids begin with the time"
        yield Finding("clock", "missing", f"this machine believes that it is {shown}", remedy)
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)))


def _check_sandbox(settings: Settings) -> list[Finding]:
    # Imported here: the probe's module needs Linux, and the rest of the doctor should speak elsewhere too.
    from orchestrator.sandbox.landlock import gaps
    from orchestrator.sandbox.probe import probe

    support = probe()
    works = [f"bubblewrap ({support.bubblewrap})"] if support.bubblewrap else []
    works += [f"Landlock (ABI {support.landlock_abi})"] if support.landlock_abi > 0 else []
    wanted = settings.sandbox.mechanism
    usable = bool(works) if wanted == "auto" else any(wanted in name.lower() for name in works)
    why = "; ".join(support.why)
    remedy = "install bubblewrap (Debian: apt install bubblewrap), or use a kernel with Landlock (5.13 on)"
    if usable:
        found = Finding("sandbox", "ok", " and ".join(works) + (f" ({why})" if why else ""))
        by_landlock = support.bubblewrap is None or wanted == "landlock"
        missing = gaps(support.landlock_abi, support.can_mount) if by_landlock else ()
        advice = "install bubblewrap (Debian: apt install bubblewrap), or see SECURITY.md"
        return [found, *(Finding("sandbox gap", "warn", gap, advice) for gap in missing)]
    unconfined = settings.session_defaults.sandbox.mode == "danger-full-access"
    detail = f"{wanted}: confined commands will be refused ({why})"
    return [Finding("sandbox", "warn" if unconfined else "missing", detail, remedy)]


def _check_git(settings: Settings) -> list[Finding]:
    remedy = "install git (Debian: apt install git): diffs of a turn and the demo need it"
    program = find_program("git", settings.host.search_path)
    if program is None:
        return [Finding("git", "warn", "not found on PATH", remedy)]
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [Finding("git", "warn", f"{program} does not run: {error}", remedy)]
    return [Finding("git", "ok", f"{said.stdout.strip()}, {program}")]


def _check_home(settings: Settings) -> list[Finding]:
    finding = _try_to_write(settings.home)
    if finding is not None:
        return [Finding("home", "missing", finding, "make it writable, or set DENDRO_HOME")]
    found = Finding("home", "ok", str(settings.home))
    return [found, *_judge_privacy(settings), _judge_space(settings.home)]


def _judge_privacy(settings: Settings) -> Iterator[Finding]:
    for folder in open_folders(settings):
        detail = f"{folder.path} {folder.why}"
        yield Finding("other users", "missing" if folder.refused else "warn", detail, folder.remedy)


def _check_archive(settings: Settings) -> list[Finding]:
    shown = without_credentials(settings.upkeep.archive_url)
    folder = folder_of(settings.upkeep.archive_url)
    if folder is None:
        try:
            Objects(settings.upkeep.archive_url)
        except UnknownStore as error:
            return [Finding("archive", "missing", shown, str(error))]
        return [Finding("archive", "ok", f"{shown} (not tried)")]
    finding = _try_to_write(folder)
    if finding is not None:
        return [Finding("archive", "missing", finding, "make it writable, or set upkeep.archive_url")]
    return [Finding("archive", "ok", shown)]


def _check_workspaces(settings: Settings) -> list[Finding]:
    """Whether this machine can make portable folders, and with how much room."""
    from orchestrator.sandbox.probe import cannot_mount, probe

    root, name = settings.workspace.root, "workspaces"
    assert root is not None, "filled in with the settings"
    if (finding := _try_to_write(root)) is not None:
        return [Finding(name, "warn", finding, "make it writable, or set workspace.root")]
    if Path(os.path.realpath(root)) != root:
        detail = f"{root} leads through a symbolic link or `..`"
        return [Finding(name, "warn", detail, f"set workspace.root to {os.path.realpath(root)}")]
    if why := cannot_mount(probe(), settings.sandbox.mechanism):
        return [Finding(name, "warn", why, "without it, portable sessions are left to other workers")]
    existing = next(place for place in (root, *root.parents) if place.exists())
    free, least = shutil.disk_usage(existing).free, settings.workspace.min_free
    if free < least:
        detail = f"{root}: {free / GIB:.1f} GiB free, and workspace.min_free wants {least / GIB:.1f}"
        remedy = "make room: until then a worker here leaves portable sessions to other machines"
        return [Finding(name, "warn", detail, remedy)]
    return [Finding(name, "ok", f"{root}, the same on all workers of a pool")]


def _try_to_write(folder: Path) -> str | None:
    """The reason why files cannot be made in a folder, or where it would be made; None if they can."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return f"{existing} cannot be written: {error.strerror}"
    return None


def _judge_space(folder: Path) -> Finding:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free in {existing}"
    if free < TOO_LITTLE_SPACE:
        return Finding("disk", "missing", detail, "free some: a full disk stops the server's log")
    if free < LITTLE_SPACE:
        return Finding("disk", "warn", detail, "free some before it is full: the server's log grows")
    return Finding("disk", "ok", detail)


# ── fleet ─────────────────────────────────────────────────────────────────────────────────────────
# The doctor's look at the deployment: workers that say what is wrong with them, and sessions that wait.


PATIENCE_S = 5.0
MOST = 10
"""Workers, and machines, that are named."""


async def check_fleet(settings: Settings) -> list[Finding]:
    """The findings about a deployment that has a server of its own; none of one that does not answer."""
    if settings.redis.url is None:
        return []
    try:
        async with aclosing(open_broker(settings, settings.redis.url, PATIENCE_S)) as broker:
            workers, fleet = await workers_of(broker.claims), await fleet_stats(broker)
    except BrokerError:
        return []  # the checks of Redis say why
    return [*_of_workers(workers), *_of_sessions(fleet), *await _of_upkeep(settings)]


def _of_workers(workers: Sequence[SeenWorker]) -> Iterator[Finding]:
    if not any(worker.status == "serving" for worker in workers):
        detail = "none serves: what is asked of sessions waits, but for `dendro run`, which starts its own"
        yield Finding("workers", "warn", detail, "start one on any machine of the deployment: dendro worker")
    told = [(worker.name, remark) for worker in workers if not worker.silent for remark in worker.remarks]
    for name, remark in told[:MOST]:
        yield Finding("workers", "warn", f"{name}: {remark}", "all of them: dendro workers")


def _of_sessions(fleet: FleetStats) -> Iterator[Finding]:
    for machine, sessions in list(fleet.waiting.items())[:MOST]:
        yield Finding("sessions", "warn", *waits_for(machine, sessions))


async def _of_upkeep(settings: Settings) -> list[Finding]:
    """The finding about an upkeep that does not run; none where its server does not tell."""
    url = settings.upkeep.url or settings.redis.url
    # The queue's server is a single one.
    redis = settings.redis.model_copy(update={"url": url, "cluster": False})
    try:
        async with aclosing(connect(redis, client_name("cli"))) as connection:
            if await connection.command("EXISTS", f"{redis.prefix}upkeep{health_check_key_suffix}"):
                return []
    except BrokerError:
        return []  # the checks of Redis say why
    detail = "none for a minute: no log is sealed or archived, and none is deleted when its time is over"
    return [Finding("upkeep process", "warn", detail, "start one for the whole deployment: dendro upkeep")]


# ── mcp servers ───────────────────────────────────────────────────────────────────────────────────
# Findings about the MCP servers of a worker here. Starts no program and sends no request.


def judge_mcp_servers(settings: Settings) -> Iterator[Finding]:
    """A finding for each server: an agent can work without one, so none is worse than a warning."""
    for server in settings.mcp_servers.values():
        where = without_credentials(server.url) if server.url is not None else str(server.command)
        what = f"{server.id}: {where}"
        if not server.enabled:
            yield Finding("mcp server", "ok", f"{what}, not enabled")
        elif (fault := _fault(server, settings)) is not None:
            yield Finding("mcp server", "warn", f"{what}, but {fault[0]}", fault[1])
        else:
            yield Finding("mcp server", "ok", what)


def _fault(server: McpServerSettings, settings: Settings) -> tuple[str, str] | None:
    """The reason why the server cannot work, and the remedy."""
    if server.command is not None and not _is_there(server, settings):
        mend = "correct" if "/" in server.command else "name it by its path in"
        return f"it {not_found(server.command)}", f"install it, or {mend} mcp_servers.{server.id}.command"
    names = [*server.env_vars, *server.env_http_headers.values(), server.bearer_token_env_var]
    missing = [name for name in names if name and not settings.host.environ.get(name)]
    if missing:
        return f"{', '.join(missing)} is not set", f"export {missing[0]}=…"
    return None


def _is_there(server: McpServerSettings, settings: Settings) -> bool:
    assert server.command is not None
    if "/" in server.command and not server.command.startswith("/"):
        return True  # it counts from a session's folder
    return find_named_program(server.command, server.env.get("PATH", settings.host.search_path)) is not None


# ── pack keys ─────────────────────────────────────────────────────────────────────────────────────
# The keys of packs for `dendro doctor`: the file, its rights, and the newest pack of the store.


NAME = "workspace keys"
LOOKED_AT = 200
"""Trees and sessions in which the newest pack is looked for."""


async def check_pack_keys(settings: Settings) -> list[Finding]:
    """The findings about `workspace.key_file`; nothing without one."""
    file = settings.workspace.key_file
    if file is None:
        return []
    keys = PackKeys(file)
    try:
        keys.first()
    except KeyUnavailable as error:
        return [Finding(NAME, "missing", str(error), "without it no portable folder is stored or made here")]
    packs = Packs(Objects(settings.upkeep.archive_url), keys)
    try:
        newest = await packs.newest(LOOKED_AT)
        return [_judged(file, keys, newest, newest and await packs.is_sealed(newest))]
    except (KeyUnavailable, BrokenPack) as error:
        return [Finding(NAME, "warn", str(error), "sessions that need it are left to other workers")]
    except ArchiveUnavailable as error:
        return [Finding(NAME, "warn", f"{file}; no pack could be tried: {error}", "see upkeep.archive_url")]


def _judged(file: Path, keys: PackKeys, newest: PackName | None, sealed: object) -> Finding:
    known = f"{file}, key {keys.first().id} writes"
    if newest is None or sealed is None:
        return Finding(NAME, "ok", f"{known}; the store has no pack to try")
    if sealed:
        return Finding(NAME, "ok", f"{known}; the newest pack opens")
    remedy = "if it is younger than the key, set workspace.key_file for every worker, gateway and client"
    return Finding(NAME, "warn", f"{known}; the newest pack is not encrypted: {newest}", remedy)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────
# Findings about the rule files of a worker that is started here.


def judge_rules(settings: Settings) -> Iterator[Finding]:
    """A warning for each file that is left out; a line that counts the rules, if there are any."""
    rules = CommandRules(settings.home, trust_projects=settings.tools.trust_project_rules)
    found = rules.of(settings.session_defaults.cwd)
    for problem in found.problems:
        yield Finding("rules", "warn", problem, "correct the line, then run `dendro doctor` again")
    if found.rules:
        yield Finding("rules", "ok", f"{len(found.rules)} rules about commands")


# ── server ────────────────────────────────────────────────────────────────────────────────────────
# The doctor's checks of Redis: is it there, and what do its settings mean for the sessions kept on it?


CLOCK_TOLERANCE_S = 1.0
STREAM_NODE_BYTES = 2048
HASH_VALUE_BYTES = 512
MAX_LAG_S = 2
"""With it a primary that is cut off stops writing within three seconds; see docs/claims.md."""
LOSES = {"always": "nothing acknowledged is lost", "everysec": "a crash of its host may lose a second"}


async def check_redis(settings: Settings) -> list[Finding]:
    """Asks the server of the deployment, or starts the private one for as long as the check takes."""
    try:
        with redis_url(settings) as url:
            facts = await examine(_connection(settings, url))
            rights = await _check_rights(settings, url) or await _check_key(settings, url)
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


async def _check_key(settings: Settings, url: str) -> list[Finding]:
    broker = open_broker(settings, url, PATIENCE_S)
    try:
        await broker.hold_key(chain_key(settings), reads=True)
    except Misconfigured as error:
        detail, _, advice = str(error).rpartition("; ")
        return [Finding("chain key", "missing", detail, advice)]
    finally:
        await broker.aclose()
    return []


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
        remedy = (
            "ask who runs it for: AOF on, maxmemory-policy noeviction, "
            f"stream-node-max-bytes {STREAM_NODE_BYTES}, hash-max-ziplist-value {HASH_VALUE_BYTES}"
        )
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
    yield from _judge_nodes(found)
    if int(found.get("timeout", 0)) > 0:
        detail = (
            f"timeout {found['timeout']}: idle connections are cut, waiting workers reconnect for nothing"
        )
        yield Finding("redis connections", "warn", detail, "CONFIG SET timeout 0")


def _judge_nodes(found: Mapping[str, str]) -> Iterator[Finding]:
    """How compactly the server keeps what is small; a setting that it does not tell is no finding."""
    node = int(found.get("stream-node-max-bytes", STREAM_NODE_BYTES))
    # 0 is no bound at all.
    if not STREAM_NODE_BYTES // 2 <= node <= STREAM_NODE_BYTES:
        small = 0 < node < STREAM_NODE_BYTES
        why = "each entry of a log has a node of its own" if small else "a short stream reserves more"
        detail = f"stream-node-max-bytes {node}: {why}, which takes about half as much memory again"
        remedy = f"CONFIG SET stream-node-max-bytes {STREAM_NODE_BYTES}, and the same in redis.conf"
        yield Finding("redis memory", "warn", detail, remedy)
    # Redis 6.2 knows the older name alone.
    value = found.get("hash-max-listpack-value", found.get("hash-max-ziplist-value", HASH_VALUE_BYTES))
    if int(value) < HASH_VALUE_BYTES:
        detail = f"hash-max-ziplist-value {value}: the hash of each session takes twice the memory"
        remedy = f"CONFIG SET hash-max-ziplist-value {HASH_VALUE_BYTES}, and the same in redis.conf"
        yield Finding("redis memory", "warn", detail, remedy)


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
