"""The processes of a simulated worker: commands that go on behind their call, as the kernel has them.

Each is a run of the ledger, so it dies with the right to run it as every command does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from orchestrator.core.calls import StdinWork
from orchestrator.core.calls.process import Lasting
from orchestrator.core.commands import CallFinished, ProcessEnd
from orchestrator.core.decide.process import no_process
from orchestrator.core.processes import Process
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.events import ExecCommandEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration
from orchestrator.tools.site import CallSite
from sim.folders import Folders
from sim.ledger import Ledger, Run, SimSupervisor
from sim.loop import SimLoop

LIVES_S = (0.0, 0.1, 0.6, 3.0, 12.0, 40.0)
"""How long a process lives if nobody ends it."""


@dataclass(slots=True, eq=False)
class _Living:
    run: Run
    done: asyncio.Future[str]


class SimProcesses:
    """The processes of one worker, by claim and number."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        ledger: Ledger,
        supervisor: SimSupervisor,
        machine: str,
        folders: Folders,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._ledger = ledger
        self._supervisor = supervisor
        self._machine = machine
        self._folders = folders
        self._living: dict[tuple[str, int], _Living] = {}

    async def start(self, call: Call, lasting: Lasting, site: CallSite, *, lost: bool) -> CallFinished:
        """Begins a process, and waits for as long as its call does."""
        done: asyncio.Future[str] = self._loop.create_future()
        run = Run(
            str(site.session),
            call.call_id,
            site.claim,
            self._machine,
            self._loop.time(),
            self._supervisor,
            lambda how: None if done.done() else done.set_result(how),
            lost=lost,
            lasting=lasting.number,
        )
        self._folders.meets(run, call, site)
        self._ledger.begin(run)
        lives = self._rng.choice(LIVES_S) * self._rng.uniform(0.5, 1.0)
        self._loop.on(self._supervisor.lane, self._ledger.end, run, "finished", after=lives)
        living = _Living(run, done)
        try:
            await asyncio.wait([done], timeout=lasting.yield_ms / 1000)
        except asyncio.CancelledError:
            await self._proved(living)
            raise
        if done.done():
            run.output = f"{done.result()} {call.call_id}"
            return CallFinished(
                call.call_id, run.output, (_end(call.call_id, lasting.number, done.result()),)
            )
        self._living[site.claim, lasting.number] = living
        run.output = f"running {lasting.number}"
        return CallFinished(call.call_id, run.output, keeps=True)

    async def look(self, call: Call, work: StdinWork, site: CallSite) -> CallFinished:
        living = self._living.get((site.claim, work.number))
        if living is None:
            return CallFinished(call.call_id, no_process(work.number, ()))
        await asyncio.wait([living.done], timeout=work.yield_ms / 1000)
        if not living.done.done():
            return CallFinished(call.call_id, f"running {work.number}")
        how = living.done.result()
        end = _end(work.started_by, work.number, how)
        return CallFinished(call.call_id, f"process {work.number} {how}", over=ProcessEnd(work.number, end))

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        living = self._living.get((claim, process.number))
        if living is None:
            return ProcessEnd(process.number, _end(process.call_id, process.number, "unknown"))
        try:
            await asyncio.wait([living.done])
        except asyncio.CancelledError:
            await self._proved(living)
            raise
        finally:
            self._living.pop((claim, process.number), None)
        how = living.done.result()
        return ProcessEnd(process.number, _end(process.call_id, process.number, how), how)

    def kill(self, number: int, claim: str) -> None:
        living = self._living.get((claim, number))
        if living is not None:
            after = self._rng.uniform(0.0, 0.2)
            self._loop.on(self._supervisor.lane, self._ledger.end, living.run, "killed", after=after)

    async def abandon(self, claim: str) -> None:
        for key in [key for key in self._living if key[0] == claim]:
            await self._proved(self._living.pop(key))

    async def _proved(self, living: _Living) -> None:
        """Kills, and waits until that is proved."""
        dead: asyncio.Future[None] = self._loop.create_future()
        self._loop.on(self._supervisor.lane, dead.set_result, None, after=self._rng.uniform(0.0, 0.2))
        await dead
        self._ledger.end(living.run, "killed")


def _end(call_id: CallId, number: int, how: str) -> ExecCommandEnd:
    return ExecCommandEnd(
        call_id=call_id,
        process_id=str(number),
        stdout=how,
        stderr="",
        aggregated_output=how,
        exit_code=0 if how == "finished" else -1,
        duration=Duration(secs=0, nanos=0),
        formatted_output=how,
    )
