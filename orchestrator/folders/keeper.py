"""A keeper: the confined process that does everything to one copy, for as long as a claim holds it.

Whatever is in the folder was written by a command, and whatever is in a pack may have been: neither is
read where the keys are. The process has an empty environment, no network, bounded memory, time and file
sizes, and writes nothing but its place. It holds the lock of the copy; it ends with the pipe of its
parent, and at the claim's deadline by a timer of the kernel's, whatever it is doing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from orchestrator.folders.records import (
    Bounds,
    Conflicted,
    Difference,
    Made,
    Merged,
    Place,
    Planned,
    SnapshotId,
    Taken,
    Unchanged,
)


class Keeper:
    """A copy's keeper. One piece of work at a time: others wait. Everything raises `FolderError`."""

    @classmethod
    async def start(cls, place: Place, bounds: Bounds, deadline_boottime: float) -> Self:
        """Starts the process and locks the copy; kind `busy` if another keeper has it."""
        raise NotImplementedError

    def extend(self, deadline_boottime: float) -> None:
        """Writes the claim's deadline, in seconds of CLOCK_BOOTTIME. From any thread; never blocks."""
        raise NotImplementedError

    async def take(self, parent: SnapshotId | None, at_ms: int) -> Taken | Unchanged:
        """Takes a snapshot of the folder, whose history is `parent`.

        The same parent again, because the last snapshot was never recorded, gives one that covers both.
        """
        raise NotImplementedError

    async def born(self, repository: Path | None, ref: str, at_ms: int) -> Taken:
        """Takes the first snapshot of a copy.

        With a repository (a `.git` folder, or a bare one) whose `ref` is a commit, the pack holds that
        commit too, and files that it tracks are taken even if they are ignored. Where the folder does
        not exist, the snapshot has the commit's tree; without a repository, it is empty.
        """
        raise NotImplementedError

    def settle(self, taken: Taken) -> None:
        """Removes an uploaded pack from the spool."""
        raise NotImplementedError

    async def adopt(self, packs: Sequence[Path], snapshot: SnapshotId) -> bool:
        """Whether the folder can go on as the clean copy of `snapshot` that it was left as; makes nothing."""
        raise NotImplementedError

    async def make(self, packs: Sequence[Path], snapshot: SnapshotId) -> Made:
        """Makes the folder of a snapshot beside the one that is there, and puts it in its place.

        `packs` are those since the last whole one, it first, in the order of their entries.
        """
        raise NotImplementedError

    async def plan_merge(
        self, base: SnapshotId, theirs: SnapshotId, packs: Sequence[Path]
    ) -> Planned | Conflicted:
        """Plans what brings the changes from `base` to `theirs` into the folder as it is now.

        `packs` are those that make `base` and `theirs`: both snapshots may need packs of their own.
        """
        raise NotImplementedError

    async def write_merge(
        self, base: SnapshotId, theirs: SnapshotId, packs: Sequence[Path], digest: str
    ) -> Merged | Conflicted:
        """Plans the merge again and writes it, whole, if its digest is still the one that was approved."""
        raise NotImplementedError

    async def diff(
        self, before: SnapshotId | None, after: SnapshotId, packs: Sequence[Path] = (), *, stat: bool = False
    ) -> Difference:
        """Differences of two snapshots; None is the empty folder."""
        raise NotImplementedError

    async def read_tree(
        self, snapshot: SnapshotId, paths: Sequence[str], packs: Sequence[Path] = ()
    ) -> Mapping[str, bytes]:
        """Contents of files of a snapshot, up to 1 MiB each; those that it lacks are left out."""
        raise NotImplementedError

    async def end(self) -> None:
        """Waits for the work that runs, keeps the index for the next claim, and ends the process."""
        raise NotImplementedError
