"""Upkeep of one machine's copies: those that nobody uses are removed, least recently used first.

A copy costs disk and saves the next claim here the making of it: it is kept for a time, and no longer than
there is room. What is held, or holds changes that no store has, stays. Whoever finds a copy gone makes it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.core.ids import InvalidSessionId, parse_session_id
from orchestrator.workspaces.copies import Copy, copies_below, remove_tree
from orchestrator.workspaces.machine import MachineConfig

log = logging.getLogger("dendro.worker")
SWEEP_S = 60.0


@record
class Swept:
    """The copies that were removed, and those that were to be and could not be."""

    removed: int = 0
    failed: int = 0


def sweep(config: MachineConfig, boot: str, now: float) -> Swept:
    """Removes copies that have been out of use for too long, or take too much; blocking."""
    settings, removed, failed = config.settings, 0, 0
    copies = sorted(copies_below(config.root, boot), key=lambda copy: copy.last_used())
    left = settings.max_disk
    sizes = {copy.session: _bytes_of(copy.path) for copy in copies} if left is not None else {}
    taken = sum(sizes.values())
    for copy in copies:
        beyond = left is not None and taken > left
        if not beyond and now - copy.last_used() <= settings.keep_s:
            continue
        match _removed(copy, now, settings.keep_s, beyond=beyond):
            case True:
                removed += 1
                taken -= sizes.get(copy.session, 0)
            case False:
                failed += 1
    _finish(config.root)
    return Swept(removed, failed)


def _removed(copy: Copy, now: float, keep_s: float, *, beyond: bool) -> bool | None:
    """Whether a copy was removed; None if it is in use, or holds what no store has."""
    with copy.locked() as mine:
        # Looked at again under the lock: a claim may have come and gone.
        if not mine or copy.state().unsaved or (not beyond and now - copy.last_used() <= keep_s):
            return None
        try:
            copy.remove()
        except OSError as error:
            log.warning("the copy of session %s could not be removed: %s", copy.session, error)
            return False
        return True


def _finish(root: Path) -> None:
    """Removes what a sweep that died has left, and the places of mounts that no copy has any more."""
    with suppress(OSError):
        for gone in (root / "copies").glob("*.gone"):
            remove_tree(gone)
    named = {place for copy in copies_below(root, "") if (place := copy.seen()) is not None}
    with suppress(OSError):
        for tree in root.iterdir():
            with suppress(InvalidSessionId):
                parse_session_id(tree.name)
                _without_places(tree, named)


def _without_places(tree: Path, named: set[Path]) -> None:
    for place in tree.iterdir():
        if place not in named:
            with suppress(OSError):
                place.rmdir()
    with suppress(OSError):
        tree.rmdir()


def _bytes_of(folder: Path) -> int:
    """The disk that a folder takes; of what cannot be looked at, nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{path}/{name}").st_blocks * 512
    return total


def _log(done: Swept) -> None:
    if done.removed:
        log.info("copies of portable folders that were removed: %d", done.removed)


@asynccontextmanager
async def sweeping(
    config: MachineConfig,
    boot: str,
    clock: Callable[[], float] = time.time,
    told: Callable[[Swept], None] = _log,
) -> AsyncIterator[None]:
    """Sweeps at regular times for as long as the context is open; `told` hears of each time."""

    async def regularly() -> None:
        while True:
            try:
                told(await asyncio.to_thread(sweep, config, boot, clock()))
            except OSError as error:
                log.warning("copies of workspaces were not looked at: %s", error)
            await asyncio.sleep(SWEEP_S)

    task = asyncio.create_task(regularly(), name="worker:copies")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
