"""Set-ups of portable folders in a simulation: runs of the ledger that prepare the copy that they meet."""

from __future__ import annotations

import asyncio
from random import Random

from orchestrator.core.folder_commands import SetupEnded
from orchestrator.tools.site import CallSite
from sim.folders import SETUP, Folders
from sim.ledger import Ledger, Run, SimSupervisor
from sim.loop import SimLoop

KILLED = SetupEnded("failed", message="killed")


class SimSetups:
    """The set-ups of one worker."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        ledger: Ledger,
        supervisor: SimSupervisor,
        machine: str,
        folders: Folders,
    ) -> None:
        self._loop, self._rng, self._ledger = loop, rng, ledger
        self._supervisor, self._machine, self._folders = supervisor, machine, folders

    async def run(self, site: CallSite) -> SetupEnded:
        if not self._supervisor.permits(site.claim):
            return KILLED
        done: asyncio.Future[str] = self._loop.create_future()
        run = Run(
            str(site.session),
            SETUP,
            site.claim,
            self._machine,
            self._loop.time(),
            self._supervisor,
            lambda how: None if done.done() else done.set_result(how),
        )
        if not self._folders.sets_up(run, site):
            return SetupEnded("failed", message="no folder")
        self._ledger.begin(run)
        lasts = self._rng.choice((0.0, 0.05, 2.0, 9.0)) * self._rng.random()
        self._loop.on(self._supervisor.lane, self._ledger.end, run, "finished", after=lasts)
        try:
            how = await done
        except asyncio.CancelledError:
            # Killed, and waited for until it is proved.
            dead: asyncio.Future[None] = self._loop.create_future()
            self._loop.on(self._supervisor.lane, dead.set_result, None, after=self._rng.uniform(0.0, 0.2))
            await dead
            self._ledger.end(run, "killed")
            raise
        if how != "finished":
            return KILLED
        if self._folders.faulty and self._rng.random() < 0.1:
            return SetupEnded("failed", lasts, "exit code 1")
        return SetupEnded("done", lasts)
