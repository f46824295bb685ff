"""A week of waiting passes by a clock that is set, and each of its rules refuses a week that was spoiled."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from proof.week import DAY_S, DAYS, Clock, Day, Seen, Week, compiler, grown, waited, wrong_with

CLOCKS = "import time; print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())"

PARKED, TIMED = [SessionId("p0"), SessionId("p1")], [SessionId("t0")]
SEEN = Seen(dict.fromkeys(PARKED, (7, 1)), set(PARKED), [True], 0)


@pytest.fixture(scope="module")
def cc() -> str:
    found = compiler()
    if found is None:
        pytest.skip("the clock that can be set is made by a C compiler, and there is no cc on PATH")
    return found


@pytest.fixture
def week(tmp_path: Path, cc: str) -> Week:
    return Week(Clock(tmp_path, cc), parked=PARKED, timed=TIMED, marks=dict(SEEN.marks))


def test_clock_sets_real_time_alone(tmp_path: Path, cc: str) -> None:
    clock = Clock(tmp_path, cc)
    clock.advance(DAY_S)
    clock.advance(DAY_S)
    said = subprocess.check_output([sys.executable, "-c", CLOCKS], env=clock.environ, text=True)
    real, boot, monotonic = map(float, said.split())
    assert real - time.time() == pytest.approx(2 * DAY_S, abs=60)
    assert boot == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)
    assert monotonic == pytest.approx(time.monotonic(), abs=60)


def test_week_that_is_fine_breaks_no_rule(week: Week) -> None:
    early = replace(SEEN, asked={*PARKED, *TIMED}, idle_archived=[False], ended_left=1)
    assert wrong_with(week, 1, early) == []
    assert wrong_with(week, DAYS, SEEN) == []


@pytest.mark.parametrize(
    ("day", "spoil", "named"),
    [
        (7, lambda seen: replace(seen, marks={"p0": (7, 1)}), "1 sessions that wait are gone"),
        (7, lambda seen: replace(seen, marks={**seen.marks, "p1": (7, 2)}), "were claimed or written to"),
        (7, lambda seen: replace(seen, asked={"p0"}), "1 sessions that wait are not in the queue"),
        (7, lambda seen: replace(seen, asked={*PARKED, *TIMED}), "0 approvals that have a limit"),
        (1, lambda seen: seen, "1 approvals that have a limit of 3 days are over"),
        (7, lambda seen: replace(seen, idle_archived=[True, False]), "1 sessions that nobody closed"),
        (7, lambda seen: replace(seen, ended_left=2), "2 closed sessions are not deleted"),
    ],
)
def test_each_rule_refuses_a_spoiled_day(
    week: Week, day: int, spoil: Callable[[Seen], Seen], named: str
) -> None:
    (line,) = wrong_with(week, day, spoil(SEEN))
    assert named in line


@pytest.mark.parametrize("more", [{"mib": 13.0}, {"keys": 101}, {"commands": Counter(get=1_300)}])
def test_cost_that_grows_is_named(more: dict[str, Any]) -> None:
    first = Day(1, Counter(get=1_000), 10.0, 100, 1.0, 1.0, 1.0)
    assert grown([first, first, replace(first, number=7)]) == []
    assert len(grown([first, first, replace(first, number=7, **more)])) == 1


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.realredis
@pytest.mark.timeout(1200)
def test_sessions_that_waited_for_a_week_are_all_answered_behind_a_restart(tmp_path: Path, cc: str) -> None:
    week, _ = waited(tmp_path, cc, 200)
    assert week.findings == []
    assert (len(week.days), week.answered) == (DAYS, 200)
    assert week.at_gateway > 0
