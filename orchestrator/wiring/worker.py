"""A worker from settings: models, tools with their supervisor, leases, the loop that claims."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import Claims
from orchestrator.broker.outage import Outage
from orchestrator.broker.records import Claim
from orchestrator.broker.worker_state import MachineFacts
from orchestrator.core import CORE_VERSION
from orchestrator.core.settings import Rules
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.deletion import DeletedFiles, removing
from orchestrator.rollouts.storage import Storage
from orchestrator.runtime.budget import Accounting
from orchestrator.runtime.calls import ToolCalls
from orchestrator.runtime.intake import PatientTexts
from orchestrator.runtime.library import Files
from orchestrator.runtime.loader import restore_session
from orchestrator.runtime.log import OutageFilter, log
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.providers import ModelClients
from orchestrator.runtime.renewal import Confirm, Renewal, Report
from orchestrator.runtime.runner import RunnerConfig
from orchestrator.runtime.worker import Worker, WorkerConfig
from orchestrator.runtime.workspace import RecentChecks
from orchestrator.sandbox.limits import half_of_memory
from orchestrator.sandbox.probe import SandboxSupport, probe
from orchestrator.settings import Settings, TrustList
from orchestrator.telemetry.observer import Observer
from orchestrator.tools.custom import CustomTool
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.folder_setup import SetupRunner
from orchestrator.tools.jobs import Commands, Workbench
from orchestrator.tools.rules import CommandRules
from orchestrator.tools.site import ToolConfig
from orchestrator.tools.toolbox import Toolbox, all_tools
from orchestrator.wiring.deployment import (
    archived_text,
    chain_key,
    deployment,
    open_broker,
    worker_name,
    worker_pools,
)
from orchestrator.wiring.hidden_paths import hidden_paths, own_code
from orchestrator.wiring.mcp_tools import mcp_toolbox
from orchestrator.wiring.observed import observed
from orchestrator.wiring.pack_store import pack_store
from orchestrator.wiring.portable import machine_config, machine_folders
from orchestrator.wiring.sessions import SESSIONS, VERSION, guide
from orchestrator.wiring.sign_in import signed_in
from orchestrator.workspaces.copies import boot_id
from orchestrator.workspaces.service import MachineFolders
from orchestrator.workspaces.sweep import sweeping


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
    supervisor = await Supervisor.start(SupervisorConfig(tools.support, tools.sandbox.mechanism))
    models = ModelClients(settings.model.providers, signed_in=signed_in(settings))
    outage = Outage(say, time.monotonic)
    quiet = OutageFilter(outage)
    log.addFilter(quiet)
    try:
        own = all_tools(tools, supervisor, own_tools)
        async with (
            deployment(settings, url, outage, kind="worker") as opened,
            mcp_toolbox(settings, supervisor, tools) as mcp,
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
            )
            served = worker_pools(settings) if pools is None else pools
            bench = Workbench(Commands(tools, supervisor, settings.session_defaults.sandbox))
            async with observed(settings, ports, supervisor, served, say) as watch:
                worker = Worker(
                    watch.ports,
                    replace(_worker_config(settings, opened.broker, served, toolbox), bench=bench),
                    lambda report: _renewal(settings, url, extend, report, outage, watch.ports.observer),
                )
                watch.watch(worker)
                yield worker
    finally:
        log.removeFilter(quiet)
        await models.aclose()
        await supervisor.close()


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
) -> Renewal:
    worker = settings.worker
    # A server that vanished without a word must not use up the trust: who else could be asked is asked soon.
    patience_s = worker.trust_s / 4
    confirm = _renewal_confirmation(settings)
    connect = partial(open_broker, settings, url, patience_s, outage, "worker")
    unanswered = observer.renewals_failed if observer is not None else None
    return Renewal(connect, worker, extend, report, confirm, unanswered)
