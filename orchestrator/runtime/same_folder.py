"""Whether a worker's machine has the folder that a session works in: the same one, not one of its name.

A pool of several machines promises that all of them see the session's folder. Where that is
not true (a share that is not mounted, a second checkout under the same path), a takeover
would go on in a folder without the work done so far. So whoever creates the session puts a
random id into a file of the folder, and a worker compares it before anything runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from orchestrator.core.settings import MARK_BYTES, SessionFacts, WorkspaceMark
from orchestrator.core.state import State
from orchestrator.sandbox.trusted_files import own_link, read_regular

PATIENCE_S = 10.0
"""Seconds that a look may take: a share whose server is gone blocks every look at it."""
MOMENT_S = 1.0

WorkspaceCheck = Callable[[SessionFacts, str], Awaitable[str | None]]
"""Returns the fault of a session's folder and the task's working folder on this machine; None if there is
none."""


class FolderFaults:
    """The looks of one claim at its session's folders: a folder in order is looked at once.

    One at fault is looked at for each task: a process can keep the claim while a person mends the folder.
    """

    def __init__(self, check: WorkspaceCheck) -> None:
        self._check = check
        self._fit: set[str] = set()

    async def fault(self, state: State) -> str | None:
        """The reason why nothing of the session may run here; None if it may.

        A portable folder is not looked at: it is made before anything runs in it.
        """
        if state.facts.portable is not None:
            return None
        cwd = state.in_force.cwd
        if cwd in self._fit:
            return None
        found = await self._check(state.facts, cwd)
        if found is None:
            self._fit.add(cwd)
        return found


async def check_workspace(facts: SessionFacts, cwd: str) -> str | None:
    """The check of a real machine: that the folder exists, and that a marked one bears its mark."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(_fault, facts.workspace, cwd)
    except TimeoutError:
        return (
            f"the folder {cwd} did not answer within {PATIENCE_S:g} s on this worker's machine; "
            "check the mount, then send the input again"
        )


class RecentChecks:
    """The check of one worker: a folder that was found in order a moment ago is not looked at again.

    Hundreds of claims a second are of a few folders, and each look takes a thread. What goes wrong
    within the moment is met as by a session that was claimed just before: it looks once, too.
    """

    def __init__(
        self, check: WorkspaceCheck = check_workspace, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._clock = clock
        self._checked: dict[tuple[WorkspaceMark | None, str], float] = {}

    async def __call__(self, facts: SessionFacts, cwd: str) -> str | None:
        place, began = (facts.workspace, cwd), self._clock()
        if began - self._checked.get(place, -MOMENT_S) < MOMENT_S:
            return None
        found = await self._check(facts, cwd)
        if found is None:
            self._forget_before(began - MOMENT_S)
            self._checked[place] = began
        return found

    def _forget_before(self, horizon: float) -> None:
        self._checked = {place: at for place, at in self._checked.items() if at > horizon}


def _fault(mark: WorkspaceMark | None, cwd: str) -> str | None:
    if mark is not None and (found := _mark_in(mark.file)) != f"it says {mark.id}":
        return (
            f"this worker's machine does not have the session's folder {mark.path}: {mark.file} should say "
            f"{mark.id}, and {found}. Let only machines serve the session's pool that mount the same folder "
            f"there, or create the session in the pool of its own host. If it is the folder and only lost "
            f"its mark, write the id back into that file"
        )
    if not _is_folder(cwd):
        return (
            f"the folder {cwd!r} is not on this worker's machine; create it, or name another one "
            "with `override_turn_context`, and send the input again"
        )
    if (link := own_link(Path(cwd))) is not None:
        return (
            f"the folder {cwd!r} is reached through the link {str(link)!r}, which a command may have put "
            "there; name the folder that it leads to with `override_turn_context`, and send the input again"
        )
    return None


def _is_folder(path: str) -> bool:
    try:
        return bool(path) and Path(path).is_dir()
    except OSError:
        # No right to look, a share that went stale, a name too long for any folder.
        return False


def _mark_in(file: str) -> str:
    """The content of a mark's file, in words."""
    try:
        content = read_regular(Path(file), MARK_BYTES, below=Path(file).parent)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return f"it says {content.decode('utf-8', 'replace').strip() or 'nothing'}"
