"""Jobs for a pool's workers, asked for by a door: a door itself runs nothing, and reads no files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import Claims
from orchestrator.broker.errors import BrokerError, OutOfMemory, Unavailable
from orchestrator.broker.job_queue import Ends, JobLook, JobsFull, JobState
from orchestrator.core.frozen import record
from orchestrator.protocol.jobs import JOB_RESULT, Job, JobFailed, Result, RunCommand
from orchestrator.protocol.wire import written
from orchestrator.views.workers import SeenWorker, named_worker, workers_of

PATIENCE_S: Final = 5.0
"""The wait for a worker that takes a job."""
FILES_S: Final = 60.0
GRACE_S: Final = 10.0
"""Time beyond a command's own limit: it has to be killed, and its end proved."""
FIRST_POLL_S, LAST_POLL_S = 0.005, 0.1


class JobError(Exception):
    """A job that has no result; the message says why, and what to do."""


@record
class PoolJobs:
    """A door's way to the workers of a pool."""

    broker: Broker
    pool: str
    new_id: Callable[[], str]
    patience_s: float = PATIENCE_S
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def do(self, job: Job, result: type[Result]) -> Result:
        """The result of a job; raises `JobError`. Cancelling it ends what it runs."""
        id, limit_s = self.new_id(), FILES_S
        if isinstance(job, RunCommand):
            limit_s = job.timeout_ms / 1000 + GRACE_S
        payload = orjson.dumps(written(job))
        try:
            await self.broker.jobs.offer_job(self.pool, id, payload, int((self.patience_s + 1) * 1000))
            return _result(await self._answered(id, limit_s), result)
        except JobsFull as error:
            raise JobError(str(error)) from error
        finally:
            await self._forget(id)

    async def _answered(self, id: str, limit_s: float) -> bytes:
        began, pause_s, taken_at = self.monotonic(), FIRST_POLL_S, 0.0
        while True:
            late = self.monotonic() - began >= self.patience_s and not taken_at
            look = await self._look(id, Ends.WAITING if late else Ends.NONE)
            now = self.monotonic()
            match look.state:
                case JobState.DONE:
                    return look.result
                case JobState.QUEUED | JobState.GONE if late:
                    raise JobError(_no_worker(self.pool, self.patience_s))
                case JobState.LOST:
                    raise JobError(
                        "the worker was lost while it was at it: it may have had effects; look first"
                    )
                case JobState.GONE:
                    raise JobError("nobody has an answer: it was given up, or Redis was put back; look first")
                case JobState.TAKEN:
                    taken_at = taken_at or now
                    if now - taken_at > limit_s:
                        raise JobError(
                            f"the worker was not done within {limit_s:.0f} s, and is told to end it"
                        )
                case JobState.QUEUED:
                    pass
            await self.sleep(pause_s)
            pause_s = min(LAST_POLL_S, 1.5 * pause_s)

    async def _look(self, id: str, ends: Ends) -> JobLook:
        while True:
            try:
                look: JobLook = await self.broker.jobs.look_at_job(self.pool, id, ends)
            except (Unavailable, OutOfMemory):
                await self.sleep(LAST_POLL_S)
            else:
                return look

    async def _forget(self, id: str) -> None:
        """Ends the work of whoever is at it still, for an asker that has gone."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.broker.jobs.look_at_job(self.pool, id, Ends.ANY)
        except (BrokerError, TimeoutError):
            # The job's worker waits for nobody: its time is limited anyway.
            pass


def _result(answer: bytes, wanted: type[Result]) -> Result:
    result = JOB_RESULT.validate_json(answer)
    if isinstance(result, JobFailed):
        raise JobError(result.message)
    if not isinstance(result, wanted):
        raise JobError(f"a worker of another version answered with {result.kind}: start it anew")
    return result


def _no_worker(pool: str, seconds: float) -> str:
    where = "on the machine that has the folder: dendro worker"
    if not pool.startswith("host:"):
        where = f"dendro worker --pool {pool}"
    return f"no worker of pool {pool} has taken it within {seconds:g} s; start one {where}"


# ── drain ─────────────────────────────────────────────────────────────────────────────────────────
# Workers sent home by a person.


LOOK_S = 0.5


async def drain(claims: Claims, name: str) -> SeenWorker | None:
    """Asks a worker to drain; answers which one, or None if it has left. Raises `ViewError`."""
    worker = named_worker(await workers_of(claims), name)
    return worker if await claims.drain(worker.name) else None


async def until_left(claims: Claims, worker: SeenWorker) -> SeenWorker | None:
    """Returns None when the worker has left, or the worker as it was heard from last once it is silent."""
    while True:
        found = [one for one in await workers_of(claims) if one.name == worker.name]
        if not found or found[0].silent:
            return found[0] if found else None
        await asyncio.sleep(LOOK_S)
