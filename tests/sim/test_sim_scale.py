"""Laws of growth: they hold for small fleets, and a broken one is named."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest

from orchestrator.broker.claims import Shares
from sim.mutant import both, lua, swapped
from sim.scale import (
    SLICE_RESTED,
    SLICE_SHARDS,
    SLICE_WORKERS,
    Fit,
    Kept,
    Measured,
    Size,
    broken,
    fit,
    measured,
    run,
    tidied,
)


@pytest.mark.slice
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_small_fleets_keep_the_laws_of_growth() -> None:
    assert broken(*run(SLICE_WORKERS, SLICE_SHARDS, SLICE_RESTED)) == []


def test_fit_finds_what_grows_with_both() -> None:
    sizes = [Size(workers, shards) for workers in (8, 32, 128) for shards in (16, 64)]
    law = Fit(3.0, 2.0, 5.0, 0.25)
    found = fit([Measured(size) for size in sizes], lambda one: law.at(one.size.workers, one.size.shards))
    assert found.both == pytest.approx(law.both)
    assert found.share(128, 64) == pytest.approx(law.share(128, 64))


# ── planted ───────────────────────────────────────────────────────────────────────────────────────


def looks_by_worker() -> None:
    """Each worker of a cluster looks at every shard each second."""
    swapped_always(Shares, "next_looks", lambda self, pools: dict.fromkeys(range(self.shards), pools))


def swapped_always(owner: Any, name: str, made: Callable[..., Any]) -> None:
    swapped(owner, name, lambda real: made)()


def everybody_is_woken() -> None:
    """All workers that wait for anything are told of each session that becomes due."""
    both(
        lua("_wake", "if (pool.near or '') == '' then return tell_all(session, pool) end", ""),
        lua(
            "_wake",
            "  local last = box.last or ''\n",
            "  do return tell_all(session, pool) end\n  local last = ''\n",
        ),
    )()


def a_key_stays() -> None:
    """Each submission leaves a key of its own."""
    lua(
        "submit",
        "save_box(box)\n",
        "save_box(box)\nredis.call('SET', string.gsub(KEYS[2], ':sq:', ':trace:') .. text(n), '1')\n",
    )()


def upkeep_reads_all() -> None:
    """A tree at rest is looked at by upkeep again each minute."""
    lua("look_again", "if again == 0 then", "if false then")()


def of_looks() -> list[str]:
    sizes = [Size(workers, shards, clustered=True) for workers in SLICE_WORKERS for shards in SLICE_SHARDS]
    return broken([measured(size) for size in sizes], [])


def of_one_fleet() -> list[str]:
    return broken([measured(Size(8, 4))], [])


def of_upkeep() -> list[str]:
    return broken([], [tidied(sessions) for sessions in SLICE_RESTED])


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("plant", "count", "named"),
    [
        (looks_by_worker, of_looks, "idle work in a cluster of 3 nodes grows with workers times shards"),
        (everybody_is_woken, of_one_fleet, "workers are told of a submission"),
        (a_key_stays, of_one_fleet, "leaves 16 more keys of the kind trace"),
        (upkeep_reads_all, of_upkeep, "a session at rest costs upkeep"),
    ],
)
def test_broken_law_is_named(plant: Callable[[], None], count: Callable[[], list[str]], named: str) -> None:
    # What is planted must not stay in this process.
    with get_context("fork").Pool(1) as pool:
        found = pool.apply(_with, (plant, count))
    assert any(named in line for line in found), found


def _with(plant: Callable[[], None], count: Callable[[], list[str]]) -> list[str]:
    plant()
    return count()


def test_keys_that_outlive_deleted_sessions_are_named() -> None:
    kept = [Kept(sessions) for sessions in (1, 2)]
    kept[0].deleted["session"] = 1
    assert broken([], kept) == ["1 sessions: 1 keys of the kind session are left when all are deleted"]
