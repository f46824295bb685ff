"""A folder under one claim: its keeper, what of it the store has, what became of it, and merges into it."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.commands import FolderMerged, FolderNotMerged
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.packs import FileCounts, FolderChange, Pack
from orchestrator.core.settings import SessionFacts
from orchestrator.core.state import State
from orchestrator.core.workspace import fitting
from orchestrator.folders import outcomes
from orchestrator.folders.keeper import Keeper
from orchestrator.private_files import own_folder, replacing
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.object_store import CHUNK, ArchiveUnavailable
from orchestrator.workspaces.copies import Copy, remove_tree
from orchestrator.workspaces.pack_keys import KeyUnavailable
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

CONFLICTS = "both of you have changed the same places. Ask the agent to change them, or change your side"
INCOMING = "incoming"
UNSAVED = "unsaved.pack"


@dataclass(slots=True)
class Held:
    """The folder as the holder of a claim knows it."""

    claim: Claim
    facts: SessionFacts
    copy: Copy
    keeper: Keeper
    bounds: outcomes.Bounds
    stored: outcomes.FolderSnapshot | None = None
    """The last snapshot that the store has and the runner was told of: the parent of the next one."""
    standing: outcomes.FolderSnapshot | None = None
    """The snapshot that the folder was found to be at last."""
    untold: str = ""
    """The last snapshot that the log is to be told of, and that was kept here: until it has that one,
    a log without unsaved changes is one of before."""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who waits for a snapshot, until `stored` is the one that he was told of."""
    working: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a snapshot under way: a call's end that was not waited for goes on behind it."""

    def place(self) -> outcomes.Place:
        return place_of(self.copy)


def place_of(copy: Copy) -> outcomes.Place:
    """The copy as a keeper knows it."""
    return outcomes.Place(copy.folder, copy.objects, copy.lock)


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


def keep_unsaved(copy: Copy, taken: outcomes.Taken) -> None:
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


# ── a snapshot that was taken, as the core and people are told of it ──────────────────────────────


def changed_folder(
    state: State,
    taken: outcomes.Taken,
    pack: Pack,
    calls: tuple[CallId, ...],
    at_ms: int,
    change: FolderChange | None,
) -> WorkspaceSaved:
    counts = taken.counts
    return WorkspaceSaved(
        snapshot=SnapshotId(taken.snapshot),
        parent=None if taken.parent is None else SnapshotId(taken.parent),
        pack=pack,
        files=FileCounts(counts.added, counts.modified, counts.deleted),
        names=fitting(taken.names),
        call_ids=calls,
        at_ms=at_ms,
        live=bool(state.processes.living),
        change=change,
        omitted=told_omissions(state.workspace.omitted, taken.omitted),
    )


def told_omissions(known: tuple[str, ...], found: outcomes.Omissions) -> tuple[str, ...]:
    """The files that are left out: those that were told of, and new ones with their reasons."""
    if not found.all:
        return ()
    new = (f"{each.path} ({each.why})" for each in found.named)
    return fitting(tuple(dict.fromkeys((*new, *known))))


async def change_since_birth(held: Held, state: State, taken: outcomes.Taken) -> FolderChange | None:
    """The difference to what the session began with; None where it cannot be told in time."""
    base = state.workspace.base
    try:
        before = None if base is None else outcomes.FolderSnapshot(base)
        found = await held.keeper.diff(before, taken.snapshot, stat=True)
    except outcomes.FolderError:
        return state.workspace.change
    files = found.counts.added + found.counts.modified + found.counts.deleted
    names = fitting([each.path for each in found.files])
    return FolderChange(files, found.insertions, found.deletions, names)


# ── merges ────────────────────────────────────────────────────────────────────────────────────────


async def merge(
    held: Held, packs: Packs, work: MergeWork, guard: outcomes.Guard = outcomes.ANYWHERE
) -> FolderMerged | FolderNotMerged:
    """Plans the merge and writes it: all of it, or nothing of it where anything conflicts.

    Raises `FolderError` where the keeper refused it, or was lost: then nobody knows how far it came.
    """
    try:
        found = await _merged(held, packs, work, guard)
    except BrokenPack as error:
        return FolderNotMerged(str(error))
    except KeyUnavailable as error:
        return FolderNotMerged(f"{error}; merge again when this worker has it")
    except ArchiveUnavailable as error:
        return FolderNotMerged(f"the store did not give it: {error}; merge again when the store is back")
    except OSError as error:
        return FolderNotMerged(f"this machine refused it: {error}")
    if isinstance(found, outcomes.Conflicted):
        lines = [f"{conflict.path}: {conflict.why}" for conflict in found.conflicts]
        more = found.all - len(lines)
        return FolderNotMerged(CONFLICTS, (*lines, *((f"and {more} more",) if more > 0 else ())))
    counts = found.counts
    return FolderMerged(FileCounts(counts.added, counts.modified, counts.deleted), fitting(found.names))


async def _merged(
    held: Held, packs: Packs, work: MergeWork, guard: outcomes.Guard
) -> outcomes.Merged | outcomes.Conflicted:
    if work.base is None:
        raise outcomes.FolderError("missing", "the agent began with no folder that is known")
    files = await fetch_all(packs, held.copy, list(work.packs), held.facts)
    base, theirs = outcomes.FolderSnapshot(work.base), outcomes.FolderSnapshot(work.snapshot)
    try:
        plan = await held.keeper.plan_merge(base, theirs, files, guard)
        if isinstance(plan, outcomes.Conflicted):
            return plan
        return await held.keeper.write_merge(base, theirs, files, plan.digest, guard)
    finally:
        await asyncio.to_thread(forget_incoming, held.copy)
