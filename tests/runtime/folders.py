"""Portable folders that do what a test says, and remember what was asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.commands import (
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotMerged,
    FolderUnsaved,
)
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.ids import SessionId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.state import State
from orchestrator.instructions.skills import RecordedSkills
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.runtime.ports import NoFolders
from tests.runtime.connections import Gate


class ScriptedFolders(NoFolders):
    """The folders of one machine; each writing call is one more change of its session's folder."""

    machine = "m1"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        """Whether the store is."""
        self.lacks = ""
        """Why it can make none."""
        self.fails: list[FolderFailed] = []
        self.making: asyncio.Event | None = None
        """The signal that making a folder waits for."""
        self.began_making = asyncio.Event()
        self.unmaking: Gate | None = None
        """The place where a making that is stopped waits before it ends."""
        self.stopping: Gate | None = None
        """The place where it waits before it tells what stopped calls have changed."""
        self.tried = asyncio.Event()
        """Set when the store was tried without success."""
        self.files: dict[str, bytes] = {}
        """The files that people may name."""
        self.found = RecordedSkills()
        self._last: SnapshotId | None = None
        self._written = 0
        self._changes = 0

    async def unfit(self) -> str:
        return self.lacks

    async def has(self, state: State) -> SnapshotId | None:
        self.asked.append("has")
        unsaved = state.workspace.unsaved
        return unsaved.snapshot if unsaved is not None and unsaved.machine == self.machine else None

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        self.asked.append("make")
        self.began_making.set()
        if self.making is not None:
            await self._made()
        self._last = state.workspace.snapshot
        if self.fails:
            return self.fails.pop(0)
        return FolderMade(self.machine, state.workspace.standing, anew=state.workspace.machine == "")

    async def _made(self) -> None:
        assert self.making is not None
        try:
            await self.making.wait()
        except asyncio.CancelledError:
            if self.unmaking is not None:
                await self.unmaking.wait()
            raise

    async def writing(self, state: State, claim: Claim) -> None:
        self.asked.append("writing")
        self._written += 1

    def writes(self) -> None:
        """A process of the session writes to the folder: no call does."""
        self._written += 1

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> WorkspaceSaved | FolderUnsaved | None:
        self.asked.append(f"changed {','.join(call_ids)}" + (f" within {within_s:g}" if within_s else ""))
        if within_s is not None and self.stopping is not None:
            await self.stopping.wait()
        if not self._written:
            return None
        if self.away:
            self.tried.set()
            return FolderUnsaved(
                self.machine, "away", tuple(call_ids), at_ms, SnapshotId(f"u{self._written}")
            )
        self._written, self._changes = 0, self._changes + 1
        parent, self._last = self._last, SnapshotId(f"s{self._changes}")
        pack = Pack(f"{self._changes}.pack", "", 1, whole=parent is None)
        return WorkspaceSaved(self._last, parent, pack, FileCounts(1, 0, 0), ("'f'",), tuple(call_ids), at_ms)

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        self.asked.append(f"merge {work.base}..{work.snapshot}")
        return FolderMerged(FileCounts(1, 0, 0), ("'theirs'",))

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        self.asked.append(f"recorded {state.workspace.standing}{' resting' if resting else ''}")

    async def instructions(self, state: State, folder: str) -> str | None:
        return "from the snapshot"

    async def read(self, state: State, paths: Sequence[str], most: int) -> Mapping[str, bytes | str]:
        self.asked.append(f"read {' '.join(paths)}")
        return {path: self.files.get(path, "it is not there") for path in paths}

    async def skills(self, state: State, folder: str) -> RecordedSkills:
        self.asked.append(f"skills {folder}")
        return self.found

    async def release(self, session: SessionId, claim: Claim) -> None:
        self.asked.append("release")
