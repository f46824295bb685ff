"""Jobs: work of a pool's workers that belongs to no session, and the answers to it.

A job is asked for, taken by one worker, and answered once. It is never begun a second time: a worker that is
lost takes its job with it, and the asker learns that. Knows nothing of what a job is about.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.broker.connection import call
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.port import Port
from orchestrator.core.frozen import record

if TYPE_CHECKING:
    from orchestrator.broker.replies import OfferJobFull, SettleJobDone, TakeJobOk

MOST_WAITING = 100
"""Jobs that may wait in one pool."""
LEASE_MS = 6_000
"""Time without a word of its worker after which a job is lost."""
KEPT_MS = 60_000
"""Time for which an answer waits for its asker, and for which the end of a job is known."""


class JobsFull(BrokerError):
    """As many jobs wait in a pool as may: its workers are slower than those who ask."""

    def __init__(self, pool: str, waiting: int) -> None:
        super().__init__(f"{waiting} jobs wait for workers of pool {pool}; try again later")


class Ends(StrEnum):
    """The jobs that a look at them ends."""

    NONE = ""
    WAITING = "waiting"
    """Those that no worker has taken."""
    ANY = "any"


class JobState(StrEnum):
    """How a job stands."""

    QUEUED = "QUEUED"
    TAKEN = "TAKEN"
    DONE = "DONE"
    LOST = "LOST"
    """Its worker was not heard from in time: it may have had effects."""
    GONE = "GONE"
    """There is no such job, or none any more."""


@record
class JobLook:
    """A job as its asker finds it; with the result once it is done."""

    state: JobState
    result: bytes = b""


class Jobs(Port):
    """The part of the broker that keeps jobs."""

    async def offer_job(self, pool: str, job: str, payload: bytes, wait_ms: int) -> None:
        """Puts a job into the pool's queue for at most `wait_ms`; safe to repeat. Raises `JobsFull`."""
        jobs, ready = self.keys.jobs(pool)
        offer = call(
            "offer_job",
            [self.keys.job(job), jobs, ready],
            job=job,
            payload=payload,
            wait_ms=wait_ms,
            most=MOST_WAITING,
        )
        reply = await self._run(offer, job)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
            case "FULL":
                full: OfferJobFull = reply.fields
                raise JobsFull(pool, full["waiting"])
            case _:
                raise reply.unexpected()

    async def waiting_jobs(self, pool: str, most: int) -> list[str]:
        """The jobs that wait in a pool, those first that may be taken for the shortest time."""
        jobs, _ = self.keys.jobs(pool)
        return [job.decode() for job in await self._connection.command("ZRANGE", jobs, 0, most - 1)]

    async def take_job(self, pool: str, job: str, worker: str) -> bytes | None:
        """Takes a job, if it still waits; answers what it is about."""
        jobs, _ = self.keys.jobs(pool)
        times = {"lease_ms": LEASE_MS, "kept_ms": KEPT_MS}
        take = call("take_job", [self.keys.job(job), jobs], job=job, worker=worker, **times)
        reply = await self._run(take, job)
        match reply.code:
            case "OK":
                taken: TakeJobOk = reply.fields
                return taken["payload"]
            case "NONE":
                return None
            case _:
                raise reply.unexpected()

    async def keep_job(self, job: str, worker: str) -> bool:
        """Says that the worker is at the job; False if nobody wants it any more."""
        times = {"lease_ms": LEASE_MS, "kept_ms": KEPT_MS}
        keep = call("keep_job", [self.keys.job(job)], worker=worker, **times)
        return (await self._run(keep, job)).code == "OK"

    async def answer_job(self, job: str, worker: str, result: bytes) -> bool:
        """Leaves the result for the asker; False if nobody wants it any more. Safe to repeat."""
        answer = call("answer_job", [self.keys.job(job)], worker=worker, result=result, kept_ms=KEPT_MS)
        return (await self._run(answer, job)).code == "OK"

    async def look_at_job(self, pool: str, job: str, ends: Ends = Ends.NONE) -> JobLook:
        """How a job stands, or stood when this look ended it."""
        jobs, _ = self.keys.jobs(pool)
        look = call("settle_job", [self.keys.job(job), jobs], job=job, ends=ends, kept_ms=KEPT_MS)
        reply = await self._run(look, job)
        state = JobState(reply.code)
        if state is not JobState.DONE:
            return JobLook(state)
        done: SettleJobDone = reply.fields
        return JobLook(state, done["result"])
