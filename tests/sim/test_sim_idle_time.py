"""Simulated time where nothing happens."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sim.campaign import run_batch
from sim.fixture import Fixture, new_session
from sim.loop import Lane, SimLoop
from sim.workloads import WORKLOADS, Workload


def test_sleeper_stays_as_far_from_its_next_look_as_it_was_when_time_is_skipped() -> None:
    loop, rung = SimLoop(Random(1)), []
    worker, person = Lane("worker"), Lane("person")
    loop.on(worker, lambda: rung.append(("looks", loop.time())), after=0.75)
    loop.on(person, lambda: rung.append(("acts", loop.time())), after=3600.0)
    loop.skip(3599.5, {worker})
    assert loop.next_timer({worker}) == 3600.0
    loop.run(100)
    assert rung == [("acts", 3600.0), ("looks", 3600.25)]


async def _after_an_hour(fixture: Fixture) -> None:
    """A person comes back to a session an hour later."""
    person = fixture.person()
    session = await new_session(fixture, person, "never")
    await fixture.site.loop.start(person.lane, asyncio.sleep(3600.0), "sleeps")
    await person.does(person.says(session), "says")


def test_fleet_is_not_made_to_look_for_work_all_through_an_idle_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "after_an_hour", Workload("after_an_hour", _after_an_hour))
    (outcome,), _ = run_batch([1], "after_an_hour")
    assert outcome.violation is None
    assert outcome.simulated_s > 3600.0
    assert outcome.steps < 5_000
