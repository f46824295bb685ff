"""The input of the tools: the worker's configuration of them, and the session that a call belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tables import SandboxSettings, ToolSettings
from orchestrator.tools.exec_policy import CommandRules
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
