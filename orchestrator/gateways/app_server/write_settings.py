"""Settings of sessions as JSON of the app-server protocol, and back."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.settings import TurnSettings
from orchestrator.gateways.app_server.errors import bad_params
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

SANDBOX_TYPES: Mapping[str, str] = {
    "read-only": "readOnly",
    "workspace-write": "workspaceWrite",
    "danger-full-access": "dangerFullAccess",
}
_MODES = {type: mode for mode, type in SANDBOX_TYPES.items()}
_ROOTS = {
    "writable_roots": "writableRoots",
    "network_access": "networkAccess",
    "exclude_tmpdir_env_var": "excludeTmpdirEnvVar",
    "exclude_slash_tmp": "excludeSlashTmp",
}
USER = "user"
"""The reviewer of approvals: there is no model that does."""


def sandbox_json(policy: JsonMapping) -> JsonObject:
    """A `SandboxPolicy`."""
    type = SANDBOX_TYPES.get(str(policy["mode"]), "readOnly")
    if type == "dangerFullAccess":
        return {"type": type}
    if type == "readOnly":
        return {"type": type, "networkAccess": False}
    flags = {name: bool(policy.get(ours)) for ours, name in _ROOTS.items() if ours != "writable_roots"}
    return {"type": type, "writableRoots": list(policy.get("writable_roots") or ()), **flags}


def sandbox_of(policy: JsonMapping) -> JsonObject:
    """The policy of a client in our own form; raises `RpcError`."""
    mode = _MODES.get(str(policy.get("type")))
    if mode is None:
        raise bad_params(
            f"sandboxPolicy.type: {policy.get('type')!r} is not offered: {', '.join(SANDBOX_TYPES.values())}"
        )
    if mode != "workspace-write":
        return {"mode": mode}
    return {"mode": mode, **{ours: policy[name] for ours, name in _ROOTS.items() if name in policy}}


def approval_json(policy: str) -> str:
    """An `AskForApproval`: newer clients do not know `on-failure`, which asks when `on-request` may."""
    return "on-request" if policy == "on-failure" else policy


def session_json(settings: TurnSettings) -> JsonObject:
    """The settings of a session as the answers to start, resume and fork carry them, beside the thread."""
    return {
        "model": settings.model,
        "modelProvider": settings.model_provider,
        "serviceTier": None,
        "disabledPluginIds": [],
        "cwd": settings.cwd,
        "runtimeWorkspaceRoots": [settings.cwd],
        "instructionSources": [],
        "approvalPolicy": approval_json(settings.approval_policy),
        "approvalsReviewer": USER,
        "sandbox": sandbox_json(settings.sandbox_policy),
        "activePermissionProfile": None,
        "reasoningEffort": settings.effort,
        "multiAgentMode": "explicitRequestOnly",
    }


def settings_json(settings: TurnSettings) -> JsonObject:
    """A `ThreadSettings`."""
    mode = settings.collaboration_mode or {}
    return {
        "cwd": settings.cwd,
        "approvalPolicy": approval_json(settings.approval_policy),
        "approvalsReviewer": USER,
        "sandboxPolicy": sandbox_json(settings.sandbox_policy),
        "activePermissionProfile": None,
        "model": settings.model,
        "modelProvider": settings.model_provider,
        "serviceTier": None,
        "disabledPluginIds": [],
        "effort": settings.effort,
        "summary": settings.summary,
        "collaborationMode": {"mode": _mode_json(mode.get("mode")), "settings": _mode_settings(settings)},
        "multiAgentMode": "explicitRequestOnly",
        "personality": settings.personality,
    }


def _mode_json(mode: JsonValue) -> str:
    return "plan" if mode == "plan" else "default"


def _mode_settings(settings: TurnSettings) -> JsonObject:
    return {"model": settings.model, "reasoning_effort": settings.effort, "developer_instructions": None}
