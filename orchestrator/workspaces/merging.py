"""The merge of a child's folder into the copy that a claim holds."""

from __future__ import annotations

import asyncio

from orchestrator.core.calls import MergeWork
from orchestrator.core.folder_commands import FolderMerged, FolderNotMerged
from orchestrator.core.packs import FileCounts
from orchestrator.core.workspace import fitting
from orchestrator.folders.records import ANYWHERE, Conflicted, FolderError, FolderSnapshot, Guard, Merged
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.workspaces.held import Held, fetch_all, forget_incoming
from orchestrator.workspaces.keys import KeyUnavailable
from orchestrator.workspaces.packs import BrokenPack, Packs

CONFLICTS = "both of you have changed the same places. Ask the agent to change them, or change your side"


async def merge(
    held: Held, packs: Packs, work: MergeWork, guard: Guard = ANYWHERE
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
    if isinstance(found, Conflicted):
        lines = [f"{conflict.path}: {conflict.why}" for conflict in found.conflicts]
        more = found.all - len(lines)
        return FolderNotMerged(CONFLICTS, (*lines, *((f"and {more} more",) if more > 0 else ())))
    counts = found.counts
    return FolderMerged(FileCounts(counts.added, counts.modified, counts.deleted), fitting(found.names))


async def _merged(held: Held, packs: Packs, work: MergeWork, guard: Guard) -> Merged | Conflicted:
    if work.base is None:
        raise FolderError("missing", "the agent began with no folder that is known")
    files = await fetch_all(packs, held.copy, list(work.packs), held.facts)
    base, theirs = FolderSnapshot(work.base), FolderSnapshot(work.snapshot)
    try:
        plan = await held.keeper.plan_merge(base, theirs, files, guard)
        if isinstance(plan, Conflicted):
            return plan
        return await held.keeper.write_merge(base, theirs, files, plan.digest, guard)
    finally:
        await asyncio.to_thread(forget_incoming, held.copy)
