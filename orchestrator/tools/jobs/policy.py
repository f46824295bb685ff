"""The policy of a job: never more than the worker's own sandbox policy gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.tables import SANDBOX_MODES, SandboxPolicy

FULL_ACCESS = SANDBOX_MODES[-1]
UNCHOSEN = "workspace-write"
"""The most that a worker gives whose owner has chosen no mode."""


class JobRefused(Exception):
    """A job that this worker may not do, or cannot; the message is for the asker."""


def permitted(asked: Mapping[str, Any] | None, own: SandboxPolicy, cwd: Path) -> dict[str, Any]:
    """The policy for a job; raises `JobRefused` where it asks for more than the worker gives."""
    most = own.mode if own.chosen else UNCHOSEN
    if asked is None:
        return {**own.wire(), "mode": most}
    # A sandbox outside of Dendro is where its session is, and that is not here.
    mode = asked["mode"] if asked["mode"] in SANDBOX_MODES else SANDBOX_MODES[0]
    if SANDBOX_MODES.index(mode) > SANDBOX_MODES.index(most):
        raise JobRefused(f"it asks for {mode}, and this worker gives {most} at most: set sandbox_mode there")
    if most == FULL_ACCESS or mode == SANDBOX_MODES[0]:
        return {**asked, "mode": mode}
    if asked.get("network_access") and not own.network_access:
        key = "sandbox_workspace_write.network_access"
        raise JobRefused(f"it asks for the network, which this worker does not give: set {key} there")
    for root in asked.get("writable_roots") or ():
        if not _lies_in(Path(cwd, root), (cwd, *own.writable_roots)):
            key = "sandbox_workspace_write.writable_roots"
            raise JobRefused(
                f"it asks to write below {root}, which this worker does not give: set {key} there"
            )
    return {**asked, "mode": mode}


def _lies_in(path: Path, roots: tuple[Path, ...]) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(root.resolve()) for root in roots)
