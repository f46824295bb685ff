"""Folders of a machine that sessions of a simulation work in as they are, and the runtime's port over them.

One such folder is a list of marks that every worker reaches, as on a mount. A merge adds marks, and remembers
them until the log has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.folder_commands import FolderCopied, FolderMerged, FolderNotCopied, FolderNotMerged
from orchestrator.core.packs import FileCounts
from orchestrator.core.state import State
from orchestrator.core.workspace import Copied
from orchestrator.protocol.ids import CallId
from orchestrator.rollouts.objects import ArchiveUnavailable
from sim.folders import COPIED, SCRIPTED_COPY, UNTRUSTED, Folders
from sim.loop import SimLoop


class SimHostFolders:
    """The port of one worker."""

    def __init__(
        self, loop: SimLoop, rng: Random, folders: Folders, trusted_until_s: Callable[[str], float]
    ) -> None:
        self._loop, self._rng, self._folders = loop, rng, folders
        self._trusted_until_s = trusted_until_s

    def _permits(self, claim: Claim) -> bool:
        return self._loop.time() < self._trusted_until_s(claim.claim_id)

    async def _works(self) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0, 4.0)) * self._rng.random())

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        await self._works()
        if not self._permits(claim):
            return FolderNotCopied("the claim is over")
        self._end_left(state)
        content = tuple(self._folders.shared.setdefault(claim.session, []))
        snapshot = self._folders.taken(content, None, self._rng.getrandbits(32))
        await self._works()
        try:
            pack = self._folders.put(state, claim, content, whole=True)
        except ArchiveUnavailable as error:
            return FolderNotCopied(str(error))
        scripted = int(snapshot[0], 16) % 2 == 0
        portable = SCRIPTED_COPY if scripted else COPIED
        copied = Copied("/sim", state.in_force.cwd, ".", 0, portable, snapshot, pack)
        return FolderCopied(call_id, copied, "" if scripted else UNTRUSTED)

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        await self._works()
        if not self._permits(claim):
            return FolderNotMerged("the claim is over")
        if self._folders.faulty and self._rng.random() < 0.2:
            return FolderNotMerged("both of you have changed the same places")
        self._end_left(state)
        shared = self._folders.shared.setdefault(claim.session, [])
        base, theirs = self._folders.contents[work.base], self._folders.contents[work.snapshot]
        news = [mark for mark in theirs if mark not in base and mark not in shared]
        shared += news
        self._folders.unsettled[claim.session] = (work, news)
        try:
            await self._works()
        except asyncio.CancelledError:
            self._end_left(state)
            raise
        return FolderMerged(FileCounts(0, len(news), 0), ())

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        self._end_left(state)
        return "none"

    def recorded(self, state: State, claim: Claim) -> None:
        left = self._folders.unsettled.get(claim.session)
        if left is not None and _is_recorded(state, left[0]):
            del self._folders.unsettled[claim.session]

    def _end_left(self, state: State) -> None:
        """Takes the last merge back, unless the log has it."""
        session = state.facts.session_id
        left = self._folders.unsettled.pop(session, None)
        if left is not None and not _is_recorded(state, left[0]):
            shared = self._folders.shared[session]
            shared[:] = [mark for mark in shared if mark not in left[1]]


def _is_recorded(state: State, work: MergeWork) -> bool:
    merged = state.workspace.merged.get(str(work.agent_id))
    return merged is not None and merged.snapshot == work.snapshot
