"""The pace of a worker: what it did for each pool within the last minute."""

from __future__ import annotations

from orchestrator.broker.records import Settlement, Spend
from orchestrator.broker.worker_state import Pace
from orchestrator.runtime.worker import Paces


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pace_is_counted_by_pool_over_the_last_minute() -> None:
    paces = Paces(clock := Clock())
    assert paces.take() == {}
    for _ in range(6):
        clock.now += 10
        paces.claimed("gpu")
        paces.settled("gpu", [Settlement("1", Spend(100, 5, 1)), Settlement("2", None)])
        told = paces.take()
    assert told == {"gpu": Pace(0.1, 0.2, 600)}
    clock.now += 10
    assert paces.take()["gpu"].claims_per_s == round(5 / 60, 2), "the first is more than a minute old"
    for _ in range(7):
        clock.now += 10
        told = paces.take()
    assert told == {}, "what is older than a minute counts no more"


def test_pace_of_a_worker_that_has_just_begun_is_not_blown_up() -> None:
    paces = Paces(clock := Clock())
    paces.claimed("gpu")
    clock.now += 0.001
    assert paces.take()["gpu"].claims_per_s == 1.0
