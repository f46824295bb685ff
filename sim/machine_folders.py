"""The product's own work on portable folders, on a simulated machine: the runtime's ports of one worker.

`MachineFolders` and its `HostFolders` are the product's; simulated are the keeper's process
(`sim/keepers.py`), the store, where folders lie, and what a repository would bring along.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core.calls import MergeWork
from orchestrator.core.commands import (
    FolderCopied,
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotCopied,
    FolderNotMerged,
)
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import FolderSetup
from orchestrator.core.state import State
from orchestrator.folders import copy as folder_copy
from orchestrator.folders import stat_cache as folder_take
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import Bounds, Place
from orchestrator.instructions.skills import RecordedSkills
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.workspaces import copies, host_folders
from orchestrator.workspaces.claimed_folder import Held
from orchestrator.workspaces.copies import Copy, Deadlines, MachineConfig
from orchestrator.workspaces.host_folders import HostFolder, HostFolders
from orchestrator.workspaces.pack_keys import PackKeys
from orchestrator.workspaces.service import MachineFolders
from orchestrator.workspaces.stored_packs import PackName, Packs
from sim.double import EPOCH_S
from sim.folders import COPIED, RULES, SCRIPTED_COPY, UNTRUSTED, Folders
from sim.keepers import SimKeeper

SHARED = "shared"
"""The machine of folders that sessions work in as they are: every worker is there."""
SECONDS = 20.0
"""The bound of a piece of work, in whose time faults still come."""


class SimConfig(MachineConfig):
    """A machine whose room is the simulation's choice."""

    __slots__ = ("full",)
    full: Callable[[], bool]

    def unfit(self) -> str:
        return "too little room" if self.full() else ""

    def fault(self, portable: Any) -> str:
        return self.unfit()


def _config(root: Path, machine: str, trust_s: float, full: Callable[[], bool], **more: Any) -> SimConfig:
    settings = WorkspaceSettings.model_construct(
        **{**WorkspaceSettings().model_dump(), "root": root, "min_free": 0, "seconds": SECONDS}
    )
    config = SimConfig(settings, machine, trust_s, **more)
    object.__setattr__(config, "full", full)
    return config


class SimPacks(Packs):
    """The store of packs, which takes its time."""

    def __init__(self, folders: Folders, rng: Random, keys: PackKeys | None = None) -> None:
        super().__init__(folders.store.opened(), keys)
        self._rng = rng

    async def put(self, name: PackName, file: Path) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.05, 0.5, 3.0, 14.0)) * self._rng.random())
        await super().put(name, file)


class _Claims(Deadlines):
    """The product's, whose keepers know their claims."""

    async def keeper(self, place: Place, bounds: Bounds, claim: Claim) -> Keeper:
        keeper = await super().keeper(place, bounds, claim)
        assert isinstance(keeper, SimKeeper)
        keeper.claim = claim.claim_id
        return keeper


class SimFolders(MachineFolders):
    """The folders of one worker."""

    def __init__(
        self, folders: Folders, rng: Random, worker: str, clock: Callable[[], float], trust_s: float
    ) -> None:
        copies = folders.host_of(worker)
        self._folders, self._rng, self._worker = folders, rng, worker
        config = _config(folders.place / copies, copies, trust_s, lambda: copies in folders.full)
        self._keys = folders.keys.of(copies) if folders.keys is not None else None
        super().__init__(config, SimPacks(folders, rng, self._keys), _now_ms(folders), clock)
        self._deadlines = _Claims(clock, trust_s)
        self._hosts = SimHostFolders(folders, rng, trust_s, self._deadlines)

    def _prepare(self, copy: Copy, seen: Path) -> None:
        assert self._folders.root
        copy.prepare()
        copy.touch()
        copy.note_seen(seen)

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0, 4.0)) * self._rng.random())
        if self._folders.faulty and self._rng.random() < 0.15:
            self._folders.stops(self._worker)
            await asyncio.sleep(0.1)
        made = await super().make(state, claim)
        if isinstance(made, FolderFailed):
            self._is_failed(made)
        portable = state.facts.portable
        if isinstance(made, FolderMade) and made.fetched is not None and portable and portable.setup is None:
            return replace(made, warning=UNTRUSTED)
        return made

    def _is_failed(self, made: FolderFailed) -> None:
        """A folder is refused for a key, or a pack, only where that lacks; and it is said which."""
        folders, why = self._folders, made.reason
        if "workspace.key_file" in why:
            folders.saw("keyless")
            if folders.keys is None or (folders.keys.has_all(self.machine) and not folders.faulty):
                folders.broken("sealed", f"{self.machine} has all keys, and says: {why}")
        if "the store lacks" in why and not any(name in why for name in folders.lost_packs):
            folders.broken("packed", f"{self.machine} says: {why}")

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        held = self._held.get(claim.claim_id)
        before = held.copy.state() if held is not None else None
        super().recorded(state, claim, resting=resting)
        if held is not None and (now := held.copy.state()).kind == "clean" and now != before:
            copy = self._folders.copies[self.machine, str(claim.session)]
            self._folders.cleaned(claim.session, copy, now.snapshot)

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        told = await super().merge(state, claim, work)
        self._folders.is_told(claim.session, told)
        return told

    async def has(self, state: State) -> SnapshotId | None:
        found, unsaved = await super().has(state), state.workspace.unsaved
        here = unsaved is not None and unsaved.machine == self.machine
        # A later snapshot may have been kept of which the log was not told.
        if here and unsaved is not None and unsaved.snapshot is not None and found is None:
            self._folders.forgets(str(state.facts.session_id), unsaved.snapshot)
        return found

    async def instructions(self, state: State, folder: str) -> str | None:
        assert state.workspace.snapshot is not None, "a folder that nobody has made holds no instructions"
        return RULES

    async def skills(self, state: State, folder: str) -> RecordedSkills:
        return RecordedSkills()

    async def release(self, session: SessionId, claim: Claim) -> None:
        self._folders.let_go.add(claim.claim_id)
        await super().release(session, claim)


class SimHostFolders(HostFolders):
    """The folders that sessions of one worker work in as they are."""

    def __init__(self, folders: Folders, rng: Random, trust_s: float, claims: Deadlines) -> None:
        self._folders, self._rng = folders, rng
        config = _config(folders.place / SHARED / "root", SHARED, trust_s, bool, setup_of=self._setup_of)
        keys = folders.keys.of(SHARED) if folders.keys is not None else None
        super().__init__(config, SimPacks(folders, rng, keys), _now_ms(folders), claims)

    def _setup_of(self, top: Path) -> tuple[FolderSetup | None, str]:
        return (SCRIPTED_COPY.setup, "") if self._rng.random() < 0.5 else (None, UNTRUSTED)

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0)) * self._rng.random())
        return await super().copy(state, claim, call_id)

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        here = replace(state, facts=replace(state.facts, pool=f"host:{SHARED}"))
        judged = await super().judge(here, claim, work)
        if judged == "none":
            self._is_ended(state)
        return judged

    def recorded(self, state: State, claim: Claim) -> None:
        before = claim.claim_id in self._written
        super().recorded(state, claim)
        if before and claim.claim_id not in self._written:
            self._is_ended(state)

    async def _end_left(self, state: State, claim: Claim) -> None:
        await super()._end_left(state, claim)
        self._is_ended(state)

    def _is_ended(self, state: State) -> None:
        merged = {merged.snapshot for merged in state.workspace.merged.values()}
        self._folders.is_ended(state.facts.session_id, merged)

    @asynccontextmanager
    async def _kept(self, state: State, claim: Claim, top: Path, bounds: Bounds) -> AsyncIterator[Held]:
        here = self._folders.shared_by(state.facts.session_id)
        async with super()._kept(state, claim, here, bounds) as held:
            yield held


def _now_ms(folders: Folders) -> Callable[[], int]:
    return lambda: int((EPOCH_S + folders.loop.time()) * 1000)


def _host_folder(
    folder: Path,
    settings: WorkspaceSettings,
    home: Path | None,
    environ: Mapping[str, str],
    archive: Path | None = None,
) -> HostFolder:
    return HostFolder(Path("/sim"), ".", COPIED)


@contextmanager
def keeping(folders: Folders) -> Iterator[None]:
    """While a simulation runs, keepers are its own, and what a clock says of files counts nothing.

    A file's times are the kernel's, and not the seed's choice: with none each file is read each time.
    """
    keeper = type("Keeper", (SimKeeper,), {"folders": folders})
    with (
        patch.object(copies, "Keeper", keeper),
        patch.object(folder_copy, "clock_ns", lambda folder: 0),
        patch.object(folder_take, "MOST_PACKS", folders.most_packs),
        patch.object(host_folders, "host_folder", _host_folder),
        patch.object(host_folders, "commit_of", lambda top: ("", None)),
    ):
        yield
