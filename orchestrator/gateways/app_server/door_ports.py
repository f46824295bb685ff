"""Ports of the app-server: readers, clients, and new sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.broker.records import SessionHead
from orchestrator.config_keys import McpServerSettings, ModelSettings, SessionDefaults, ToolSettings
from orchestrator.core.birth import ForkedFrom
from orchestrator.core.client_tools import ClientTool
from orchestrator.core.frozen import record
from orchestrator.core.ids import TreeId
from orchestrator.core.sender import Via
from orchestrator.core.settings import TurnSettings
from orchestrator.gateways.client import Client
from orchestrator.gateways.openid_sign_in import SignIn
from orchestrator.gateways.pool_jobs import PoolJobs
from orchestrator.gateways.principals import Principal
from orchestrator.instructions.skills import Skills
from orchestrator.model.credentials import CredentialStore
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.protocol.wire import JsonValue
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.thread_log import Rollbacks

if TYPE_CHECKING:
    # What nobody asks for is not loaded.
    from orchestrator.rollouts.bundle_receipts import Receipt
    from orchestrator.rollouts.verify import Report
    from orchestrator.views.workspaces import FolderDiffs


@record
class NewThread:
    """The settings that a client names for a new session; all others are those of the gateway."""

    cwd: str | None = None
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """By the keys of the configuration file."""
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    """More of them, dotted or nested, among which a client may name some that nobody knows."""
    ephemeral: bool = False
    workspace: WorkspaceSource | None = None
    """The first content of a portable folder; None where the client does not choose: the settings do."""
    tools: tuple[ClientTool, ...] = ()
    """The tools that the client brings along, and the name under which it is asked."""
    client: str = ""


@record
class Born:
    """A new session, and what of its settings was not understood."""

    head: SessionHead
    settings: TurnSettings
    warnings: tuple[str, ...] = ()
    rollout_path: str = ""
    """The file that its rollout is to be written to."""
    portable: bool = False
    """Whether its folder is a copy: the path that its client named is none of this session."""


class BadSetting(Exception):
    """A setting of a new session that cannot be used; the message names it."""


@record
class ConfigWrite:
    """Changes of the settings' file, all or none."""

    edits: Sequence[tuple[tuple[str, ...], object]]
    """Keys by their parts, with their new values; None takes a key out."""
    file: str | None = None
    """The file that the client means; None: whichever it is."""
    version: str | None = None
    """The version that is to be there still; None: whichever it is."""


@record
class ConfigWritten:
    """The file as it is now."""

    file: Path
    version: str
    hidden: tuple[str, ...] = ()
    """Keys among those written that the gateway's command line sets otherwise."""


@record
class Saved:
    """The settings in force for new sessions now, and what the person's file says beside them."""

    offer: Offer
    profile: str | None = None
    """The chosen profile."""
    profiles: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    projects: Mapping[str, str] = field(default_factory=dict)
    """The folders that the person told a terminal to trust or not to: it asks no second time."""


@record
class Ports:
    """The deployment as the doors of a process use it."""

    found: LogSource
    client: Callable[[Principal, Via], Client]
    create: Callable[[Client, Principal, NewThread], Awaitable[Born]]
    """Makes a root session; raises `BadSetting`, `NotPermitted`."""
    fork: Callable[[Client, Principal, ForkedFrom, NewThread], Awaitable[Born]]
    """Makes a root session that goes on from a place in another one's log; raises the same."""
    delete: Callable[[Sequence[SessionHead], str], Awaitable[None]]
    """Deletes a tree, whose sessions were seen so, wherever its parts are; raises as `delete_everywhere`."""
    home: Path
    version: str
    now_ms: Callable[[], int]
    random_bytes: Callable[[int], bytes]
    offer: Offer
    """The settings in force for new sessions."""
    credentials: CredentialStore | None = None
    """Where the machine's user keeps a sign-in at model providers; None where nobody may sign in."""
    sign_in: SignIn | None = None
    """The sign-in at the issuer of the settings; None without one."""
    jobs: PoolJobs | None = None
    """The way to workers of the gateway's pool, for what belongs to no session."""
    write_settings: Callable[[ConfigWrite], Awaitable[ConfigWritten]] | None = None
    """Writes keys into the file of the machine's user; raises `BadSetting`."""
    read_settings: Callable[[], Awaitable[Saved]] | None = None
    """Reads the person's file as it is now; None where none is read."""
    rollbacks: Rollbacks = field(default_factory=Rollbacks)
    """The logs of which this process knows whether they take turns back."""
    unserved_s: float = 5.0
    """After so long a client is told that no worker has taken its words."""
    asks_auto_review: bool = False
    """Whether a client is asked that says a model reviews its requests: such a client may accept anything."""
    folder_diffs: Callable[[], FolderDiffs] | None = None
    """Compares snapshots of portable folders, for all who ask this process; made when first asked for."""
    verify: Callable[[TreeId], Awaitable[tuple[Sequence[SessionHead], Sequence[Report]]]] | None = None
    """Verifies all logs of a tree: its sessions as they were seen, and what was found."""
    receipt: Callable[[SessionHead], Awaitable[Receipt | None]] | None = None
    """The receipt of a session's log, from the register of its namespace; None where no register is named."""
    key_id: str = ""
    """The id of the key of chains; empty where they are not keyed."""
    server_id: str = ""
    """Names this process: another one after a restart."""
    features: Sequence[str] = ()
    """The areas of methods that are served, as `thread` is that of `thread/list`."""

    async def saved(self) -> Saved:
        """The settings in force for new sessions now."""
        return Saved(self.offer) if self.read_settings is None else await self.read_settings()


# ── offer ─────────────────────────────────────────────────────────────────────────────────────────
# The offer of a deployment to new sessions: its settings as a door may tell of them.
#
# The tables hold keys of providers; nothing here hands one on.


@record
class Offer:
    """The settings in force for new sessions, and the skills of this machine."""

    defaults: SessionDefaults
    models: ModelSettings
    tools: ToolSettings
    skills: Skills
    servers: Mapping[str, McpServerSettings] = field(default_factory=dict)
