"""The boundaries of one call: the task's sandbox policy with what was granted since."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.settings import EXTERNAL_SANDBOX, SessionFacts
from orchestrator.core.state import State
from orchestrator.sandbox.policy_paths import Confinement, Place, resolve
from orchestrator.tools.patch.plan import WritableRoots
from orchestrator.tools.site import ToolConfig


def confinement_of(state: State, config: ToolConfig, *, sandboxed: bool) -> Confinement:
    """The confinement of a call of the running task; full access if the call is to run unsandboxed."""
    assert state.task is not None
    settings = state.task.settings
    place = place_of(state.facts)
    cwd = Path(settings.cwd) if place is None else place.on_machine(Path(settings.cwd))
    if not sandboxed:
        return resolve({"mode": "danger-full-access"}, cwd, None, place=place)
    policy = dict(settings.sandbox_policy)
    if policy["mode"] == EXTERNAL_SANDBOX:
        # A session of before, or of another program: what confined it there is not here.
        policy = {"mode": "read-only"}
    if policy["mode"] == "workspace-write" and state.granted_roots:
        policy["writable_roots"] = [*(policy.get("writable_roots") or ()), *state.granted_roots]
    tmpdir = config.environ.get("TMPDIR")
    return resolve(
        policy,
        cwd,
        tmpdir,
        hidden=config.hidden,
        read_only=config.read_only,
        trusted=config.trusted(),
        unix_sockets=config.sandbox.unix_sockets,
        place=place,
    )


def roots_of(confinement: Confinement) -> WritableRoots | None:
    """The roots that a confined command, or a patch unasked, may write; None is anywhere."""
    if confinement.mode == "danger-full-access":
        return None
    kept = (*confinement.read_only_subpaths, *confinement.missing)
    if confinement.place is None:
        # A portable folder's own copy lies in a hidden one.
        kept = (*kept, *confinement.hidden)
    return WritableRoots(confinement.writable_roots, kept)


# ── places ────────────────────────────────────────────────────────────────────────────────────────
# The place of a portable session's folder, for tools: what commands call it, and where it is here.


def place_of(facts: SessionFacts) -> Place | None:
    """The place of a portable session's folder on this machine; None for a folder that is where it says."""
    portable = facts.portable
    if portable is None:
        return None
    return Place.of(Path(portable.root), facts.tree_id, facts.session_id, portable.name)


def on_machine(facts: SessionFacts, path: Path) -> Path:
    """The path on this machine of what the session calls `path`."""
    place = place_of(facts)
    return path if place is None else place.on_machine(path)
