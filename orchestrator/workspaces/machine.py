"""A machine that folders of sessions lie on: its settings, and the claims that keepers work under."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.broker.records import Claim
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.records import Bounds, FolderError, Place
from orchestrator.instructions.project import ProjectDocs
from orchestrator.private_files import make_folder
from orchestrator.tables import WorkspaceSettings

BUSY_S = 10.0
"""The wait for the keeper of a claim that is over: it ends at that claim's deadline."""
RETRY_S = 0.2
MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The machine and the settings that its folders obey; `root` is resolved."""

    settings: WorkspaceSettings
    machine: str
    """Its stable name (`host:<machine>` of pools)."""
    trust_s: float
    cannot_mount: str = ""
    """Why commands cannot see a portable folder at its path here; empty if they can."""
    docs: ProjectDocs | None = None
    """The rule by which a folder's instructions are found; None where none are told."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment in which repositories are cloned."""
    home: Path | None = None
    """Dendro's own folder, which is in no session's."""
    archive: Path | None = None
    """The folder of the archive, where it lies outside of that; in no session's either."""
    guarded: tuple[Path, ...] = ()
    """Files and folders that no sandboxed command writes."""
    setup_of: Callable[[Path], tuple[FolderSetup | None, str]] = lambda top: (None, "")
    """The script that prepares copies of a folder of this machine, and a warning; raises `UnfitFolder`."""

    @property
    def root(self) -> Path:
        assert self.settings.root is not None, "filled in with the settings"
        return self.settings.root

    def fault(self, portable: PortableFolder) -> str:
        """The reason why no folder of this session can be made on this machine; empty if one can."""
        root = self.root
        if Path(portable.root) != root and not self.cannot_mount:
            return (
                f"`workspace.root` is {root} on this machine, and the session's folder lies below "
                f"{portable.root}: set it alike for all workers of the session's pool"
            )
        if why := self.unfit():
            return why
        make_folder(root)
        return ""

    def unfit(self) -> str:
        """The reason why no folder can be made on this machine now; empty if one can. Writes nothing."""
        root, least = self.root, self.settings.min_free
        if self.cannot_mount:
            return self.cannot_mount
        if Path(os.path.realpath(root)) != root:
            return f"`workspace.root` ({root}) leads through a symbolic link or `..`: name the folder itself"
        try:
            free = os.statvfs(next(place for place in (root, *root.parents) if place.exists()))
        except OSError as error:
            return f"`workspace.root` ({root}) cannot be looked at: {error.strerror}"
        if free.f_bavail * free.f_frsize < least:
            return (
                f"the disk of {root} has less than {least:,} bytes free (`workspace.min_free`): "
                "make room there"
            )
        return ""


class Deadlines:
    """The time until which each claim is trusted, in seconds of CLOCK_BOOTTIME; from any thread."""

    def __init__(self, now: Callable[[], float], trust_s: float) -> None:
        self._now, self._trust_s = now, trust_s
        self._guard = threading.Lock()
        """Guards the deadlines: claims are extended by the thread that renews them."""
        self._ends: dict[str, float] = {}

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Writes a claim's deadline; never blocks."""
        with self._guard:
            self._ends[claim] = deadline_boottime
            if len(self._ends) > MOST_KEPT:
                now = self._now()
                self._ends = {name: ends for name, ends in self._ends.items() if ends > now}

    def of(self, claim: Claim) -> float:
        with self._guard:
            return self._ends.get(claim.claim_id, self._now() + self._trust_s)

    def forget(self, claim: Claim) -> None:
        with self._guard:
            self._ends.pop(claim.claim_id, None)

    async def keeper(self, place: Place, bounds: Bounds, claim: Claim) -> Keeper:
        """Starts a keeper; waits for the one of a claim that is over, which its deadline ends."""
        until = self._now() + BUSY_S
        while True:
            try:
                return await Keeper.start(place, bounds, self.of(claim))
            except FolderError as error:
                if error.kind != "busy" or self._now() > until:
                    raise
            await asyncio.sleep(RETRY_S)
