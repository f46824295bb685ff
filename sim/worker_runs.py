"""The runs that one simulated worker begins: of calls, of processes and of set-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from orchestrator.tools.tool_context import CallSite
from sim.ledger import Ledger, Run, SimSupervisor
from sim.loop import Lane, SimLoop


class WorkerRuns:
    """Begins runs under the worker's supervisor, and proves that one is dead."""

    def __init__(
        self, loop: SimLoop, rng: Random, ledger: Ledger, supervisor: SimSupervisor, machine: str
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._ledger = ledger
        self._supervisor = supervisor
        self._machine = machine

    def made(
        self, call_id: str, site: CallSite, *, files: int = 0, lost: bool = False, lasting: int = 0
    ) -> tuple[Run, asyncio.Future[str]]:
        """A run that has not begun, and how it will have ended: `finished` or `killed`."""
        done: asyncio.Future[str] = self._loop.create_future()
        run = Run(
            str(site.session),
            call_id,
            site.claim,
            self._machine,
            self._loop.time(),
            self._supervisor,
            lambda how: None if done.done() else done.set_result(how),
            files=files,
            lost=lost,
            lasting=lasting,
        )
        return run, done

    async def starts(
        self, claim: str, begin: Callable[[], None], begun: Sequence[tuple[Run, asyncio.Future[str]]] = ()
    ) -> bool:
        """Asks the supervisor for a start; False if the claim has no right to it any more.

        Where it is cancelled meanwhile, what was `begun` is dead when it raises.
        """
        try:
            return await self._supervisor.starts(claim, begin)
        except asyncio.CancelledError:
            for run, _ in begun:
                await self.prove_dead(run)
            raise

    def begin(self, run: Run) -> None:
        self._ledger.begin(run)

    def switch(self, run: Run, after: float) -> None:
        """Lets a patch switch its next file after so many seconds."""
        self._loop.on(self._supervisor.lane, self._ledger.switch, run, after=after)

    def end(self, run: Run, how: str, after: float) -> None:
        """Ends the run after so many seconds, if nothing has ended it before."""
        self._loop.on(self._supervisor.lane, self._ledger.end, run, how, after=after)

    def at(self, after: float, happens: Callable[..., None], *args: Any) -> None:
        """Lets something happen where runs are, after so many seconds."""
        self._loop.on(self._supervisor.lane, happens, *args, after=after)

    def on(self, lane: Lane, heard: Callable[[], None]) -> None:
        """Lets a thread of the worker hear of something."""
        self._loop.on(lane, heard)

    def typed(self, run: Run, words: str) -> None:
        """Words were typed to a run's terminal."""
        self._ledger.typed(run, words)

    def kill(self, run: Run, within_s: float = 0.2) -> None:
        """Kills the run, which takes up to so many seconds, and waits for nothing."""
        self.end(run, "killed", after=self._rng.uniform(0.0, within_s))

    async def prove_dead(self, run: Run) -> None:
        """Kills the run, and waits until that is proved."""
        dead: asyncio.Future[None] = self._loop.create_future()
        self._loop.on(self._supervisor.lane, dead.set_result, None, after=self._rng.uniform(0.0, 0.2))
        await dead
        self._ledger.end(run, "killed")
