"""The whole of the settings, and the machine that they were read on.

Composes the tables of `orchestrator.tables`; says nothing of any single setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.settings.folder_trust import FolderConfig
from orchestrator.tables import (
    AgentSettings,
    AuthSettings,
    ChainSettings,
    ExecSettings,
    FrontSettings,
    GatewaySettings,
    LogSettings,
    McpServerSettings,
    ModelSettings,
    RedisSettings,
    SandboxSettings,
    SessionDefaults,
    ToolSettings,
    UpkeepSettings,
    WebhookSettings,
    WireSettings,
    WorkerSettings,
    WorkspaceSettings,
)


@record
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


@record
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
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    exec: ExecSettings = field(default_factory=ExecSettings)
    workspace: WorkspaceSettings = field(default_factory=WorkspaceSettings)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    mcp_servers: Mapping[str, McpServerSettings] = field(default_factory=dict)
    folder_config: FolderConfig | None = None
    """The file of the current folder, and whether the person trusts it."""

    named: frozenset[str] = frozenset()
    """The keys that the command line sets, `cwd` among them: a fork has all others from its source."""

    warnings: tuple[str, ...] = ()
    """Keys that no setting reads, and settings that deserve a second look: to be shown, never fatal."""
