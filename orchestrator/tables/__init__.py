"""The tables of the configuration file: what can be set, each setting named, typed, limited and told once.

A part of the system that obeys settings takes its table as it is. Nothing here knows where values come
from: `orchestrator.settings` fills the tables from file, environment and flags, and writes
`docs/configuration.md` from them, so a field without its text is a bug.

- `base`: what all tables have in common, and the mark of a field that can be set
- `sessions`, `commands`, `models`, `mcp`, `service`, `gateway`, `auth`, `workspaces`: the tables
"""

from orchestrator.tables.auth import AuthSettings
from orchestrator.tables.base import Secret, Setting, Table, limits_of, settings_of
from orchestrator.tables.commands import (
    SANDBOX_MODES,
    EnvironmentPolicy,
    SandboxMode,
    SandboxPolicy,
    SandboxSettings,
    ToolSettings,
)
from orchestrator.tables.gateway import GatewaySettings
from orchestrator.tables.mcp import McpServerSettings
from orchestrator.tables.models import ModelPrice, ModelSettings, ProviderSettings
from orchestrator.tables.service import (
    ChainSettings,
    ExecSettings,
    FrontSettings,
    LogSettings,
    RedisSettings,
    UpkeepSettings,
    WebhookSettings,
    WireSettings,
    WorkerSettings,
)
from orchestrator.tables.sessions import (
    APPROVAL_POLICIES,
    SESSION_KEYS,
    AgentSettings,
    ApprovalPolicy,
    SessionDefaults,
)
from orchestrator.tables.workspaces import WorkspaceSettings

__all__ = [
    "APPROVAL_POLICIES",
    "SANDBOX_MODES",
    "SESSION_KEYS",
    "AgentSettings",
    "ApprovalPolicy",
    "AuthSettings",
    "ChainSettings",
    "EnvironmentPolicy",
    "ExecSettings",
    "FrontSettings",
    "GatewaySettings",
    "LogSettings",
    "McpServerSettings",
    "ModelPrice",
    "ModelSettings",
    "ProviderSettings",
    "RedisSettings",
    "SandboxMode",
    "SandboxPolicy",
    "SandboxSettings",
    "Secret",
    "SessionDefaults",
    "Setting",
    "Table",
    "ToolSettings",
    "UpkeepSettings",
    "WebhookSettings",
    "WireSettings",
    "WorkerSettings",
    "WorkspaceSettings",
    "limits_of",
    "settings_of",
]
