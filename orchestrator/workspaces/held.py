"""A portable folder under one claim: its keeper, what of it the store has, and what is under way."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.broker.records import Claim
from orchestrator.core.settings import SessionFacts
from orchestrator.core.workspace import Pack
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.records import Bounds, Place, SnapshotId, Taken
from orchestrator.rollouts.objects import CHUNK
from orchestrator.workspaces.copies import Copy
from orchestrator.workspaces.packs import PackName, Packs

FETCHED = "fetched"
UNSAVED = "unsaved.pack"


@dataclass(slots=True)
class Held:
    """The folder as the holder of a claim knows it."""

    claim: Claim
    facts: SessionFacts
    copy: Copy
    keeper: Keeper
    bounds: Bounds
    stored: SnapshotId | None = None
    """The last snapshot that the store has and the runner was told of: the parent of the next one."""
    standing: SnapshotId | None = None
    """The snapshot that the folder was found to be at last."""
    working: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a snapshot under way: a call's end that was not waited for goes on behind it."""

    def place(self) -> Place:
        return place_of(self.copy)


def place_of(copy: Copy) -> Place:
    """The copy as a keeper knows it."""
    return Place(copy.folder, copy.objects, copy.lock)


async def fetch_all(packs: Packs, copy: Copy, needed: list[Pack], facts: SessionFacts) -> list[Path]:
    """The packs of a snapshot, brought here unless they are; others that were brought before are removed."""
    folder = copy.objects / FETCHED
    folder.mkdir(exist_ok=True, mode=0o700)
    files = []
    for pack in needed:
        name = PackName.of(pack.name, facts.tree_id)
        file = folder / f"{name.sha256}.pack"
        if not file.exists():
            await packs.fetch(name, file, pack.bytes)
        files.append(file)
    for old in set(folder.iterdir()) - set(files):
        old.unlink(missing_ok=True)
    return files


def here_already(copy: Copy, needed: list[Pack], facts: SessionFacts) -> list[Path]:
    """Those of the packs that were brought here before."""
    folder = copy.objects / FETCHED
    named = (folder / f"{PackName.of(pack.name, facts.tree_id).sha256}.pack" for pack in needed)
    return [file for file in named if file.exists()]


def keep_unsaved(copy: Copy, taken: Taken) -> None:
    """Keeps the pack of a snapshot that no store has, for whoever makes the folder here next."""
    target = copy.path / UNSAVED
    link = copy.path / f"{UNSAVED}.part"
    link.unlink(missing_ok=True)
    try:
        os.link(taken.pack, link)
    except OSError:
        link.write_bytes(b"")
        with taken.pack.open("rb") as source, link.open("wb") as file:
            while chunk := source.read(CHUNK):
                file.write(chunk)
    link.replace(target)
    copy.unsaved(taken.snapshot)


def forget_unsaved(copy: Copy) -> None:
    """Forgets what was unsaved: the log has it, or goes on without it."""
    copy.unsaved("")
    with suppress(FileNotFoundError):
        (copy.path / UNSAVED).unlink()
