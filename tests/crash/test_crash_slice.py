"""A slice of `make crash`, small enough for every run of the tests."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from tests.crash.driver import Options, crash
from tests.crash.points import ANY, OF_FLOWS, WEIGHTS, Doom, Point, choose

SEED = int(os.environ.get("CRASH_SEED", "7"))
PATIENCE_S = 400
"""More than a run gives its own parts, so that it says itself what did not come to an end."""


@pytest.mark.realredis
@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(PATIENCE_S)
async def test_thirty_killed_workers_lose_nothing_and_double_nothing() -> None:
    account = await crash(Options(kills=30, seed=SEED))
    assert not account.violations, f"CRASH_SEED={SEED}: {account.violations}"
    assert account.kills == 30
    assert account.takeovers_s, "some of the dead held a session"
    assert account.in_doubt, "some of them died in the middle of a command"


@pytest.mark.realredis
@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(PATIENCE_S)
async def test_twenty_killed_workers_leave_no_orphan_and_lose_no_letter_of_a_tree() -> None:
    account = await crash(Options(kills=20, seed=SEED, trees=True))
    assert not account.violations, f"CRASH_SEED={SEED}: {account.violations}"
    assert account.kills == 20
    assert account.takeovers_s, "some of the dead held an agent"
    assert account.agents > 10, "there were trees"


@pytest.mark.realredis
@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(PATIENCE_S)
async def test_six_killed_workers_settle_each_question_once_and_leave_no_process() -> None:
    account = await crash(Options(kills=6, seed=SEED, flows=True))
    assert not account.violations, f"CRASH_SEED={SEED}: {account.violations}"
    assert account.kills == 6
    assert account.takeovers_s, "some of the dead held a session"


def test_a_seed_chooses_the_same_deaths_again_and_all_kinds_of_them() -> None:
    first, again = Random(3), Random(3)
    chosen = [choose(first) for _ in range(1000)]
    assert chosen == [choose(again) for _ in range(1000)]
    assert set(Counter(point.name for point in chosen)) == set(WEIGHTS)
    of_flows = {choose(first, flows=True).name for _ in range(1000)}
    assert of_flows == set(WEIGHTS) | set(OF_FLOWS)


def test_a_doomed_worker_dies_at_its_crossing_and_nowhere_else() -> None:
    deaths: list[str] = []
    doom = Doom(Point("after:commit", 2), lambda: deaths.append("commit"))
    for name in ("after:commit", "before:commit", "sent:commit", "after:commit", "after:commit"):
        doom.at(name)
    assert deaths == ["commit"]
    anywhere = Doom(Point(ANY, 3), lambda: deaths.append("any"))
    for name in ("after:commit", "before:commit", "sent:commit", "after:commit"):
        anywhere.at(name)
    assert deaths == ["commit", "any"]
