"""Kept stories of calm runs: they are those of today, they bear harmless changes, and they tell of others."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from sim.mutation.sampling import all_changes
from sim.mutation.trial import hunt
from sim.stories import kept
from sim.stories.kept import all_differences, difference, keep, kept_runs, kept_stories, list_runs
from sim.stories.runs import Run, Told, stories
from sim.stories.steady import steady

PARTS = 6
SHOWN = "return folded if len(folded) <= most else"
STEADY: tuple[Run, ...] = (("approvals", 1), ("reviews", 0), ("tree", 1), ("desks", 100))


def _differences(runs: list[Run]) -> list[str]:
    old = {workload: kept_stories(workload) for workload in {workload for workload, _ in runs}}
    seen = (difference(old[told.workload].get(told.seed, []), told) for told in stories(runs))
    return [str(one) for one in seen if one is not None]


@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_stories_of_the_slice_are_those_that_are_kept(part: int) -> None:
    told = _differences(kept_runs(slice_only=True)[part::PARTS])
    assert not told, "\n\n".join(["python -m sim.stories compares them, --renew keeps others", *told])


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_stories_are_those_that_are_kept(part: int) -> None:
    often = set(kept_runs(slice_only=True))
    told = _differences([run for run in kept_runs() if run not in often][part::PARTS])
    assert not told, "\n\n".join(["python -m sim.stories compares them, --renew keeps others", *told])


@pytest.mark.slice
@pytest.mark.parametrize("run", STEADY, ids=[workload for workload, _ in STEADY])
def test_story_stays_as_it_is_with_more_round_trips_and_turns_of_the_loop(run: Run) -> None:
    _, _, shaken = steady(run)
    assert shaken == ""


@pytest.mark.slow
@pytest.mark.slice
def test_kept_story_tells_of_a_change_that_breaks_no_rule() -> None:
    """Agents and people are shown two characters more of a task."""
    longer = next(change for change in all_changes("core") if change.before.startswith(SHOWN))
    plan = [run for run in kept_runs() if run[0] in ("plans", "tree", "watchdogs")]
    told = hunt(longer, plan, 120.0, stories=True)
    assert told["rule"] == "story", told
    assert "    - " in told["seen"]
    assert "    + " in told["seen"]


def test_difference_names_who_saw_it_first_and_both_lines() -> None:
    before = ["## client c1", "a", "## log of p1s1", "one", "two", "three"]
    after = ["## client c1", "b", "## log of p1s1", "one", "2", "three"]
    seen = difference(before, Told("tree", 3, after, "", 0.0))
    assert seen is not None
    assert (seen.who, seen.before, seen.after, seen.context) == ("log of p1s1", "two", "2", ("one",))
    assert str(seen).splitlines() == [
        "tree, seed 3: log of p1s1",
        "      one",
        "    - two",
        "    + 2",
        "      and 1 more of its sections differ",
    ]


def test_every_line_that_differs_can_be_told_section_by_section() -> None:
    before = ["## client c1", "a", "## log of p1s1", "one", "two", "three"]
    after = ["## client c1", "a", "b", "## log of p1s1", "one", "2"]
    assert all_differences(before, Told("tree", 3, after, "", 0.0)) == [
        "tree, seed 3",
        "  log of p1s1",
        "    - two",
        "    + 2",
        "    - three",
        "  client c1",
        "    + b",
    ]


def test_same_story_differs_in_nothing_and_a_shorter_one_in_what_is_gone() -> None:
    before = ["## log of p1s1", "one", "two"]
    assert difference(before, Told("tree", 3, list(before), "", 0.0)) is None
    seen = difference(before, Told("tree", 3, before[:2], "", 0.0))
    assert seen is not None
    assert (seen.before, seen.after) == ("two", "(nothing more)")


def test_broken_rule_is_a_difference_whatever_the_story_says() -> None:
    seen = difference(["## log"], Told("tree", 3, ["## log"], "alone: two hold it", 0.0))
    assert seen is not None
    assert seen.after == "alone: two hold it"


def test_stories_are_read_as_they_were_kept(tmp_path: Path) -> None:
    with patch.object(kept, "FOLDER", tmp_path), patch.object(kept, "LIST", tmp_path / "runs.txt"):
        told = {("tree", 3): ["## log", "a"], ("tree", 1): ["## log", "b"], ("turns", 2): ["## log", "c"]}
        keep(told)
        list_runs([(("tree", 3), True), (("tree", 1), False)])
        assert kept_stories("tree") == {1: ["## log", "b"], 3: ["## log", "a"]}
        assert kept_stories("waits") == {}
        assert kept_runs() == [("tree", 3), ("tree", 1)]
        assert kept_runs(slice_only=True) == [("tree", 3)]
