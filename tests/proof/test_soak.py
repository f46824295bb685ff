"""A soak names each leak that is planted in it, and goes on where an earlier sitting of it ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from proof.soak import WARM_S, Soak
from proof.soak_processes import LEAKS

ROOT = Path(__file__).parents[2]
NAMED = {
    "memory": "memory of upkeep grows",
    "descriptors": "descriptors of upkeep grows",
    "threads": "threads of upkeep grows",
    "processes": "zombies of upkeep grows",
    "keys": "keys leaked grows",
    "streams": "entries queue grows",
    "redis": "data of Redis grows",
    "files": "files in home grows",
    "temporary": "files in tmp grows",
    "disk": "disk of home grows",
    "latency": "the probe's median went from",
}
"""Findings by the leak that they are about."""


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.realredis
@pytest.mark.timeout(900)
def test_each_planted_leak_is_named() -> None:
    assert set(NAMED) == set(LEAKS)
    argv = [sys.executable, "-m", "proof.soak", "--minutes", "4", "--agents", "20", "--leak", "all"]
    run = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    findings = run.stdout.partition("## Findings")[2]
    assert run.returncode == 1, run.stdout + run.stderr
    assert [leak for leak, line in NAMED.items() if line not in findings] == [], run.stdout
    assert "keys of the kind leaked are left of deleted sessions" in findings
    assert "MiB more than at the begin" in findings


def sat(minutes: float, sitting_s: float, file: Path) -> Soak:
    running = SimpleNamespace(base_url="http://127.0.0.1:1/v1")
    soak = Soak(cast(Any, running), Random(1), minutes, sitting_s)
    soak.go_on(file)
    return soak


def test_sitting_goes_on_with_what_the_one_before_has_measured(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    first = sat(240, 7_000, file)
    assert first.since_s == 7_200
    assert not first.judged
    first.began -= 6_000
    first.put("memory of upkeep", 80.5, "MiB")
    first.put("keys sq", 3, "keys")
    first.done.update(turns=7)
    first.living |= {SessionId("a"), SessionId("b")}
    first.stay |= {SessionId("b"), SessionId("c")}
    first.ended.extend([SessionId("d"), SessionId("e")])
    first.turns[SessionId("b")] = 12
    first.probes.append((10.0, 0.5))
    first.costs["worker"] = 30.0
    first.before_kib, first.unseen = 2_000.0, {"deleted": 8.0}
    first.keep(file)

    second = sat(240, 7_400, file)
    assert second.sittings == [0.0, 7_000.0]
    assert 7_000 <= second.at_s < 7_060, "the load of both counts"
    assert second.judged
    assert second.since_s == 7_000 + WARM_S
    assert [value for _, value in second.series["memory of upkeep", "MiB"]] == [80.5]
    ((at, value),) = second.series["keys sq", "keys"]
    assert value == 3
    assert 6_000 <= at < 6_060
    assert second.done == {"turns": 7}
    assert second.living == {"a", "b"}
    assert second.stay == {"b", "c"}
    assert list(second.ended) == ["d", "e"]
    assert second.waiting == ["b"]
    assert second.turns == {"b": 12}
    assert second.probes == [(10.0, 0.5)]
    assert (second.costs, second.before_kib, second.unseen) == ({"worker": 30.0}, 2_000.0, {"deleted": 8.0})


def test_load_that_is_ended_early_is_judged_and_a_sitting_is_not(tmp_path: Path) -> None:
    ended, rested = (sat(240, 7_000, tmp_path / "soak.json") for _ in range(2))
    for soak in (ended, rested):
        soak.began -= 3_000
        assert not soak.over
    ended.end()
    rested.rest()
    assert ended.over
    assert ended.judged
    assert ended.since_s == pytest.approx(1_500, abs=30)
    assert rested.over
    assert not rested.judged
    assert rested.minutes == 240
