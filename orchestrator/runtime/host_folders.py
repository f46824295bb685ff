"""The port to folders of this machine whose agents work in copies: a copy is taken, and a merge comes back.

The folder is the person's own, and the session works in it as it is: it is neither made nor recorded. Nothing
here decides: each answer is a command, or becomes the end of the call that it belongs to.
"""

from __future__ import annotations

from typing import Protocol

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.folder_commands import FolderCopied, FolderMerged, FolderNotCopied, FolderNotMerged
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId

NOT_COPIED = (
    "this worker copies no folders. Set `workspace.root` and `upkeep.archive_url` for all workers of the "
    "session's pool and start them again, or leave `workspace` out: then the agent works in your folder"
)


class HostFolders(Protocol):
    """The folders of one worker's machine that sessions work in as they are."""

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        """Takes a snapshot of the task's folder as it is now; the store has its pack when this returns.

        Writes nothing to the folder. It may be cancelled, and asked again.
        """
        ...

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        """Brings a child's changes into the folder: all of them, or none where any conflicts.

        It can be taken back until `recorded` has seen it in the log. Cancelled, nothing of it is there when
        this raises.
        """
        ...

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        """Judges the merge of a lost worker: `none` when nothing of it is there (any more), or `in_doubt`."""
        ...

    def recorded(self, state: State, claim: Claim) -> None:
        """Notes that the log has what was merged under this claim: it is not taken back any more."""
        ...


class NoHostFolders:
    """A worker that copies no folders, and can say so."""

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        return FolderNotCopied(NOT_COPIED)

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        return FolderNotMerged(NOT_COPIED)

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        return "in_doubt"

    def recorded(self, state: State, claim: Claim) -> None:
        return None
