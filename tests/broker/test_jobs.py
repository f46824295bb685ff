"""Jobs of a pool: bounded, taken once, answered once, lost with their worker and never begun again."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from orchestrator.broker import job_queue
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Corrupt
from orchestrator.broker.job_queue import Ends, JobLook, JobsFull, JobState
from orchestrator.gateways.pool_jobs import PATIENCE_S, PoolJobs
from orchestrator.protocol.jobs import FileContent, ReadFile
from orchestrator.protocol.wire import written

POOL = "default"


async def offered(broker: Broker, job: str = "j", wait_ms: int = 60_000) -> None:
    await broker.jobs.offer_job(POOL, job, b"look", wait_ms)


async def look(broker: Broker, job: str = "j", ends: Ends = Ends.NONE) -> JobLook:
    return await broker.jobs.look_at_job(POOL, job, ends)


async def test_asker_gets_the_answer_of_the_one_worker_that_took_the_job(broker: Broker) -> None:
    await offered(broker)
    assert (await look(broker)).state is JobState.QUEUED
    assert await broker.jobs.waiting_jobs(POOL, 10) == ["j"]
    taken = await asyncio.gather(*(broker.jobs.take_job(POOL, "j", f"w{n}") for n in range(8)))
    [winner] = [n for n, payload in enumerate(taken) if payload == b"look"]
    assert (await look(broker)).state is JobState.TAKEN
    assert await broker.jobs.waiting_jobs(POOL, 10) == []
    assert not await broker.jobs.answer_job("j", f"w{winner + 1}", b"not mine")
    assert await broker.jobs.answer_job("j", f"w{winner}", b"seen")
    assert await look(broker) == JobLook(JobState.DONE, b"seen")
    assert await look(broker) == JobLook(JobState.DONE, b"seen"), "an answer that was lost is read again"
    assert await broker.jobs.take_job(POOL, "j", "w9") is None


async def test_worker_that_asks_again_has_the_job_that_it_took(broker: Broker) -> None:
    await offered(broker)
    assert (
        await broker.jobs.take_job(POOL, "j", "w1") == await broker.jobs.take_job(POOL, "j", "w1") == b"look"
    )
    assert await broker.jobs.take_job(POOL, "j", "w2") is None


async def test_job_that_is_offered_again_after_a_lost_answer_stands_once(broker: Broker) -> None:
    await offered(broker)
    await offered(broker)
    assert await broker.jobs.waiting_jobs(POOL, 10) == ["j"]
    await broker.jobs.take_job(POOL, "j", "w1")
    await offered(broker)
    assert await broker.jobs.waiting_jobs(POOL, 10) == [], "what was taken does not come back"


async def test_job_that_its_asker_gave_up_is_begun_by_nobody(broker: Broker) -> None:
    await offered(broker)
    assert (await look(broker, ends=Ends.ANY)).state is JobState.QUEUED
    assert await broker.jobs.waiting_jobs(POOL, 10) == []
    assert await broker.jobs.take_job(POOL, "j", "w1") is None
    assert (await look(broker)).state is JobState.GONE


@pytest.mark.parametrize("ends", [Ends.WAITING, Ends.ANY])
async def test_offer_that_comes_behind_the_end_of_its_job_is_begun_by_nobody(
    broker: Broker, ends: Ends
) -> None:
    assert (await look(broker, ends=ends)).state is JobState.GONE
    await offered(broker)
    assert await broker.jobs.waiting_jobs(POOL, 10) == []
    assert await broker.jobs.take_job(POOL, "j", "w1") is None
    assert (await look(broker)).state is JobState.GONE


async def test_asker_without_patience_leaves_a_job_that_a_worker_has(broker: Broker) -> None:
    await offered(broker)
    await broker.jobs.take_job(POOL, "j", "w1")
    assert (await look(broker, ends=Ends.WAITING)).state is JobState.TAKEN
    assert await broker.jobs.answer_job("j", "w1", b"seen")
    assert (await look(broker, ends=Ends.ANY)) == JobLook(JobState.DONE, b"seen")


async def test_door_waits_for_a_job_that_a_worker_took_at_the_last_moment(broker: Broker) -> None:
    seconds = 0.0

    async def sleep(_: float) -> None:
        nonlocal seconds
        if not seconds:
            assert await broker.jobs.take_job(POOL, "j", "w1") is not None
        else:
            assert await broker.jobs.answer_job(
                "j", "w1", orjson.dumps(written(FileContent(data_base64="YQ==")))
            )
        seconds += 2 * PATIENCE_S

    pool = PoolJobs(broker, POOL, lambda: "j", monotonic=lambda: seconds, sleep=sleep)
    assert (await pool.do(ReadFile(path="/a"), FileContent)).data_base64 == "YQ=="


async def test_worker_learns_that_its_asker_gave_up(broker: Broker) -> None:
    await offered(broker)
    await broker.jobs.take_job(POOL, "j", "w1")
    assert await broker.jobs.keep_job("j", "w1")
    assert not await broker.jobs.keep_job("j", "w2")
    assert (await look(broker, ends=Ends.ANY)).state is JobState.TAKEN
    assert not await broker.jobs.keep_job("j", "w1")
    assert not await broker.jobs.answer_job("j", "w1", b"late")


async def test_job_of_a_lost_worker_is_over_and_its_late_answer_finds_nobody(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "LEASE_MS", -1)
    await offered(broker)
    await broker.jobs.take_job(POOL, "j", "w1")
    assert (await look(broker)).state is JobState.LOST
    assert (await look(broker, ends=Ends.ANY)).state is JobState.LOST, "it is told again"
    await offered(broker)
    assert await broker.jobs.waiting_jobs(POOL, 10) == []
    assert not await broker.jobs.keep_job("j", "w1")
    assert not await broker.jobs.answer_job("j", "w1", b"late")
    assert await broker.jobs.take_job(POOL, "j", "w2") is None, (
        "it may have had effects: nobody begins it again"
    )


async def test_pool_holds_a_bounded_number_of_jobs_that_may_still_be_taken(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "MOST_WAITING", 2)
    await offered(broker, "late", wait_ms=1)
    await offered(broker, "one")
    while (await look(broker, "late")).state is not JobState.GONE:
        await asyncio.sleep(0)
    await offered(broker, "two")
    with pytest.raises(JobsFull, match="2 jobs wait for workers of pool default"):
        await offered(broker, "three")
    assert await broker.jobs.waiting_jobs(POOL, 10) == ["one", "two"]
    await broker.jobs.offer_job("other", "three", b"look", 60_000)


async def test_waiting_worker_hears_of_a_job(broker: Broker) -> None:
    cursors = (await broker.claims.wait_for_notices(POOL, "w1", {}, 0.01)).cursors
    await offered(broker)
    notices = await broker.claims.wait_for_notices(POOL, "w1", cursors, 5.0)
    assert notices.jobs
    assert notices.shards == ()
    later = await broker.claims.wait_for_notices(POOL, "w1", notices.cursors, 0.01)
    assert not later.jobs


async def test_damaged_job_is_named_and_left_alone(broker: Broker) -> None:
    await broker._connection.command("SET", broker.keys.job("j"), "no hash")
    with pytest.raises(Corrupt):
        await offered(broker)
    with pytest.raises(Corrupt):
        await broker.jobs.take_job(POOL, "j", "w1")
