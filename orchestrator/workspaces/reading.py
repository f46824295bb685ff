"""Instructions of a portable folder, read from a snapshot: the folder itself may not be here."""

from __future__ import annotations

import asyncio
import posixpath
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.boottime import boottime
from orchestrator.core.state import State
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.records import Bounds, FolderError, FolderSnapshot, Place
from orchestrator.instructions.project import ProjectDocs
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.workspaces.packs import BrokenPack, PackName, Packs

READ_S = 10.0
"""The time for it: a step of the session waits."""


async def instructions_of(
    state: State, folder: str, docs: ProjectDocs, packs: Packs, keeper: Keeper | None
) -> str | None:
    """The instructions of a folder and those around it that the model has not been told.

    Read by the keeper of the session's copy, if there is one; else from the store's packs. Raises `OSError`.
    """
    portable, snapshot = state.facts.portable, state.workspace.snapshot
    if portable is None or snapshot is None or not docs.most_bytes:
        return None
    top = portable.path(state.facts.tree_id)
    told = {name for other in state.told_folders for name in _within(top, other)}
    folders = [name for name in _within(top, folder) if name not in told]
    paths = [f"{name}/{file}" if name else file for name in folders for file in docs.names]
    if not paths:
        return None
    try:
        async with asyncio.timeout(READ_S):
            if keeper is not None:
                contents = await keeper.read_tree(FolderSnapshot(snapshot), paths)
            else:
                contents = await _from_store(state, FolderSnapshot(snapshot), paths, packs)
    except (FolderError, BrokenPack, ArchiveUnavailable) as error:
        raise OSError(str(error)) from error
    return docs.of_contents(folders, contents)


async def _from_store(
    state: State, snapshot: FolderSnapshot, paths: Sequence[str], packs: Packs
) -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="dendro-read-") as folder:
        files = []
        for number, pack in enumerate(state.workspace.packs):
            files.append(Path(folder, f"{number}.pack"))
            await packs.fetch(PackName.of(pack.name, state.facts.tree_id), files[-1], pack.bytes)
        place = Place(Path(folder, "folder"), Path(folder, "objects"))
        deadline = boottime() + READ_S
        keeper = await Keeper.start(place, Bounds(seconds=READ_S), deadline)
        try:
            return await keeper.read_tree(snapshot, paths, files)
        finally:
            with suppress(FolderError):
                await keeper.end()


def _within(top: str, folder: str) -> list[str]:
    """The folders of a snapshot from its top down to one of them, by their paths in it; none of others."""
    named = posixpath.normpath(folder)
    if named != top and not named.startswith(f"{top}/"):
        return []
    parts = [part for part in named[len(top) :].split("/") if part]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
