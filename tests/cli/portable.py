"""Sessions whose logs name snapshots of real folders, planted with their packs without any worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core import facts as f
from orchestrator.core.birth import Birth, first_entries
from orchestrator.core.entries import Entry, fact
from orchestrator.core.evolve import fold
from orchestrator.core.ids import SessionId
from orchestrator.core.packs import FileCounts, FolderChange, Pack
from orchestrator.core.settings import PortableFolder, SessionFacts
from orchestrator.core.state import State
from orchestrator.folders.outcomes import Taken
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.imports import ImportPlan, store
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.open_deployment import opened
from orchestrator.workspaces.stored_packs import PackName
from tests.cli.machine import Machine
from tests.folders.workshop import AT_MS, Bench, Content
from tests.rollouts.deployments import NOW_MS, SETTINGS, new_facts

UNSAVED = fact(
    f.WorkspaceUnsaved(NOW_MS, "build-3", "the store is away", (CallId("c9"),), SnapshotId("9" * 40))
)


@dataclass
class PortableLog:
    """The log of a session to be, its folder, and what is to go to the store."""

    bench: Bench
    entries: list[Entry] = field(default_factory=list)
    change: FolderChange | None = None
    _facts: SessionFacts = field(
        default_factory=lambda: new_facts(portable=PortableFolder("/srv/workspaces", "repo"))
    )
    _packs: list[tuple[PackName, Path]] = field(default_factory=list)

    @property
    def session(self) -> SessionId:
        return self._facts.session_id

    @property
    def first(self) -> int:
        """The number of entries before those that are added here."""
        return len(self._first())

    def _first(self) -> tuple[Entry, ...]:
        return tuple(first_entries(self._birth))

    @property
    def _birth(self) -> Birth:
        return Birth(self._facts, SETTINGS, "0", NOW_MS)

    def born(self, files: Mapping[str | bytes, Content], repository: Path | None = None) -> int:
        """The folder that the session begins with; the number of its entry."""
        self.bench.write(files)
        taken = self.bench.born(repository)
        return self.add(fact(f.WorkspaceBegun(SnapshotId(taken.snapshot), (self._pack(taken),))))

    def saved(self, files: Mapping[str | bytes, Content] | None = None, *gone: str) -> int:
        """A call that wrote and removed these; the number of its snapshot's entry."""
        for name in [*gone, *(files or {})]:
            self.bench.folder.joinpath(os.fsdecode(name)).unlink(missing_ok=True)
        self.bench.write(files or {})
        taken = self.bench.taken()
        counts = FileCounts(taken.counts.added, taken.counts.modified, taken.counts.deleted)
        assert taken.parent is not None
        saved = f.WorkspaceSaved(
            SnapshotId(taken.snapshot), SnapshotId(taken.parent), self._pack(taken), counts,
            tuple(taken.names), (CallId(f"c{len(self.entries)}"),), AT_MS, change=self.change,
        )  # fmt: skip
        return self.add(fact(saved))

    def add(self, entry: Entry) -> int:
        self.entries.append(entry)
        return self.first + len(self.entries)

    def _pack(self, taken: Taken) -> Pack:
        name = PackName(self._facts.tree_id, self.session, 0, "0", taken.sha256)
        self._packs.append((name, taken.pack))
        return Pack(str(name), taken.sha256, taken.bytes, taken.whole)

    def plant(self, machine: Machine) -> str:
        """Puts the session into a machine's deployment; its id."""
        asyncio.run(self._plant(machine))
        return str(self.session)

    async def _plant(self, machine: Machine) -> None:
        whole = (*self._first(), *self.entries)
        plan = ImportPlan(
            tuple((entry, NOW_MS) for entry in whole), fold(State(), whole, 1), self._birth.facts
        )
        sources = SettingsSources(machine.folder, dict(machine.environ))
        async with opened(load_settings(sources)) as found:
            for name, file in self._packs:
                await found.packs().put(name, file)
            await store(found, plan, {}, NOW_MS, "a test")
