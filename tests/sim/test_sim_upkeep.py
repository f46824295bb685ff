"""Additions of the simulator: arq's promises, and disks that lose what was written last."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from arq.cron import CronJob, cron, next_cron
from hypothesis import given
from hypothesis import strategies as st

from sim.archive_moves import UpkeepRules
from sim.campaign import run_batch
from sim.crons import Hourly
from sim.double import opened
from sim.files import UNSYNCED_S, SimFiles
from sim.loop import SimLoop
from sim.upkeep import Job, SimQueue, UpkeepProcess
from sim.world import World


def _queue() -> tuple[SimLoop, SimQueue]:
    loop = SimLoop(Random(1))
    return loop, SimQueue(loop, Random(2))


def test_job_is_queued_once_and_given_to_one_process() -> None:
    _, queue = _queue()
    queue.put(Job("archive:s", "archive", b"[]", 0.0))
    queue.put(Job("archive:s", "archive", b"[]", 0.0))
    taken = queue.take(310.0)
    assert taken is not None
    assert queue.take(310.0) is None
    queue.done(taken)
    assert queue.next_s() is None


def test_job_of_a_process_that_died_is_given_out_again_when_its_mark_has_expired() -> None:
    loop, queue = _queue()
    queue.put(Job("archive:s", "archive", b"[]", 0.0))
    first = queue.take(310.0)
    assert queue.next_s() == 310.0
    loop.skip(310.0)
    assert queue.take(310.0) is first


def test_job_that_is_queued_again_outlives_the_end_of_the_one_that_was_lost() -> None:
    _, queue = _queue()
    queue.put(Job("archive:s", "archive", b"[]", 0.0))
    lost = queue.take(310.0)
    assert lost is not None
    queue.lose()
    queue.put(Job("archive:s", "archive", b"[]", 0.0))
    queue.done(lost)
    assert queue.take(310.0) is not None


def test_machine_takes_a_part_of_its_last_line_with_it_and_nothing_of_what_was_there_before() -> None:
    path, line, left = Path("/sim/rollout.jsonl"), b"a whole line\n", set()
    for seed in range(40):
        files = SimFiles(lambda: 0.0, Random(seed))
        for machine in ("w1", "w2"):
            with files.opened_on(machine)(path) as file:
                file.write(line)
        files.crashed("w1")
        assert files.content[path] == line * 2, "what w2 had read before it wrote stays"
        files.crashed("w2")
        left.add(len(files.content[path]))
    assert left <= set(range(len(line), 2 * len(line) + 1))
    assert len(left) > 5


def test_what_was_written_long_ago_stays_whatever_becomes_of_its_machine() -> None:
    path, now_s = Path("/sim/rollout.jsonl"), 0.0
    files = SimFiles(lambda: now_s, Random(1))
    with files.opened_on("w1")(path) as file:
        file.write(b"a whole line\n")
    now_s = UNSYNCED_S
    for _ in range(20):
        files.crashed("w1")
    assert files.content[path] == b"a whole line\n"


def test_closed_sessions_go_to_the_archive_and_come_back_in_a_simulation() -> None:
    (outcome,), _ = run_batch([7], "archives", traced=True)
    words = {tuple(line.split()[2::2][:2]) for line in outcome.lines}
    assert {("seal", "OK"), ("archive", "OK"), ("restore", "OK"), ("delete", "OK")} <= words


def test_upkeep_ends_what_was_cancelled_in_a_simulation() -> None:
    (outcome,), _ = run_batch([1], "abandoned", traced=True)
    acts = {tuple(line.split()[1:3]) for line in outcome.lines}
    assert ("u1", "commit") in acts


def test_simulation_that_ends_before_a_job_has_begun_says_nothing_of_it() -> None:
    with opened() as double, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        world = World(1, double, "archives")
        queue = SimQueue(world.loop, Random(2))
        process = UpkeepProcess(world.site, "u1", Random(1), queue, UpkeepRules(1, 5, 60.0))
        known = {job.name: job.coroutine for job in process._settings["cron_jobs"]}
        for name in known:
            process._begin(Job(name, name, b"[]", 0.0), known, {})
        process.kill()
        world.loop.close()
    assert known
    assert [str(one.message) for one in told] == []


def _crons() -> list[CronJob]:
    """The product's own, as a simulated process of upkeep has them."""
    with opened() as double:
        world = World(1, double, "archives")
        process = UpkeepProcess(
            world.site, "u1", Random(1), SimQueue(world.loop, Random(2)), UpkeepRules(1, 5, 60.0)
        )
        world.loop.close()
    jobs: list[CronJob] = process._settings["cron_jobs"]
    return jobs


CRONS = _crons()


async def _job(ctx: object) -> None:
    """The coroutine that a cron job needs; it does nothing."""


@given(
    st.sampled_from(CRONS), st.datetimes(datetime(2027, 1, 15), datetime(2027, 3, 1), timezones=st.just(UTC))
)
def test_cron_runs_next_when_arq_would_have_it_run(job: CronJob, now: datetime) -> None:
    at = {name: getattr(job, name) for name in ("minute", "second", "microsecond")}
    assert Hourly(job).after(now) == next_cron(now, **at)


@given(st.sampled_from(CRONS), st.integers(0, 10**6))
def test_cron_that_has_just_run_runs_again_when_arq_would_have_it_run(
    job: CronJob, microseconds: int
) -> None:
    hourly = Hourly(job)
    ran = hourly.after(datetime(2027, 1, 15, 8, tzinfo=UTC)) + timedelta(microseconds=microseconds)
    at = {name: getattr(job, name) for name in ("minute", "second", "microsecond")}
    assert hourly.after(ran) == next_cron(ran, **at)


def test_cron_of_some_hours_is_refused() -> None:
    with pytest.raises(ValueError, match="does not run in every hour"):
        Hourly(cron(_job, hour={3}))
