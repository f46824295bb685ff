"""Set-ups of portable folders in a simulation: runs of the ledger that prepare the copy that they meet."""

from __future__ import annotations

import asyncio
from random import Random

from orchestrator.core.commands import SetupEnded
from orchestrator.tools.tool_context import CallSite
from sim.folders import SETUP, Folders
from sim.worker_runs import WorkerRuns

KILLED = SetupEnded("failed", message="killed")


class SimSetups:
    """The set-ups of one worker."""

    def __init__(self, runs: WorkerRuns, rng: Random, folders: Folders) -> None:
        self._runs = runs
        self._rng = rng
        self._folders = folders

    async def run(self, site: CallSite) -> SetupEnded:
        run, done = self._runs.made(SETUP, site)
        there: list[bool] = []

        def begin() -> None:
            there.append(self._folders.sets_up(run, site))
            if there[0]:
                self._runs.begin(run)

        if not await self._runs.starts(site.claim, begin, [(run, done)]):
            return KILLED
        if not there[0]:
            return SetupEnded("failed", message="no folder")
        lasts = self._rng.choice((0.0, 0.05, 2.0, 9.0)) * self._rng.random()
        self._runs.end(run, "finished", after=lasts)
        try:
            how = await done
        except asyncio.CancelledError:
            await self._runs.prove_dead(run)
            raise
        if how != "finished":
            return KILLED
        if self._folders.faulty and self._rng.random() < 0.1:
            return SetupEnded("failed", lasts, "exit code 1")
        return SetupEnded("done", lasts)
