"""A snapshot that was taken, as the core and people are told of it."""

from __future__ import annotations

from orchestrator.core.folder_commands import FolderChanged
from orchestrator.core.packs import FileCounts, FolderChange, Pack
from orchestrator.core.state import State
from orchestrator.core.workspace import fitting
from orchestrator.folders.records import FolderError, FolderSnapshot, Omissions, Taken
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.workspaces.held import Held


def changed_folder(
    state: State,
    taken: Taken,
    pack: Pack,
    calls: tuple[CallId, ...],
    at_ms: int,
    change: FolderChange | None,
) -> FolderChanged:
    counts = taken.counts
    return FolderChanged(
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


def told_omissions(known: tuple[str, ...], found: Omissions) -> tuple[str, ...]:
    """The files that are left out: those that were told of, and new ones with their reasons."""
    if not found.all:
        return ()
    new = (f"{each.path} ({each.why})" for each in found.named)
    return fitting(tuple(dict.fromkeys((*new, *known))))


async def change_since_birth(held: Held, state: State, taken: Taken) -> FolderChange | None:
    """The difference to what the session began with; None where it cannot be told in time."""
    base = state.workspace.base
    try:
        before = None if base is None else FolderSnapshot(base)
        found = await held.keeper.diff(before, taken.snapshot, stat=True)
    except FolderError:
        return state.workspace.change
    files = found.counts.added + found.counts.modified + found.counts.deleted
    names = fitting([each.path for each in found.files])
    return FolderChange(files, found.insertions, found.deletions, names)
