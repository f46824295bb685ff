"""A portable folder under one claim: its keeper, what of it the store has, and what is under way."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.broker.records import Claim
from orchestrator.core.packs import Pack
from orchestrator.core.settings import SessionFacts
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.records import Bounds, FolderSnapshot, Place, Taken
from orchestrator.private_files import own_folder, replacing
from orchestrator.rollouts.objects import CHUNK
from orchestrator.workspaces.copies import Copy, remove_tree
from orchestrator.workspaces.packs import PackName, Packs

INCOMING = "incoming"
UNSAVED = "unsaved.pack"


@dataclass(slots=True)
class Held:
    """The folder as the holder of a claim knows it."""

    claim: Claim
    facts: SessionFacts
    copy: Copy
    keeper: Keeper
    bounds: Bounds
    stored: FolderSnapshot | None = None
    """The last snapshot that the store has and the runner was told of: the parent of the next one."""
    standing: FolderSnapshot | None = None
    """The snapshot that the folder was found to be at last."""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who waits for a snapshot, until `stored` is the one that he was told of."""
    working: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a snapshot under way: a call's end that was not waited for goes on behind it."""

    def place(self) -> Place:
        return place_of(self.copy)


def place_of(copy: Copy) -> Place:
    """The copy as a keeper knows it."""
    return Place(copy.folder, copy.objects, copy.lock)


async def fetch_all(packs: Packs, copy: Copy, needed: list[Pack], facts: SessionFacts) -> list[Path]:
    """The packs of a snapshot: those that the copy's keeper kept, and the others brought from the store."""
    incoming = copy.path / INCOMING
    own_folder(incoming)
    files = []
    for pack in needed:
        name = PackName.of(pack.name, facts.tree_id)
        file = kept_by_keeper(copy, name.sha256)
        if not file.exists():
            file = incoming / file.name
            if not file.exists():
                await packs.fetch(name, file, pack.bytes)
        files.append(file)
    return files


def kept_by_keeper(copy: Copy, sha256: str) -> Path:
    """The file under which a keeper keeps a pack that it has read."""
    return copy.objects / "packs" / f"{sha256}.pack"


def forget_incoming(copy: Copy) -> None:
    """Removes what was brought from the store: a keeper keeps what it needs of it."""
    remove_tree(copy.path / INCOMING)


def keep_unsaved(copy: Copy, taken: Taken) -> None:
    """Keeps the pack of a snapshot that no store has, for whoever makes the folder here next."""
    target = copy.path / UNSAVED
    link = copy.path / f"{UNSAVED}.part"
    link.unlink(missing_ok=True)
    try:
        os.link(taken.pack, link)
    except OSError:
        with taken.pack.open("rb") as source, replacing(target, sync=False) as file:
            shutil.copyfileobj(source, file, CHUNK)
    else:
        link.replace(target)
    copy.unsaved(taken.snapshot)


def forget_unsaved(copy: Copy) -> None:
    """Forgets what was unsaved: the log has it, or goes on without it."""
    copy.unsaved("")
    with suppress(FileNotFoundError):
        (copy.path / UNSAVED).unlink()
