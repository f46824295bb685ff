"""A worker from settings: models, tools with their supervisor, leases, the loop that claims."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import orchestrator
from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import Claims
from orchestrator.broker.connection import Outage
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import Claim
from orchestrator.broker.worker_state import MachineFacts
from orchestrator.config_keys import McpServerSettings, WorkerSettings
from orchestrator.core import CORE_VERSION
from orchestrator.core.blobs import references, resolve
from orchestrator.core.calls import Call, spec_of, work_of
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.facts import Claimed
from orchestrator.core.frozen import replace as frozen_replace
from orchestrator.core.ids import TreeId
from orchestrator.core.settings import Rules
from orchestrator.core.state import State
from orchestrator.gateways.principals import machine_user
from orchestrator.home import without_links
from orchestrator.mcp import server_records
from orchestrator.model.canonical import CanonicalRequests
from orchestrator.model.model_client import ModelClients
from orchestrator.private_files import make_folder
from orchestrator.protocol.wire import JsonValue
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.deletion import DeletedFiles, removing
from orchestrator.rollouts.signed_notes import Signers, VerifierKey
from orchestrator.runtime import OutageFilter, log
from orchestrator.runtime.burial import Burial
from orchestrator.runtime.loader import restore_session
from orchestrator.runtime.machine_files import Files
from orchestrator.runtime.ports import AboutWorker, Ports
from orchestrator.runtime.renewal import Confirm, Renewal, Report
from orchestrator.runtime.request_costs import Accounting
from orchestrator.runtime.runner import RunnerConfig
from orchestrator.runtime.same_folder import RecentChecks
from orchestrator.runtime.sq_entries import PatientTexts
from orchestrator.runtime.worker import Worker, WorkerConfig
from orchestrator.sandbox.limits import half_of_memory
from orchestrator.sandbox.policy_paths import COPIES, InvalidPolicy
from orchestrator.sandbox.probe import SandboxSupport, in_force, probe
from orchestrator.settings import Settings, SettingsError, TrustList
from orchestrator.settings.private_home import archive_outside, is_shared, register_outside
from orchestrator.telemetry.observer import Observer, Observers
from orchestrator.tools.custom import CustomTool
from orchestrator.tools.exec.command import for_model
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.exec_policy import CommandRules
from orchestrator.tools.folder_setup import SetupRunner
from orchestrator.tools.job_bench import Commands, Workbench
from orchestrator.tools.mcp_tools import McpToolbox, mcp_programs
from orchestrator.tools.tool import Judgement, Tool
from orchestrator.tools.tool_context import CallSite, DeltaSink, ToolConfig
from orchestrator.tools.toolbox import Toolbox, all_tools
from orchestrator.wiring.deployment import (
    archived_text,
    chain_key,
    client_name,
    deployment,
    embedded_config,
    open_broker,
    worker_name,
    worker_pools,
)
from orchestrator.wiring.new_sessions import SESSIONS, VERSION, guide
from orchestrator.wiring.person_sign_in import signed_in
from orchestrator.wiring.portable import machine_config, machine_folders, pack_store
from orchestrator.workspaces.copies import boot_id, sweeping
from orchestrator.workspaces.service import MachineFolders

if TYPE_CHECKING:
    from orchestrator.mcp.servers import Servers


def tool_config(settings: Settings, url: str, support: SandboxSupport) -> ToolConfig:
    """The tools' configuration, on a machine whose confinement was probed."""
    memory = settings.sandbox.max_memory_bytes or half_of_memory()
    return ToolConfig(
        support=support,
        environ=settings.host.environ,
        sandbox=settings.sandbox.model_copy(update={"max_memory_bytes": memory}),
        tools=settings.tools,
        hidden=hidden_paths(settings, url),
        rules=CommandRules(settings.home, trust_projects=settings.tools.trust_project_rules),
        read_only=(*_config_files(settings), *own_code()),
        trusted=TrustList(settings.home).configurations,
    )


def _config_files(settings: Settings) -> tuple[Path, ...]:
    folder = settings.folder_config
    # A set-up is read when a folder is copied: no agent may have rewritten it by then.
    files = (settings.config_file, folder.path if folder else None, settings.workspace.setup)
    return tuple(file for file in files if file is not None)


def archive(settings: Settings) -> Archive:
    """The store of the sealed parts of logs."""
    return Archive.at(settings.upkeep.archive_url, _secret(settings))


def deleted_files(settings: Settings) -> DeletedFiles:
    """The rollout files below the home folder whose sessions were deleted."""
    return DeletedFiles(settings.home / SESSIONS, int(settings.log.file_days * 86_400_000))


def _secret(settings: Settings) -> bytes:
    key = chain_key(settings)
    return key.secret if key else b""


def signers(settings: Settings) -> Signers:
    """The people whose signatures count."""
    return Signers(map(VerifierKey.read, settings.approvals.signers))


@asynccontextmanager
async def running_worker(
    settings: Settings,
    url: str,
    pools: tuple[str, ...] | None = None,
    say: Callable[[str], None] = log.warning,
    own_tools: Sequence[CustomTool] = (),
) -> AsyncIterator[Worker]:
    """A worker ready to `run`, with its supervisor; everything is closed at the end.

    It serves the pools that the settings name, or these: with none it claims only what it adopts.
    `say` gets a line when Redis is away, and when it is back. `own_tools` are offered beside the built-in
    ones; raises `ValueError` for one that cannot be, and `KeyUnavailable` without the keys of packs.
    """
    pack_store(settings).require_keys()
    tools = tool_config(settings, url, probe())
    burial = _burial(settings, url)
    config = SupervisorConfig(tools.support, tools.sandbox.mechanism, burial=burial)
    try:
        supervisor = await Supervisor.start(config)
    except BaseException:
        if burial is not None:
            burial.close()
        raise
    known, chosen = settings.model.providers, settings.model.provider
    models = ModelClients(known, signed_in=signed_in(settings), chosen=chosen)
    outage = Outage(say, time.monotonic)
    quiet = OutageFilter(outage)
    log.addFilter(quiet)
    try:
        own = all_tools(tools, supervisor, own_tools)
        async with (
            deployment(settings, url, outage, kind="worker") as opened,
            mcp_toolbox(settings, supervisor, tools, late=pools == ()) as mcp,
            sweeping(machine_config(settings, tools.support), boot_id()),
            removing(deleted_files(settings), opened.broker),
        ):
            folders = machine_folders(settings, tools.support, (*tools.read_only, *tools.hidden))
            extend = _all(supervisor, folders)
            texts = PatientTexts(opened.blobs, asyncio.sleep, archived_text(settings))
            toolbox = ToolCalls(texts, own, mcp, tools.rules, SetupRunner(tools, supervisor))
            kept = archive(settings)
            storage = Storage(opened.broker, opened.blobs, kept, _secret(settings))
            ports = Ports(
                machine=socket.gethostname(),
                broker=opened.broker,
                texts=texts,
                models=models,
                tools=toolbox,
                model_settings=settings.model,
                workspace=RecentChecks(),
                library=Files(
                    settings.home, guide(settings), settings.session_defaults.history != "none", tools.hidden
                ),
                folders=folders,
                archive=kept,
                restore=partial(restore_session, storage),
                version=VERSION,
                canonical=CanonicalRequests(),
                signers=signers(settings),
                about=About(settings, tools, toolbox).of,
            )
            served = worker_pools(settings) if pools is None else pools
            bench = Workbench(Commands(tools, supervisor, settings.session_defaults.sandbox))
            async with observed(settings, ports, supervisor, served, say) as watch:
                worker = Worker(
                    watch.ports,
                    replace(_worker_config(settings, opened.broker, served, toolbox), bench=bench),
                    lambda report: _renewal(
                        settings, url, extend, report, outage, watch.ports.observer, burial
                    ),
                )
                watch.watch(worker)
                async with _waited_for(burial):
                    yield worker
    finally:
        log.removeFilter(quiet)
        await models.aclose()
        await supervisor.close()
        if burial is not None:
            burial.close()


def _burial(settings: Settings, url: str) -> Burial | None:
    if not settings.worker.burial:
        return None
    try:
        redis, name = settings.redis.at(url), client_name("burial")
        return Burial(redis, settings.worker.lease_s, settings.host.environ, name)
    except OSError as error:
        log.warning("sessions of this worker wait for their leases if it dies: %s", error)
        return None


@asynccontextmanager
async def _waited_for(burial: Burial | None) -> AsyncIterator[None]:
    """A process waits for this worker's death inside of the block."""
    waiting = asyncio.create_task(burial.wait()) if burial is not None else None
    try:
        yield
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


def _all(supervisor: Supervisor, folders: MachineFolders) -> Callable[[str, float], None]:
    """A claim's deadline for all that it may run: its commands, and the keepers of its folder."""

    def extend(claim: str, deadline_boottime: float) -> None:
        supervisor.extend(claim, deadline_boottime)
        folders.extend(claim, deadline_boottime)

    return extend


def _worker_config(
    settings: Settings, broker: Broker, pools: tuple[str, ...], toolbox: Toolbox
) -> WorkerConfig:
    return WorkerConfig(
        name=worker_name(),
        pools=pools,
        facts=partial(_facts, settings, time.time_ns() // 1_000_000),
        runner=RunnerConfig(
            rules=Rules(
                auto_compact_limit=settings.model.auto_compact_token_limit,
                show_raw_reasoning=settings.model.show_raw_reasoning,
                review_model=settings.model.review_model,
                plan_model=settings.model.plan_model,
                plan_effort=settings.model.plan_effort,
                parallel_safe=toolbox.parallel_safe,
                repeatable=toolbox.repeatable,
                folder_free=toolbox.folder_free,
                signed_answers=settings.approvals.signed,
                signed_in=settings.approvals.signed_in,
            ),
            chain_key=chain_key(settings),
            accounting=Accounting(settings.model),
            confirm_effects=_confirmation(settings, broker.claims),
            worker=settings.worker,
            hold_s=settings.workspace.hold_s,
            log=settings.log,
        ),
    )


def _facts(settings: Settings, started_ms: int) -> MachineFacts:
    return MachineFacts(
        machine=socket.gethostname(),
        pid=os.getpid(),
        version=VERSION,
        core=CORE_VERSION,
        started_ms=started_ms,
        workspaces=str(settings.workspace.root),
        machine_id=settings.host.machine_id,
        clock_ms=time.time_ns() // 1_000_000,
        load=round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    )


def _confirmation(settings: Settings, claims: Claims) -> Callable[[Claim, int], Awaitable[bool]] | None:
    """Under `effects = wait`: whether enough replicas have a session's log up to an entry."""
    redis = settings.redis
    if redis.effects != "wait":
        return None

    return lambda claim, seq: claims.confirmed(claim, seq, redis.wait_replicas, redis.wait_timeout_s)


def _renewal_confirmation(settings: Settings) -> Confirm | None:
    """Under `effects = wait`: whether enough replicas have a renewal, before the next one is due."""
    redis = settings.redis
    if redis.effects != "wait":
        return None
    patience_s = min(redis.wait_timeout_s, settings.worker.renew_s / 2)
    return lambda broker, claim, seq: broker.claims.confirmed(claim, seq, redis.wait_replicas, patience_s)


def _renewal(
    settings: Settings,
    url: str,
    extend: Callable[[str, float], None],
    report: Report,
    outage: Outage,
    observer: Observer | None = None,
    burial: Burial | None = None,
) -> Renewal:
    worker = settings.worker
    # A server that vanished without a word must not use up the trust: who else could be asked is asked soon.
    patience_s = worker.trust_s / 4
    confirm = _renewal_confirmation(settings)
    connect = partial(open_broker, settings, url, patience_s, outage, "worker")
    unanswered = observer.renewals_failed if observer is not None else None
    return Renewal(connect, worker, extend, report, confirm, unanswered, burial)


# ── about ─────────────────────────────────────────────────────────────────────────────────────────
# A worker, as the first entry of each epoch tells of it: what a later reader needs to know of the process
# and of the person's files, as they were when it began to write.


class About:
    """A worker's word about itself, its settings, and the rules that hold in a session's folder."""

    def __init__(self, settings: Settings, tools: ToolConfig, toolbox: Toolbox) -> None:
        kind, version = in_force(tools.support, tools.sandbox.mechanism)
        self._rules, self._trusted = tools.rules, TrustList(settings.home)
        self._toolbox = toolbox
        self._settings = settings.without_secrets()
        self._always = Claimed(
            worker="",
            machine=socket.gethostname(),
            user=machine_user().subject.partition("@")[0],
            version=VERSION,
            commit=own_commit(),
            python=platform.python_version(),
            sandbox={"kind": kind, "version": version},
            settings=sha256_of(self._settings),
        )
        self._read: tuple[object, str, str] = (None, "", "")
        """The rules that were asked for last, their text, and its digest."""

    def of(self, state: State, worker: str) -> AboutWorker:
        """For a session, now; reads the person's files again where they have changed."""
        rules, rules_sha = self._of_rules(state)
        trusted = self._of_trust()
        told = frozen_replace(
            self._always,
            worker=worker,
            rules=rules_sha,
            trust=sha256_of(trusted),
            mcp=self._toolbox.servers(state),
        )
        texts = {told.settings: self._settings, told.rules: rules, told.trust: trusted}
        return AboutWorker(told, {sha: text for sha, text in texts.items() if sha})

    def _of_rules(self, state: State) -> tuple[str, str]:
        found = self._rules.of_session(state)
        if found is not self._read[0]:
            text = found.text()
            self._read = found, text, sha256_of(text)
        return self._read[1], self._read[2]

    def _of_trust(self) -> str:
        try:
            trusted = [{"path": str(each.path), "sha256": each.sha256} for each in self._trusted.entries()]
        except SettingsError:
            # Then nothing is trusted.
            return ""
        return json.dumps(trusted, indent=1) if trusted else ""


def sha256_of(text: str) -> str:
    """The hexadecimal digest; empty for no text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else ""


def own_commit() -> str:
    """The commit that this program was installed from, or is checked out at; empty where nothing says it."""
    with suppress(OSError, ValueError, LookupError, TypeError, metadata.PackageNotFoundError):
        told = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        if commit := told.get("vcs_info", {}).get("commit_id"):
            return str(commit)[:MOST_COMMIT]
    git = Path(orchestrator.__file__).parent.parent / ".git"
    with suppress(OSError, ValueError):
        head = (git / "HEAD").read_text()[:MOST_HEAD].strip()
        name = head.removeprefix("ref: ")
        return (head if name == head else (git / name).read_text()[:MOST_HEAD].strip())[:MOST_COMMIT]
    return ""


DISTRIBUTION: Final = "dendro-orchestrator"
MOST_COMMIT, MOST_HEAD = 64, 300


# ── hidden paths ──────────────────────────────────────────────────────────────────────────────────
# Paths kept from confined commands: the data folder, copies and keys, Redis's socket, Dendro's code.
#
# A command that reaches Redis could approve itself and edit logs. Knows settings and a URL; how paths are
# hidden is the sandbox's matter.


def hidden_paths(settings: Settings, url: str) -> tuple[Path, ...]:
    """The folders, each as it is named.

    The socket's folder, not its file: a server that starts again makes a new file. The private
    server may choose another folder then. The home folder is made if it is not there: what is missing
    cannot be hidden, and a command that makes it could fill it with settings.
    """
    make_folder(settings.home)
    paths = [settings.home]
    if settings.redis.url is None:
        fallback = embedded_config(settings).fallback_folder
        # Made now: what does not exist cannot be hidden, and a command could make it.
        with suppress(OSError):
            make_folder(fallback)
        paths.append(fallback)
    root = settings.workspace.root
    if root is not None and not root.is_relative_to(settings.home):
        # What agents of other sessions work on; a command's own copy is mounted at its path.
        copies = root / COPIES
        with suppress(OSError):
            make_folder(copies)
            paths.append(copies)
    paths += _own(settings, settings.host.runtime_dir)
    if settings.workspace.key_file is not None:
        paths.append(_around(settings, settings.workspace.key_file))
    # Who has a notary's key and state signs another past for every log.
    told = settings.receipts
    if told.key_file is not None and not told.key_file.is_relative_to(settings.home):
        paths.append(_around(settings, told.key_file))
    paths += _own(settings, told.state)
    paths += _own(settings, register_outside(settings))
    # Other sessions' logs, and what a session is restored from: the first of them may come in a minute.
    if (archive := archive_outside(settings)) is not None and not is_shared(settings, archive):
        with suppress(OSError):
            make_folder(archive)
        paths.append(archive)
    server = urlsplit(url)
    if server.scheme == "unix":
        socket = Path(unquote(server.path))
        in_workspace = without_links(socket.parent) == without_links(settings.session_defaults.cwd)
        paths.append(socket if in_workspace or is_shared(settings, socket.parent) else socket.parent)
    return tuple(dict.fromkeys(paths))


def _own(settings: Settings, folder: Path | None) -> Sequence[Path]:
    """The folder, if it is there and commands do not need what lies in it."""
    if folder is None or not folder.is_dir() or is_shared(settings, folder):
        return ()
    return (folder,)


def _around(settings: Settings, file: Path) -> Path:
    """The folder of a secret file, so that a new file in its place is hidden, too.

    The file alone where commands need the folder.
    """
    folder = file.parent
    holds_work = without_links(settings.session_defaults.cwd).is_relative_to(without_links(folder))
    return file if holds_work or is_shared(settings, folder) else folder


def own_code() -> tuple[Path, ...]:
    """The code of this process: its package and its virtual environment, which may lie in the workspace.

    A command that writes there changes what the next `dendro` runs outside of the sandbox.
    """
    package = Path(orchestrator.__file__).parent
    return (package, Path(sys.prefix)) if sys.prefix != sys.base_prefix else (package,)


# ── mcp tools ─────────────────────────────────────────────────────────────────────────────────────
# The tools of a worker's MCP servers, from settings.


@asynccontextmanager
async def mcp_toolbox(
    settings: Settings, supervisor: Supervisor, config: ToolConfig, *, late: bool = False
) -> AsyncIterator[McpToolbox | None]:
    """The tools; None where no server is configured. At the end every server's connection is closed.

    `late`: for a worker of no pool, which seldom needs them.
    """
    if not any(server.enabled for server in settings.mcp_servers.values()):
        yield None
        return

    def opened() -> Servers:
        # The SDK takes most of a second to import, and 20 MiB: only a worker that has a use for it pays that.
        from orchestrator.mcp.servers import Servers, ServersConfig

        return Servers(
            ServersConfig(
                servers=settings.mcp_servers,
                start_program=mcp_programs(supervisor, config),
                shorten=_shortened,
                version=VERSION,
            )
        )

    servers = LateServers(settings.mcp_servers, opened)
    if not late:
        # While no session waits for this process.
        servers.open()
    try:
        yield McpToolbox(servers)
    finally:
        await servers.aclose()


class LateServers:
    """Implements `McpTools`: servers that are opened when one of them is first needed."""

    def __init__(self, named: Mapping[str, McpServerSettings], opened: Callable[[], Servers]) -> None:
        self._named = sorted(name for name, each in named.items() if each.enabled)
        self._opened = opened
        self._servers: Servers | None = None

    def open(self) -> Servers:
        if self._servers is None:
            self._servers = self._opened()
        return self._servers

    async def start(self, session: str, cwd: Path, report: server_records.Report) -> server_records.Started:
        return await self.open().start(session, cwd, report)

    def offered(self, cwd: Path) -> Sequence[server_records.OfferedTool]:
        return self._servers.offered(cwd) if self._servers is not None else ()

    def known(self, cwd: Path) -> Sequence[tuple[str, str, Sequence[server_records.ServerTool]]]:
        if self._servers is not None:
            return self._servers.known(cwd)
        return [(name, "", ()) for name in self._named]

    async def up(self, cwd: Path) -> Sequence[server_records.OfferedTool]:
        return await self.open().up(cwd)

    async def find(self, full_name: str, cwd: Path) -> server_records.ServerTool | None:
        return await self.open().find(full_name, cwd)

    async def call(
        self, tool: tuple[str, str], arguments: dict[str, Any] | None, cwd: Path, ask: server_records.Ask
    ) -> server_records.Answer:
        return await self.open().call(tool, arguments, cwd, ask)

    def let_go(self, session: str) -> None:
        if self._servers is not None:
            self._servers.let_go(session)

    async def aclose(self) -> None:
        if self._servers is not None:
            await self._servers.aclose()


def _shortened(text: str) -> str:
    return for_model(text.encode("utf-8", "replace"))


# ── observed ──────────────────────────────────────────────────────────────────────────────────────
# A worker that is watched: its observers from the settings, and the port that tells of it.
#
# What nobody asks for is not imported: metrics cost a worker 20 ms at its start.


@dataclass(slots=True)
class Watch:
    """The ports of a worker with its observer in them, and the worker once it is made."""

    ports: Ports
    worker: Worker | None = None

    def watch(self, worker: Worker) -> None:
        """Names the worker that the answers are about."""
        self.worker = worker

    async def fault(self) -> str:
        """The reason why the worker can take no work; raises `BrokerError` where Redis does not answer."""
        if self.worker is None or self.worker.draining:
            return "the worker drains: it takes no more sessions"
        await self.ports.broker.command("PING")
        return ""


@asynccontextmanager
async def observed(
    settings: Settings,
    ports: Ports,
    supervisor: Supervisor,
    pools: tuple[str, ...],
    say: Callable[[str], None],
) -> AsyncIterator[Watch]:
    """The ports of a worker, observed as the settings ask; its port is served while the block lasts.

    `say` gets the port's address, or why there is none.
    """
    async with AsyncExitStack() as stack:
        watch = Watch(ports)
        # A worker that serves no pool ends cancelled agents beside another process, and is none to watch.
        observers: list[Observer] = []
        if settings.worker.metrics_port is not None and pools:
            observers += await _counting(settings.worker, watch, pools, say, stack)
        if settings.worker.tracing and pools:
            observers += await _tracing(settings, ports, say, stack)
        if observers:
            observer = observers[0] if len(observers) == 1 else Observers(*observers)
            watch.ports = replace(ports, observer=observer)
            supervisor.killed = observer.killed
        yield watch


async def _counting(
    worker: WorkerSettings,
    watch: Watch,
    pools: tuple[str, ...],
    say: Callable[[str], None],
    stack: AsyncExitStack,
) -> list[Observer]:
    from orchestrator.telemetry import metric_names
    from orchestrator.telemetry.listener import Health, PortTaken, listening
    from orchestrator.telemetry.metrics import Metrics
    from orchestrator.telemetry.work_metrics import FleetMetrics, WorkMetrics

    metrics = Metrics(watch.ports.version)
    metrics.gauge(metric_names.ROOM).set(worker.concurrency)
    fleet = FleetMetrics(metrics, watch.ports.broker, pools, time.monotonic)
    assert worker.metrics_port is not None
    try:
        url = await stack.enter_async_context(
            listening(Health(metrics, watch.fault, fleet.look), worker.metrics_host, worker.metrics_port)
        )
    except PortTaken as error:
        say(f"{error}: this worker goes on without; give it another worker.metrics_port, or 0 for a free one")
        return []
    say(f"metrics at {url}/metrics")
    return [WorkMetrics(metrics, time.monotonic)]


async def _tracing(
    settings: Settings, ports: Ports, say: Callable[[str], None], stack: AsyncExitStack
) -> list[Observer]:
    try:
        from orchestrator.telemetry.tracing import exported
    except ImportError as error:
        extra = "pip install 'dendro-orchestrator[otel]'"
        say(f"no traces: {error}; worker.tracing needs an extra ({extra}): this worker goes on without")
        return []
    host, contents = settings.host, settings.worker.trace_contents
    tracing = exported(host.environ, ports.version, worker_name(), ports.broker.logs, contents=contents)
    stack.push_async_callback(tracing.aclose)
    return [tracing]


# ── resolved calls ────────────────────────────────────────────────────────────────────────────────
# The toolbox of a worker: large texts are put back before a tool sees them.


class ToolCalls(Toolbox):
    """The toolbox as `ports.Tools` wants it: texts are whole, and no tool's defect costs the session."""

    def __init__(
        self,
        texts: Texts,
        tools: Sequence[Tool],
        mcp: McpToolbox | None = None,
        rules: CommandRules | None = None,
        setups: SetupRunner | None = None,
    ) -> None:
        super().__init__(tools, mcp, rules, setups)
        self._texts = texts

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Prepares the tools; an unexpected error costs the tools that it is about, not the request."""
        try:
            await super().prepare(state, show)
        except Exception:
            log.exception("session %s: its tools could not be prepared", state.facts.session_id)

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        """Assesses a call; an unexpected error becomes the call's output, so that the session goes on."""
        try:
            return await super().assess(await self._whole(call, site.tree), await self._site(site))
        except BrokerError:
            raise
        except InvalidPolicy as error:
            return Immediate(f"not run: {error}")
        except Exception as error:
            log.exception("session %s: call %s could not be assessed", site.session, call.call_id)
            return Immediate(f"internal error: {type(error).__name__}: {error}")

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        return await super().run(await self._whole(call, site.tree), await self._site(site))

    async def judge(self, call: Call, claim: str) -> Judgement:
        """Judges a lost call by its files; `in_doubt` where they cannot be read."""
        try:
            return await super().judge(call, claim)
        except Exception:
            log.exception("call %s could not be judged by its files", call.call_id)
            return "in_doubt"

    async def _whole(self, call: Call, tree: TreeId) -> Call:
        spec = spec_of(call.work) if call.work is not None else {}
        resolved = await self._resolved(spec, tree)
        work = call.work if resolved is spec else work_of(resolved)
        return replace(call, item=await self._resolved(call.item, tree), work=work)

    async def _site(self, site: CallSite) -> CallSite:
        task = site.state.task
        if task is None or not task.baselines:
            return site
        baselines = await self._resolved(task.baselines, site.tree)
        return replace(site, state=replace(site.state, task=replace(task, baselines=baselines)))

    async def _resolved(self, value: JsonValue, tree: TreeId) -> JsonValue:
        needed = set(references(value))
        if not needed:
            return value
        await self._texts.fetch(tree, needed)
        return resolve(value, self._texts.get)
