"""The input of the tools: the worker's configuration of them, and the session that a call belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from orchestrator.config_keys import SandboxSettings, ToolSettings
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import EXTERNAL_SANDBOX, SessionFacts
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.policy_paths import Confinement, Place, resolve
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.exec_policy import CommandRules
from orchestrator.tools.patch.plan import WritableRoots
from orchestrator.tools.subagents import Tree

AskPerson = Callable[[CallId, str, str], Awaitable[ElicitationAction]]
"""Puts a server's question in the middle of a call to the person: the call, the server, the words."""
DeltaSink = Callable[[JsonObject], None]
"""Takes an event, as it is written, that goes to the EQ alone."""


def _nowhere(message: JsonObject) -> None:
    """Shows nothing."""


_NO_SESSION, _NO_TREE = SessionId(""), TreeId("")


@record
class ToolConfig:
    """The worker's configuration of the tools: its sandbox support, and the environment of commands."""

    support: SandboxSupport
    environ: Mapping[str, str]
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    tools: ToolSettings = field(default_factory=ToolSettings)
    hidden: tuple[Path, ...] = ()
    """Paths of Dendro itself that no confined command may reach."""
    rules: CommandRules = field(default_factory=CommandRules)
    """The owner's rules about commands."""
    read_only: tuple[Path, ...] = ()
    """Files that no confined command may write, wherever they lie: the configuration in force."""
    trusted: Callable[[], Sequence[Path]] = tuple
    """Tells the places where a person has trusted a `dendro.toml`: none may come there again unasked."""


@record
class CallSite:
    """The place and the session for which a call is assessed or run."""

    claim: str
    """The supervisor's name for the right to run the call."""
    state: State
    deltas: DeltaSink
    agents: Tree | None = None
    """The tree in which calls of agents look; None where there is no tree."""
    seq: int = 0
    head: str = ""
    """The chain's head at `seq`, up to which the session's log is written."""
    session: SessionId = _NO_SESSION
    tree: TreeId = _NO_TREE
    lasting_deltas: DeltaSink = _nowhere
    """Shows what the call leaves running, also behind the end of its task."""
    ask: AskPerson | None = None
    """None where nobody can be asked."""


# ── confinement ───────────────────────────────────────────────────────────────────────────────────
# The boundaries of one call: the task's sandbox policy with what was granted since.


def confinement_of(
    state: State, config: ToolConfig, *, sandboxed: bool, earlier: bool = False
) -> Confinement:
    """The confinement of a call of the running task; full access if the call is to run unsandboxed.

    `earlier`: the widest that an earlier turn may have had, where this one only reads.
    """
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
    if earlier and policy["mode"] == "read-only":
        policy = {"mode": "workspace-write"}
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
