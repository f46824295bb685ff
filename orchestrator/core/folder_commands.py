"""Commands about the folder of a portable session: what its holder found, made and saved."""

from __future__ import annotations

from orchestrator.core.frozen import record
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.workspace import Copied, SetupOutcome
from orchestrator.protocol.ids import CallId, SnapshotId


@record
class FolderMade:
    """The folder is on the holder's machine, at `snapshot` (None: it is empty)."""

    machine: str
    snapshot: SnapshotId | None
    anew: bool = False
    """It was built; else a copy was there that is known to be clean."""
    fetched: Pack | None = None
    """For the first content of a folder that comes from elsewhere: its pack, which the store has."""
    omitted: tuple[str, ...] = ()
    """For the first content: files that were left out, quoted."""
    warning: str = ""
    """For the first content: what people are to know of it."""


@record
class FolderFailed:
    """The folder could not be made on this machine; `reason` says why, and what to do about it."""

    machine: str
    reason: str
    elsewhere: bool = False
    """Another machine may well do it: the claim is given back, a few times."""


@record
class FolderUnsaved:
    """The folder may have changed, and its snapshot is not in the store; `reason` says why."""

    machine: str
    reason: str
    call_ids: tuple[CallId, ...]
    at_ms: int
    snapshot: SnapshotId | None = None
    """The snapshot on this machine; None if none could be taken."""
    blocked: bool = False
    """The disk is full."""
    trying: bool = True
    """Whether the store is tried again under this claim."""


@record
class FolderSettled:
    """The folder is at the last snapshot that the store has: nothing of it is unsaved any more."""


@record
class FolderMerged:
    """A child's changes are in the folder, all of them."""

    files: FileCounts
    names: tuple[str, ...]


@record
class FolderNotMerged:
    """Nothing of a child's changes was written; `reason` says why, and each conflict its path."""

    reason: str
    conflicts: tuple[str, ...] = ()
    partly: bool = False
    """A part may be written all the same: the machine could not take it back."""


@record
class SetupBegins:
    """The worker is ready to run the set-up that is owed."""


@record
class SetupEnded:
    """The set-up has ended, and no process of it is left; `stopped`: it was not let end by itself."""

    outcome: SetupOutcome
    seconds: float = 0.0
    message: str = ""
    """For one that failed: how, with the end of its output."""


@record
class FolderCopied:
    """A folder of one machine was copied for the agents of a response; the store has the copy."""

    call_id: CallId
    copied: Copied
    warning: str = ""
    """A word to people about the copy."""


@record
class FolderNotCopied:
    """No copy of the folder was taken; `reason` says why, and what to do about it."""

    reason: str


FolderCommand = (
    FolderMade | FolderFailed | FolderUnsaved | FolderSettled | FolderCopied | SetupBegins | SetupEnded
)
