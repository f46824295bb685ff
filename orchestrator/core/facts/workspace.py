"""Facts about the folder of a portable session."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.core.packs import CHANGE, COUNTS, PACK, PACKS, FileCounts, FolderChange, Pack
from orchestrator.core.record_json import ALWAYS, EMPTY, LIST
from orchestrator.core.workspace import COPIED, OFFER, Copied, Offer, SetupOutcome
from orchestrator.protocol.ids import CallId, SnapshotId


@record
class WorkspaceBegun:
    """The content that the session begins with, and the packs that it is made from."""

    kind: ClassVar[str] = "workspace_base"
    of: ClassVar[Literal["workspace"]] = "workspace"
    snapshot: SnapshotId
    packs: tuple[Pack, ...] = field(metadata=PACKS)
    omitted: tuple[str, ...] = field(default=(), metadata=LIST)
    """Files that were left out of it, quoted."""


@record
class WorkspaceMade:
    """The holder of a claim has the folder on its machine; `anew`: not by a copy that was there."""

    kind: ClassVar[str] = "workspace_made"
    of: ClassVar[Literal["workspace"]] = "workspace"
    epoch: int
    machine: str
    anew: bool = False


@record
class WorkspaceNotMade:
    """A machine could not make the folder; another is to try."""

    kind: ClassVar[str] = "workspace_not_made"
    of: ClassVar[Literal["workspace"]] = "workspace"
    machine: str
    reason: str


@record
class WorkspaceSaved:
    """The folder has changed; the store has all that its snapshot is made from."""

    kind: ClassVar[str] = "workspace"
    of: ClassVar[Literal["workspace"]] = "workspace"
    snapshot: SnapshotId
    parent: SnapshotId | None = field(metadata=EMPTY)
    """The snapshot before it; None for the first."""
    pack: Pack = field(metadata=PACK)
    files: FileCounts = field(metadata=COUNTS)
    names: tuple[str, ...] = field(metadata=LIST)
    """Paths that changed, quoted, as many as an entry names."""
    call_ids: tuple[CallId, ...] = field(metadata=LIST)
    """The calls that have ended since the snapshot before: those that may have changed it."""
    at_ms: int
    """The time in the snapshot itself, by the holder's clock."""
    live: bool = False
    """Processes were running while it was taken."""
    change: FolderChange | None = field(default=None, metadata=CHANGE)
    """The difference to what the session began with."""
    omitted: tuple[str, ...] = field(default=(), metadata=LIST)
    """Files that are left out of it, quoted, with their reason."""
    setup: bool = False
    """The set-up has changed it, before any call did."""


@record
class WorkspaceSetupBegun:
    """The session's script is to run in the folder, under this claim."""

    kind: ClassVar[str] = "workspace_setup_begun"
    of: ClassVar[Literal["workspace"]] = "workspace"
    epoch: int


@record
class WorkspaceSetupEnded:
    """The set-up that was begun has ended; the folder is ready for calls if it is `done`."""

    kind: ClassVar[str] = "workspace_setup_ended"
    of: ClassVar[Literal["workspace"]] = "workspace"
    result: SetupOutcome


@record
class WorkspaceUnsaved:
    """The folder may have changed, and the store has not got its snapshot."""

    kind: ClassVar[str] = "workspace_unsaved"
    of: ClassVar[Literal["workspace"]] = "workspace"
    since_ms: int
    machine: str
    reason: str
    call_ids: tuple[CallId, ...] = field(metadata=LIST)
    snapshot: SnapshotId | None = field(default=None, metadata=EMPTY)
    blocked: bool = False
    trying: bool = field(default=True, metadata=ALWAYS)
    at_ms: int = 0


@record
class WorkspaceTried:
    """The store is to be tried again with the unsaved folder."""

    kind: ClassVar[str] = "workspace_tried"
    of: ClassVar[Literal["workspace"]] = "workspace"


@record
class WorkspaceSettled:
    """The folder is as the store has it: nothing of it is unsaved any more."""

    kind: ClassVar[str] = "workspace_settled"
    of: ClassVar[Literal["workspace"]] = "workspace"


@record
class WorkspaceRolledBack:
    """The folder goes on from the snapshot `to`; what the `lost` calls did to it is gone."""

    kind: ClassVar[str] = "workspace_rolled_back"
    of: ClassVar[Literal["workspace"]] = "workspace"
    to: SnapshotId | None = field(metadata=EMPTY)
    lost: tuple[CallId, ...] = field(metadata=LIST)
    by: str = ""
    """The person who gave unsaved changes up; empty if they were lost."""


@record
class WorkspaceMerged:
    """A child's work was merged into the folder: its changes between `base` and `snapshot`."""

    kind: ClassVar[str] = "workspace_merged"
    of: ClassVar[Literal["workspace"]] = "workspace"
    call_id: CallId
    agent_id: AgentId
    base: SnapshotId | None = field(metadata=EMPTY)
    snapshot: SnapshotId
    packs: tuple[Pack, ...] = field(metadata=PACKS)


@record
class WorkspaceCopied:
    """A folder of one machine was copied for agents that are to be made; the store has the copy."""

    kind: ClassVar[str] = "workspace_copied"
    of: ClassVar[Literal["workspace"]] = "workspace"
    call_id: CallId
    copied: Copied = field(metadata=COPIED)


@record
class WorkspaceGiven:
    """An agent begins with a copy of a folder of one machine."""

    kind: ClassVar[str] = "workspace_given"
    of: ClassVar[Literal["workspace"]] = "workspace"
    agent_id: AgentId
    snapshot: SnapshotId
    folder: str


@record
class WorkspaceOffered:
    """A child came to rest, with this folder."""

    kind: ClassVar[str] = "workspace_offered"
    of: ClassVar[Literal["workspace"]] = "workspace"
    agent_id: AgentId
    offer: Offer = field(metadata=OFFER)


WorkspaceFact: TypeAlias = (
    WorkspaceBegun
    | WorkspaceMade
    | WorkspaceNotMade
    | WorkspaceSaved
    | WorkspaceSetupBegun
    | WorkspaceSetupEnded
    | WorkspaceUnsaved
    | WorkspaceTried
    | WorkspaceSettled
    | WorkspaceRolledBack
    | WorkspaceMerged
    | WorkspaceCopied
    | WorkspaceGiven
    | WorkspaceOffered
)
