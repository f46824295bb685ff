"""A slice of the simulator's seeds: others for each commit, the same for a commit run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim.campaign import campaign, run_batch
from sim.invariants import CASES, RULES, SENTENCES
from sim.workloads import WORKLOADS
from tests.commit_seed import NIGHT, base_seed, commit_number
from tests.costs import TURNS

ROOT = Path(__file__).parent.parent.parent
SEEDS = Path(__file__).with_name("seeds.txt")
SLICE = 150

pytestmark = pytest.mark.slice


def known_seeds() -> list[Any]:
    """Those that the commit runs, each third one in its turn; the others are left for the night."""
    lines = [line.split(None, 2) for line in SEEDS.read_text(encoding="utf-8").splitlines()]
    seeds = [(words[0], int(words[1])) for words in lines if words and not words[0].startswith("#")]
    late = [not NIGHT and at % TURNS != commit_number() % TURNS for at in range(len(seeds))]
    return [
        pytest.param(*seed, marks=[pytest.mark.night] if is_late else [])
        for seed, is_late in zip(seeds, late, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.timeout(300)
def test_fleet_keeps_every_rule_under_the_seeds_of_this_commit() -> None:
    first = base_seed()
    report = campaign(range(first, first + SLICE), min(2, os.cpu_count() or 1))
    told = [f"python -m sim --seed {failed.seed} --trace: {failed.violation}" for failed in report.failures]
    assert not told, "\n".join(told)
    assert report.commits > 10 * SLICE / 2


@pytest.mark.parametrize(("workload", "seed"), known_seeds())
def test_fleet_keeps_every_rule_under_a_seed_that_once_broke_one(workload: str, seed: int) -> None:
    (outcome,), _ = run_batch([seed], None if workload == "any" else workload)
    assert outcome.violation is None


def test_seed_tells_the_same_story_in_every_process() -> None:
    digests = {_story(hash_seed) for hash_seed in ("1", "2")}
    assert len(digests) == 1


def _story(hash_seed: str) -> str:
    """The last line of a replay, which names the trace's digest."""
    words = [sys.executable, "-m", "sim", "--seed", "11", "--workload", "tree"]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


def test_story_is_the_same_whatever_was_told_before_it() -> None:
    (alone,), _ = run_batch([12], traced=True)
    (*_, after), _ = run_batch([9, 10, 11, 12], traced=True)
    assert alone.digest == after.digest


def test_page_of_the_simulator_names_every_rule_and_every_workload() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    assert [name for name in (*SENTENCES, *WORKLOADS) if f"`{name}`" not in page] == []
    assert [rule for rule in SENTENCES.values() if rule not in page] == []
    cases = [*(rule.case for rule in RULES.values()), *CASES.values()]
    assert [case.text for case in cases if case.text not in page] == []
