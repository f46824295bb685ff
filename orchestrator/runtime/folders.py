"""The port to folders of sessions: what is made, looked at, stored and merged of them, on a worker's machine.

A portable folder belongs to one session, and only the holder of the session's claim writes it. Any other
session works in a folder of the machine as it is, the person's own: that is neither made nor recorded, but it
is copied for agents, and their changes are merged into it. Nothing here decides: each answer is a command,
which the runner decides in the step that it belongs to, or becomes the end of the call that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.folder_commands import (
    FolderCopied,
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotCopied,
    FolderNotMerged,
    FolderUnsaved,
)
from orchestrator.core.ids import SessionId
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId, SnapshotId

NOT_SERVED = (
    "this worker makes no folders, and the session's is one that any worker makes. Set `workspace.root` and "
    "`archive.url` for all workers of the session's pool, start them again, and send the input again"
)


NOT_COPIED = (
    "this worker copies no folders. Set `workspace.root` and `upkeep.archive_url` for all workers of the "
    "session's pool and start them again, or leave `workspace` out: then the agent works in your folder"
)


class Folders(Protocol):
    """The folders of one worker's machine."""

    @property
    def machine(self) -> str:
        """The machine's name, as entries and people are told it."""
        ...

    async def unfit(self) -> str:
        """The reason why no folder can be made on this machine now, with the remedy; empty if one can."""
        ...

    async def has(self, state: State) -> SnapshotId | None:
        """The snapshot of the session's unsaved changes, if this machine can make it."""
        ...

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        """Makes the folder at `state.workspace.standing`, or finds it; what is there beside it is discarded.

        Waits for a store that is away, for a time. Cancelling it leaves the folder as it was, or not there.
        """
        ...

    async def writing(self, state: State, claim: Claim) -> None:
        """Notes, before a call that may write begins, that the copy is none of a known snapshot any more.

        Waits for a snapshot that is being taken: it holds nothing of the call.
        """
        ...

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> WorkspaceSaved | FolderUnsaved | None:
        """Takes a snapshot of the folder and stores it; None if nothing has changed since the last one.

        Its parent is the last snapshot that this claim stored, also if the log does not have it yet; where
        nothing else has changed, the same `at_ms` gives the same snapshot. After
        `within_s` the answer is `FolderUnsaved`, while the upload may go on; the next question finds what
        came of it. It may be cancelled and asked again. Those who ask at once are answered one by one. It
        raises for nothing that a folder, a disk or a store can do.
        """
        ...

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        """Brings a child's changes into the folder: all of them, or none where any conflicts.

        Cancelled, it is ended, whole or not begun, when this raises. In a folder of the machine it can be
        taken back until `recorded` has seen it in the log, and cancelled, nothing of it is there.
        """
        ...

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        """Takes a snapshot of a folder of the machine as it is now; its pack is stored when this returns.

        Writes nothing to the folder. It may be cancelled, and asked again.
        """
        ...

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        """Judges the merge of a lost worker into a folder of the machine.

        `none` when nothing of it is there (any more), or `in_doubt`.
        """
        ...

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        """Notes that the log has the folder's state, and what was merged under this claim.

        `resting`: nothing that may write runs.
        """
        ...

    async def instructions(self, state: State, folder: str) -> str | None:
        """The instructions for a folder that the model has not been told, read from the snapshot's tree."""
        ...

    async def release(self, session: SessionId, claim: Claim) -> None:
        """Lets go of the folder: nothing of this claim touches it when this returns."""
        ...


class NoFolders:
    """A worker that makes and copies no folders: it can say so, and give claims of portable sessions back."""

    machine = ""

    async def unfit(self) -> str:
        return NOT_SERVED

    async def has(self, state: State) -> SnapshotId | None:
        return None

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        return FolderFailed("", NOT_SERVED, elsewhere=True)

    async def writing(self, state: State, claim: Claim) -> None:
        return None

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> WorkspaceSaved | FolderUnsaved | None:
        return None

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        return FolderNotMerged(NOT_COPIED if state.facts.portable is None else NOT_SERVED)

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        return FolderNotCopied(NOT_COPIED)

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        return "in_doubt"

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        return None

    async def instructions(self, state: State, folder: str) -> str | None:
        return None

    async def release(self, session: SessionId, claim: Claim) -> None:
        return None
