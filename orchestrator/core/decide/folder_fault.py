"""The settings that a portable folder does not go with."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from orchestrator.core.state import State
from orchestrator.protocol import ops
from orchestrator.protocol.policy import SandboxPolicy, WorkspaceWrite

SETTLED = (
    "workspace: a session's folder is settled when the session is made; begin a new session at a gateway "
    "with it, or by `dendro run --portable`"
)


def folder_fault(state: State, op: ops.Op) -> str | None:
    """The reason why an operation's settings cannot be those of the session's folder; None if they can.

    Commands of a portable session see its folder and a `/tmp` of its own: elsewhere nothing is recorded.
    """
    match op:
        case ops.ConfigureSession(workspace=named) if named is not None:
            return SETTLED
        case ops.UserTurn() | ops.OverrideTurnContext() | ops.ConfigureSession():
            return _fault(state, op.cwd, op.sandbox_policy)
        case ops.UserInput(overrides=ops.OverrideTurnContext() as changed):
            return _fault(state, changed.cwd, changed.sandbox_policy)
        case _:
            return None


def _fault(state: State, cwd: str | None, policy: SandboxPolicy | None) -> str | None:
    portable = state.facts.portable
    if portable is None:
        return None
    folder = portable.path(state.facts.tree_id)
    roots: Sequence[str] = policy.writable_roots if isinstance(policy, WorkspaceWrite) else ()
    named = [posixpath.join(state.settings.cwd, cwd)] if cwd else []
    for name, paths in (("cwd", named), ("sandbox_policy.writable_roots", roots)):
        for path in paths:
            if not _is_in(path, folder):
                return (
                    f"{name}: {path} is outside of {folder}, and the session's folder is portable: what is "
                    "elsewhere is not recorded"
                )
    return None


def _is_in(path: str, folder: str) -> bool:
    named = posixpath.normpath(posixpath.join(folder, path))
    return named == folder or named.startswith(f"{folder}/")
