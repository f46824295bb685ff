"""Rules of a soak: what counts as growing, and what as the noise of a living deployment."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from proof.growth import FLOORS, Series, files_below, growth, kind_of, kinds, of_process, slower, verdict

TEN_MINUTES = [float(at) for at in range(0, 600, 5)]


def series(values: list[float], unit: str = "MiB", name: str = "memory of worker 0") -> Series:
    return Series(name, unit, tuple(zip(TEN_MINUTES, values, strict=False)))


def test_series_that_grows_is_named_with_its_figures() -> None:
    told = verdict(series([100 + at / 60 for at in TEN_MINUTES]))
    assert told == "memory of worker 0 grows by 60.0 ± 0.0 MiB an hour (mean 107.5, 4.9 in the last 295 s)"


def test_caches_that_fill_in_the_first_half_are_no_growth() -> None:
    assert verdict(series([100 + min(at, 240) / 10 for at in TEN_MINUTES])) == ""


def test_caches_that_fill_anew_behind_a_start_in_the_second_half_are_no_growth() -> None:
    values = [100 + max(0.0, min(at, 500) - 310) / 4 for at in TEN_MINUTES]
    assert verdict(series(values)), "its processes were started anew at 310 s"
    assert verdict(series(values), since=500) == ""
    still = [value + max(0.0, at - 500) / 20 for at, value in zip(TEN_MINUTES, values, strict=True)]
    assert verdict(series(still), since=500)


@pytest.mark.parametrize("unit", sorted(FLOORS))
@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_growth(unit: str, seed: int) -> None:
    random = Random(seed)
    assert verdict(series([1_000 + random.gauss(0, 50) for _ in TEN_MINUTES], unit)) == ""


@pytest.mark.parametrize("seed", range(5))
def test_waves_of_trees_that_come_and_go_are_no_growth(seed: int) -> None:
    """Neighbours are alike: a wave that rises at the end says less than its points taken one by one."""
    random, level, values = Random(seed), 0.0, []
    for _ in TEN_MINUTES:
        level = 0.95 * level + random.gauss(0, 5)
        values.append(300 + level)
    assert verdict(series(values, "keys")) == ""


@pytest.mark.parametrize("seed", range(5))
def test_growth_below_noise_is_found(seed: int) -> None:
    random = Random(seed)
    assert verdict(series([500 + at / 2 + random.gauss(0, 10) for at in TEN_MINUTES], "keys"))


def test_few_descriptors_more_are_no_growth_and_many_are() -> None:
    assert verdict(series([30.0] * 100 + [32.0] * 20, "")) == ""
    assert verdict(series([30 + at / 20 for at in TEN_MINUTES], ""))


def test_turns_that_get_slower_are_named_and_one_beside_a_killed_worker_is_not() -> None:
    random = Random(1)
    calm = [2 + random.random() for _ in range(200)]
    assert slower(calm[:100], calm[100:]) == []
    assert slower([*calm[:20], 9.0], [*calm[20:40], 9.5]) == []
    drifted = [took * 2 for took in calm[100:]]
    assert [line.partition(" went")[0] for line in slower(calm[:100], drifted)] == [
        "the probe's median",
        "the probe's p99",
    ]
    assert "the probe's p99" in slower(calm[:100], [*calm[100:198], 9.0, 9.0])[0]
    assert "too few" in slower(calm[:9], calm)[0]


@pytest.mark.parametrize("points", [0, 1, 10, 14])
def test_short_series_says_nothing(points: int) -> None:
    short = series([float(at**2) for at in range(points)])
    assert growth(short.points) is None
    assert verdict(short) == ""


def test_keys_are_counted_by_kind_without_their_ids() -> None:
    assert kind_of("dendro:{s3}:session:0199a2b4-0000") == "session"
    assert kind_of("dendro:{s3}:timers") == "timers"
    assert kinds(["dendro:{s0}:eq:a", "dendro:{s1}:eq:b", "arq:queue"]) == {"eq": 2, "arq": 1}


def test_process_is_looked_at_with_children_that_nobody_has_reaped() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        seen = of_process(os.getpid())
        assert seen["zombies"][0] >= 1
    assert seen["descriptors"][0] >= 3
    assert seen["memory"][0] > 1


def test_process_that_is_gone_has_no_values() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert of_process(child.pid) == {}


def test_files_are_counted_below_a_folder_and_none_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).touch()
    assert files_below(tmp_path) == 3
    assert files_below(tmp_path / "nowhere") == 0


def test_memory_of_a_process_is_what_it_allocates_and_no_file_that_others_may_have_mapped(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(bytes(16 << 20))
    before, _ = of_process(os.getpid())["memory"]
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as seen:
        assert seen[:: mmap.PAGESIZE].count(0) == (16 << 20) // mmap.PAGESIZE
        mapped, _ = of_process(os.getpid())["memory"]
        # The file system of temporary folders may keep files in memory: even so they are nobody's own.
        assert mapped < before + 8
    with mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE) as own:
        own[:: mmap.PAGESIZE] = bytes(range(1, 2)) * ((16 << 20) // mmap.PAGESIZE)
        assert of_process(os.getpid())["memory"][0] > mapped + 8
