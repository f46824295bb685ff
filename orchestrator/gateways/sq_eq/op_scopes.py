"""The scope that each operation needs."""

from __future__ import annotations

from orchestrator.gateways.principals import Scope
from orchestrator.protocol import ops
from orchestrator.protocol.policy import DangerFullAccess, WorkspaceWrite

_LOOKS = (
    ops.GetHistoryEntryRequest,
    ops.GetPath,
    ops.ListCustomPrompts,
    ops.ListMcpTools,
    ops.ListModels,
    ops.ListSkills,
)
_DECISIONS = (
    ops.ExecApproval,
    ops.PatchApproval,
    ops.ResolveAskUserQuestion,
    ops.ResolveElicitation,
    ops.ResolvePlanApproval,
    ops.RunUserShellCommand,
    ops.UserInputAnswer,
)
"""Decisions of people, and what runs without one."""


def scope_of(op: ops.Op) -> Scope:
    """The least scope that may submit an operation."""
    if isinstance(op, _LOOKS):
        return Scope.READ
    if isinstance(op, _DECISIONS) or _loosens(op):
        return Scope.APPROVE
    return Scope.SUBMIT


def _loosens(op: ops.Op) -> bool:
    """Whether it lets commands do more than write into the session's folder without a network."""
    match getattr(op, "sandbox_policy", None):
        case DangerFullAccess():
            return True
        case WorkspaceWrite() as policy:
            return bool(policy.network_access or policy.writable_roots)
        case _:
            return False
