"""A worker's jobs: taken while there is room, done once, kept alive, answered, or given up with an asker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from orchestrator.broker.errors import Corrupt, Unavailable
from orchestrator.runtime import worker as worker_module
from orchestrator.runtime.worker import KEEP_S, LEAVES, MOST_AT_ONCE, RETRY_S, TRUST_S, JobServer

POOLS = ("one", "two")


class Doer:
    """Does what it is told, when it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, str]] = []
        self.ends: dict[bytes, asyncio.Future[bytes]] = {}
        self.deadlines: list[tuple[str, float]] = []
        self.cancelled: list[bytes] = []

    def extend(self, claim: str, deadline_boottime: float) -> None:
        self.deadlines.append((claim, deadline_boottime))

    async def do(self, payload: bytes, claim: str) -> bytes:
        self.begun.append((payload, claim))
        end = self.ends.setdefault(payload, asyncio.get_running_loop().create_future())
        try:
            return await end
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise

    def finish(self, job: str, answer: bytes = b"done") -> None:
        self.ends[job.encode()].set_result(answer)


class Queue:
    """The jobs of some pools as Redis has them."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[str]] = {pool: [] for pool in POOLS}
        self.taken_first: set[str] = set()
        """Jobs that another worker takes at the last moment."""
        self.damaged: set[str] = set()
        self.unwanted: set[str] = set()
        self.away = 0
        """How many of the next words are not answered."""
        self.asked: list[tuple[str, int]] = []
        self.kept: list[str] = []
        self.answered: list[tuple[str, str, bytes]] = []
        self.news = asyncio.Event()

    def _word(self) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("away")

    async def waiting_jobs(self, pool: str, most: int) -> list[str]:
        self._word()
        self.asked.append((pool, most))
        return self.waiting[pool][:most]

    async def take_job(self, pool: str, job: str, worker: str) -> bytes | None:
        if job in self.damaged:
            raise Corrupt(job, "it is a string where a hash belongs")
        self.waiting[pool].remove(job)
        return None if job in self.taken_first else job.encode()

    async def keep_job(self, job: str, worker: str) -> bool:
        self._word()
        self.kept.append(job)
        return job not in self.unwanted

    async def answer_job(self, job: str, worker: str, answer: bytes) -> bool:
        self._word()
        self.answered.append((job, worker, answer))
        self.news.set()
        return True

    async def hears(self) -> None:
        self.news.clear()
        await asyncio.wait_for(self.news.wait(), 10)


class Time:
    """Sleeps that end when the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def boottime(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds == RETRY_S:
            return
        end = asyncio.get_running_loop().create_future()
        self.sleepers.append((seconds, end))
        await end

    async def passes(self) -> None:
        """Wakes agents that sleep, so that they say what there is to say."""
        sleepers, self.sleepers = self.sleepers, []
        assert {seconds for seconds, _ in sleepers} <= {KEEP_S}
        self.now += KEEP_S
        for _, end in sleepers:
            if not end.done():
                end.set_result(None)
        await settled()


async def settled() -> None:
    """Everything that can run has run."""
    for _ in range(50):
        await asyncio.sleep(0)


class Jobs:
    """A worker's server of jobs."""

    def __init__(self) -> None:
        self.queue, self.doer, self.time, self.room = Queue(), Doer(), Time(), True
        ports: Any = SimpleNamespace(
            broker=SimpleNamespace(jobs=self.queue),
            boottime=self.time.boottime,
            sleep=self.time.sleep,
            spawn=lambda work, name: asyncio.ensure_future(work),
        )
        self.server = JobServer(ports, self.doer, ("w1", POOLS), lambda: self.room)

    async def offered(self, *jobs: str, pool: str = "one") -> None:
        self.queue.waiting[pool] += jobs
        self.server.notice()
        await settled()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        serving = asyncio.ensure_future(self.server.serve())
        await settled()
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    @property
    def begun(self) -> list[str]:
        return [payload.decode() for payload, _ in self.doer.begun]


async def test_jobs_of_each_pool_are_taken_and_answered_each_under_its_own_name() -> None:
    jobs = Jobs()
    async with jobs.serving():
        await jobs.offered("a")
        await jobs.offered("b", pool="two")
        assert jobs.doer.begun == [(b"a", "job:a"), (b"b", "job:b")]
        for job in ("b", "a"):
            jobs.doer.finish(job, job.upper().encode())
            await jobs.queue.hears()
    assert jobs.queue.answered == [("b", "w1", b"B"), ("a", "w1", b"A")]
    assert jobs.doer.cancelled == []


async def test_so_many_jobs_run_at_once_and_the_end_of_one_makes_room_for_the_next() -> None:
    jobs = Jobs()
    names = [f"j{n}" for n in range(MOST_AT_ONCE + 2)]
    async with jobs.serving():
        await jobs.offered(*names)
        assert jobs.begun == names[:MOST_AT_ONCE]
        assert jobs.server.at_work == MOST_AT_ONCE
        for number, job in enumerate(names[1:3], 1):
            jobs.doer.finish(job)
            await settled()
            assert jobs.begun == names[: MOST_AT_ONCE + number]
        assert all(1 <= most <= MOST_AT_ONCE for _, most in jobs.queue.asked)


async def test_worker_without_room_takes_no_job_until_it_hears_of_one_again() -> None:
    jobs = Jobs()
    jobs.room = False
    async with jobs.serving():
        await jobs.offered("a")
        assert (jobs.begun, jobs.queue.asked) == ([], [])
        jobs.room = True
        await jobs.offered()
        assert jobs.begun == ["a"]


async def test_job_that_another_worker_took_first_hides_none_behind_it() -> None:
    jobs = Jobs()
    jobs.queue.taken_first = {"a", "c"}
    async with jobs.serving():
        await jobs.offered("a", "b", "c", "d")
        assert jobs.begun == ["b", "d"]
        assert [claim for claim, _ in jobs.doer.deadlines] == ["job:b", "job:d"]


async def test_jobs_that_cannot_be_read_hide_none_behind_them() -> None:
    jobs = Jobs()
    jobs.queue.damaged = {f"bad{number}" for number in range(MOST_AT_ONCE + 1)}
    async with jobs.serving():
        await jobs.offered(*sorted(jobs.queue.damaged), "a", "b")
        await jobs.offered("c", pool="two")
        assert jobs.begun == ["a", "b", "c"]


async def test_right_to_run_lasts_from_the_last_word_that_was_answered() -> None:
    jobs = Jobs()
    async with jobs.serving():
        await jobs.offered("a")
        assert jobs.doer.deadlines == [("job:a", 100.0 + TRUST_S)]
        await jobs.time.passes()
        jobs.queue.away = 1
        await jobs.time.passes()
        assert jobs.doer.deadlines[1:] == [("job:a", 102.0 + TRUST_S)], "what was not answered moves nothing"
        await jobs.time.passes()
        assert jobs.doer.deadlines[2:] == [("job:a", 106.0 + TRUST_S)]
        assert jobs.queue.kept == ["a", "a"]
        assert jobs.doer.cancelled == []


async def test_job_that_its_asker_gave_up_ends_without_an_answer_and_others_go_on() -> None:
    jobs = Jobs()
    async with jobs.serving():
        await jobs.offered("a", "b")
        jobs.queue.unwanted = {"a"}
        await jobs.time.passes()
        assert jobs.doer.cancelled == [b"a"]
        jobs.doer.finish("b")
        await jobs.queue.hears()
        assert jobs.server.at_work == 0
    assert jobs.queue.answered == [("b", "w1", b"done")]


async def test_job_that_fails_is_answered_so_and_its_error_stays_in_the_workers_log() -> None:
    jobs = Jobs()
    async with jobs.serving():
        await jobs.offered("a", "b")
        jobs.doer.ends[b"a"].set_exception(OSError("secret detail"))
        await jobs.queue.hears()
    ((job, _, answer), *_) = jobs.queue.answered
    told = orjson.loads(answer)
    assert (job, told["kind"]) == ("a", "failed")
    assert "secret" not in told["message"]


async def test_worker_that_leaves_ends_each_job_and_says_why() -> None:
    jobs = Jobs()
    async with jobs.serving():
        await jobs.offered("a", "b")
    assert sorted(jobs.doer.cancelled) == [b"a", b"b"]
    told = {job: orjson.loads(answer) for job, _, answer in jobs.queue.answered}
    assert told == {job: {"kind": "failed", "message": LEAVES} for job in "ab"}


async def test_answer_and_look_are_tried_again_while_redis_is_away() -> None:
    jobs = Jobs()
    async with jobs.serving():
        jobs.queue.away = 1
        await jobs.offered("a")
        assert jobs.begun == []
        await jobs.offered()
        assert jobs.begun == ["a"]
        jobs.queue.away = 3
        jobs.doer.finish("a")
        await jobs.queue.hears()
    assert jobs.queue.answered == [("a", "w1", b"done")]


async def test_answer_that_nobody_takes_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "ANSWER_S", 0.0)
    jobs = Jobs()
    async with jobs.serving():
        await jobs.offered("a", "b")
        jobs.queue.away = 10_000
        jobs.doer.finish("a")
        await settled()
        assert jobs.server.at_work == 1, "it makes room all the same"
        jobs.queue.away = 0
