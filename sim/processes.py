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
from sim.ledger import Run
from sim.worker_runs import WorkerRuns

LIVES_S = (0.0, 0.1, 0.6, 3.0, 12.0, 40.0)
"""How long a process lives if nobody ends it."""


@dataclass(slots=True, eq=False)
class _Living:
    run: Run
    done: asyncio.Future[str]


class SimProcesses:
    """The processes of one worker, by claim and number."""

    def __init__(self, runs: WorkerRuns, rng: Random, folders: Folders) -> None:
        self._runs = runs
        self._rng = rng
        self._folders = folders
        self._living: dict[tuple[str, int], _Living] = {}

    async def start(self, call: Call, lasting: Lasting, site: CallSite, *, lost: bool) -> CallFinished:
        """Begins a process, and waits for as long as its call does."""
        run, done = self._runs.made(call.call_id, site, lost=lost, lasting=lasting.number)
        self._folders.meets(run, call, site)
        self._runs.begin(run)
        lives = self._rng.choice(LIVES_S) * self._rng.uniform(0.5, 1.0)
        self._runs.end(run, "finished", after=lives)
        living = _Living(run, done)
        try:
            await asyncio.wait([done], timeout=lasting.yield_ms / 1000)
        except asyncio.CancelledError:
            await self._runs.prove_dead(living.run)
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
            await self._runs.prove_dead(living.run)
            raise
        finally:
            self._living.pop((claim, process.number), None)
        how = living.done.result()
        return ProcessEnd(process.number, _end(process.call_id, process.number, how), how)

    def kill(self, number: int, claim: str) -> None:
        living = self._living.get((claim, number))
        if living is not None:
            self._runs.kill(living.run)

    async def abandon(self, claim: str) -> None:
        for key in [key for key in self._living if key[0] == claim]:
            await self._runs.prove_dead(self._living.pop(key).run)


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
