"""A worker's bench: a job is a command of the ledger, under the job's claim."""

from __future__ import annotations

import asyncio

import orjson

from orchestrator.protocol.jobs import CommandResult, JobFailed, JobResult
from orchestrator.protocol.wire import written
from sim.jobs import Jobs
from sim.ledger import Ledger, Run, SimSupervisor
from sim.model_script import ModelScript


class SimBench:
    """Does jobs by the seed's choice; it lets none run for longer than its supervisor was told."""

    def __init__(
        self, jobs: Jobs, model: ModelScript, ledger: Ledger, supervisor: SimSupervisor, machine: str
    ) -> None:
        self._jobs = jobs
        self._model = model
        self._ledger = ledger
        self._supervisor = supervisor
        self._machine = machine

    def extend(self, claim: str, deadline_boottime: float) -> None:
        self._supervisor.extend(claim, deadline_boottime)

    async def do(self, payload: bytes, claim: str) -> bytes:
        orjson.loads(payload)
        return orjson.dumps(written(await self._result(claim)))

    async def _result(self, claim: str) -> JobResult:
        loop, rng = self._model.loop, self._model.rng
        if loop.time() >= self._supervisor.trusted_until_s(claim):
            return JobFailed(message="the right to run it was over")
        done: asyncio.Future[str] = loop.create_future()
        run = Run(
            "",
            claim.removeprefix("job:"),
            claim,
            self._machine,
            loop.time(),
            self._supervisor,
            lambda how: self._ends(run, done, how),
        )
        self._jobs.begins(run.call_id)
        self._ledger.begin(run)
        lasts = rng.choice((0.0, 0.3, 3.0, 8.0, 25.0)) * rng.random()
        loop.on(self._supervisor.lane, self._ledger.end, run, "finished", after=lasts)
        try:
            how = await done
        except asyncio.CancelledError:
            # Killed, and waited for until it is proved.
            dead: asyncio.Future[None] = loop.create_future()
            loop.on(self._supervisor.lane, dead.set_result, None, after=rng.uniform(0.0, 0.2))
            await dead
            self._ledger.end(run, "killed")
            raise
        run.output = f"{how} {run.call_id} at {self._machine}"
        return CommandResult(exit_code=0 if how == "finished" else -1, stdout=run.output, stderr="")

    def _ends(self, run: Run, done: asyncio.Future[str], how: str) -> None:
        self._jobs.ended(run)
        if not done.done():
            done.set_result(how)
