"""Work of a pool as its door waits for it: how long, for whom, and what it leaves behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.job_queue import Ends, JobLook, JobState
from orchestrator.gateways.pool_jobs import FILES_S, GRACE_S, JobError, PoolJobs
from orchestrator.protocol import jobs as j
from orchestrator.protocol.wire import written

DONE = orjson.dumps(written(j.CommandResult(exit_code=0, stdout="1", stderr="")))


class Pool:
    """A pool whose job stands, second by second, as a test says."""

    def __init__(self, *states: JobState) -> None:
        self.states = list(states)
        self.now = 0.0
        self.looks: list[Ends] = []
        broker = SimpleNamespace(jobs=self)
        self.door = PoolJobs(
            cast(Any, broker), "gpu", lambda: "id", 5.0, monotonic=lambda: self.now, sleep=self.sleep
        )

    async def offer_job(self, pool: str, id: str, payload: bytes, kept_ms: int) -> None:
        assert kept_ms == 6_000

    async def sleep(self, seconds: float) -> None:
        self.now += 1.0
        assert self.now <= FILES_S, "it would be waited for for ever"
        if len(self.states) > 1:
            self.states.pop(0)

    async def look_at_job(self, pool: str, id: str, ends: Ends) -> JobLook:
        self.looks.append(ends)
        return JobLook(self.states[0], DONE)


COMMAND = j.RunCommand(command=("true",), cwd="/w", timeout_ms=7_000)
QUEUED, TAKEN, OVER = JobState.QUEUED, JobState.TAKEN, JobState.DONE


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ((QUEUED, TAKEN, OVER), ""),
        ((*[QUEUED] * 4, *[TAKEN] * 15, OVER), ""),
        ((QUEUED,), "no worker of pool gpu has taken it within 5 s"),
        ((TAKEN,), f"was not done within {7 + GRACE_S:.0f} s"),
        ((QUEUED, TAKEN, JobState.LOST), "may have had effects"),
        ((QUEUED, TAKEN, JobState.GONE), "nobody has an answer"),
    ],
)
async def test_job_is_waited_for_as_long_as_it_may_take_from_when_it_was_taken_and_ended_behind_that(
    states: tuple[JobState, ...], why: str
) -> None:
    pool = Pool(*states)
    if why:
        with pytest.raises(JobError, match=why):
            await pool.door.do(COMMAND, j.CommandResult)
    else:
        assert (await pool.door.do(COMMAND, j.CommandResult)).stdout == "1"
    # However it ends: nobody asks for it any more, and who is at it is told to end it.
    assert pool.looks[-1] is Ends.ANY
    assert Ends.ANY not in pool.looks[:-1]
    assert (Ends.WAITING in pool.looks) is (why.startswith("no worker"))
