"""The whole of the settings, and the machine that they were read on.

Composes the tables of `orchestrator.tables`; says nothing of any single setting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

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
    ReceiptsSettings,
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

HIDDEN: Final = "(hidden)"
"""In the place of a value that is, or may hold, a secret."""
_USER_OF_URL = re.compile(r"(?<=//)[^/@\s]+(?=@)")


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
    receipts: ReceiptsSettings = field(default_factory=ReceiptsSettings)
    mcp_servers: Mapping[str, McpServerSettings] = field(default_factory=dict)
    folder_config: FolderConfig | None = None
    """The file of the current folder, and whether the person trusts it."""

    named: frozenset[str] = frozenset()
    """The keys that the command line sets, `cwd` among them: a fork has all others from its source."""

    warnings: tuple[str, ...] = ()
    """Keys that no setting reads, and settings that deserve a second look: to be shown, never fatal."""

    def without_secrets(self) -> str:
        """All of it as JSON, readable and always the same; instead of secrets it says that they are set."""
        tables = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name not in _NOT_SET}
        host = {"machine_id": self.host.machine_id, "search_path": self.host.search_path}
        folder = self.folder_config
        told = _told(tables) | {"host": host, "folder_config": str(folder.path) if folder else None}
        return json.dumps(told, sort_keys=True, indent=1)


_NOT_SET: Final = frozenset({"host", "folder_config", "warnings", "named"})


def _told(value: Any) -> Any:
    match value:
        case BaseModel():
            return {
                name: _told_field(each, getattr(value, name))
                for name, each in type(value).model_fields.items()
            }
        case Mapping():
            return {str(name): _told(each) for name, each in value.items()}
        case frozenset() | set():
            return sorted(map(str, value))
        case list() | tuple():
            return [_told(each) for each in value]
        case None | bool() | int() | float():
            return value
        case _:
            return _USER_OF_URL.sub(HIDDEN, str(value))


def _told_field(spec: FieldInfo, value: Any) -> Any:
    if spec.repr:
        return _told(value)
    # Names say what was set; values of them may be secrets.
    if isinstance(value, Mapping):
        return dict.fromkeys(map(str, value), HIDDEN)
    return HIDDEN if value else None
