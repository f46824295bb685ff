"""Machines with a common store, and the log of one portable session, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core import facts as f
from orchestrator.core.calls import Merge, MergeWork
from orchestrator.core.commands import FolderFailed, FolderMade, FolderUnsaved
from orchestrator.core.decide.agent import offered
from orchestrator.core.evolve import evolve_workspace
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id
from orchestrator.core.settings import PortableFolder, SessionFacts
from orchestrator.core.state import State
from orchestrator.core.workspace import NO_WORKSPACE
from orchestrator.instructions.project import ProjectDocs
from orchestrator.protocol.ids import CallId
from orchestrator.rollouts.object_store import Objects
from orchestrator.workspaces.copies import Copy, MachineConfig
from orchestrator.workspaces.pack_keys import PackKeys
from orchestrator.workspaces.service import MachineFolders
from orchestrator.workspaces.stored_packs import Packs

ROOT = new_session_id(1, 3, 7)


class Machine:
    """A machine of its own: its root is another folder, which stands for one path on all of them."""

    def __init__(
        self, name: str, root: Path, store: Objects, keys: PackKeys | None = None, **settings: Any
    ) -> None:
        self.root = root
        chosen = WorkspaceSettings(root=root, **{"min_free": 0, "git_protocols": ("file",), **settings})
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(root.parent)}
        docs = ProjectDocs(root.parent, 1000, ("NOTES.md",))
        config = MachineConfig(chosen, name, 60.0, docs=docs, environ=environ)
        self.folders = MachineFolders(config, Packs(store, keys), lambda: 1_700_000_000_000)

    def copy(self) -> Copy:
        return Copy(self.root, SessionId(ROOT), self.folders._boot)

    @property
    def folder(self) -> Path:
        return self.copy().folder


NewMachine = Callable[..., Machine]
"""Makes a machine by its name and its settings."""


class Session:
    """The log of a portable session: what machines report is folded as the core folds it."""

    def __init__(self, root: Path | None = None, **portable: Any) -> None:
        self.one_path = root is not None
        folder = PortableFolder(str(root), "work", **portable)
        self.state = State(
            facts=SessionFacts(session_id=SessionId(ROOT), tree_id=TreeId(ROOT), portable=folder)
        )
        self.epoch = 0
        self.calls = 0

    @property
    def id(self) -> SessionId:
        return self.state.facts.session_id

    def child(self) -> Session:
        """An agent of the tree, as it begins with this session's folder."""
        born = Session()
        born.state = replace(
            self.state,
            facts=replace(self.state.facts, session_id=new_session_id(2, 3, 9)),
            workspace=NO_WORKSPACE,
        )
        born.one_path, known = self.one_path, self.state.workspace
        assert known.snapshot is not None
        born._fold(f.WorkspaceBegun(known.snapshot, known.packs))
        return born

    def offered(self) -> MergeWork:
        """The merge of all that it has changed."""
        offer = offered(self.state)
        assert offer is not None
        made = Merge(AgentId(1), offer.base, offer.snapshot, offer.packs, 1, ()).work(sandboxed=True)
        assert isinstance(made, MergeWork)
        return made

    def claim(self, machine: Machine) -> Claim:
        self.epoch += 1
        claim_id = f"c1a1{self.epoch:04x}{self.id[-4:]}"
        claim = Claim(self.id, TreeId(ROOT), "worker", claim_id, self.epoch, "default")
        machine.folders.extend(claim.claim_id, time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
        return claim

    async def make(self, machine: Machine, claim: Claim) -> FolderMade | FolderFailed:
        made = await machine.folders.make(self._on(machine), claim)
        if isinstance(made, FolderMade):
            if made.fetched is not None and made.snapshot is not None:
                self._fold(f.WorkspaceBegun(made.snapshot, (made.fetched,), made.omitted))
            self._fold(f.WorkspaceMade(claim.epoch, made.machine, made.anew))
        return made

    async def made(self, machine: Machine) -> Claim:
        """A claim under which the folder is there."""
        claim = self.claim(machine)
        made = await self.make(machine, claim)
        assert isinstance(made, FolderMade), made
        return claim

    async def changed(self, machine: Machine, claim: Claim) -> WorkspaceSaved | FolderUnsaved | None:
        """The end of a call, with what became of the folder."""
        found = await self.found(machine, claim)
        self.told(found)
        machine.folders.recorded(self.state, claim, resting=True)
        return found

    async def found(self, machine: Machine, claim: Claim) -> WorkspaceSaved | FolderUnsaved | None:
        """The news of the folder at the end of a call, of which the log has not been told."""
        self.calls += 1
        return await machine.folders.changed(
            self.state, claim, (CallId(f"call-{self.calls}"),), 1_700_000_000_000 + self.calls
        )

    def told(self, found: WorkspaceSaved | FolderUnsaved | None) -> None:
        """The log has what was found."""
        if isinstance(found, WorkspaceSaved):
            self._fold(
                f.WorkspaceSaved(
                    found.snapshot,
                    found.parent,
                    found.pack,
                    found.files,
                    found.names,
                    found.call_ids,
                    found.at_ms,
                    found.live,
                    found.change,
                    found.omitted,
                )
            )
        elif isinstance(found, FolderUnsaved):
            self._fold(
                f.WorkspaceUnsaved(
                    found.at_ms, found.machine, found.reason, found.call_ids, found.snapshot, found.blocked
                )
            )

    def _on(self, machine: Machine) -> State:
        """The state with the path of the root on a machine: here each has another one for it."""
        facts, portable = self.state.facts, self.state.facts.portable
        if portable is None or self.one_path:
            return self.state
        here = replace(portable, root=str(machine.root))
        return replace(self.state, facts=replace(facts, portable=here))

    def _fold(self, fact: f.WorkspaceFact) -> None:
        self.state = replace(self.state, workspace=evolve_workspace(self.state.workspace, fact))


def tree_of(folder: Path) -> dict[str, str]:
    """The files of a folder, without the repository that is made in it."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
