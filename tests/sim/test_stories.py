"""Kept stories of calm runs: they are those of today, they bear harmless changes, and they tell of others."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from sim.mutation.sampling import all_changes
from sim.mutation.trial import hunt
from sim.stories import digests, kept
from sim.stories.calm import BEHIND_ENTRIES, disturbance
from sim.stories.digests import candidates, differing, digest, explained, keep_digests, kept_digests
from sim.stories.kept import all_differences, difference, keep, kept_runs, kept_stories, list_runs
from sim.stories.runs import Run, Told, stories
from sim.stories.steady import steady
from tests.commit_seed import chosen

PARTS = 6
OF_A_COMMIT = 36
"""Digests that are compared with each commit, about; at night all are."""
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


def _told(runs: dict[Run, str]) -> list[str]:
    return [f"{workload}, seed {seed}: {seen}" for (workload, seed), seen in differing(runs)]


@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(2))
def test_digests_of_this_commits_share_are_those_that_are_kept(part: int) -> None:
    kept = kept_digests()
    turns = max(1, len(kept) // OF_A_COMMIT)
    some = [run for run in kept if chosen(f"{run[0]}:{run[1]}", turns) == 0][part::2]
    told = _told({run: kept[run] for run in some})
    assert not told, "\n".join(["python -m sim.stories --explain WORKLOAD SEED tells what differs", *told])


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("part", range(2 * PARTS))
def test_all_digests_are_those_that_are_kept(part: int) -> None:
    all_of_them = kept_digests()
    told = _told({run: all_of_them[run] for run in list(all_of_them)[part :: 2 * PARTS]})
    assert not told, "\n".join(["python -m sim.stories --digests compares them", *told])


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


def test_digest_is_of_the_whole_story_and_stays_the_same_for_the_same_lines() -> None:
    assert digest(["## log", "a"]) == digest(["## log", "a"])
    assert len({digest(["## log", "a"]), digest(["## log", "b"]), digest(["## log"])}) == 3


def test_digests_are_read_as_they_were_kept_in_order_of_workloads_and_seeds(tmp_path: Path) -> None:
    with patch.object(digests, "FILE", tmp_path / "digests.txt"):
        assert kept_digests() == {}
        keep_digests({("tree", 12): "b" * 12, ("tree", 3): "a" * 12, ("asks", 1_000): "c" * 12})
        assert list(kept_digests().items()) == [
            (("asks", 1_000), "c" * 12),
            (("tree", 3), "a" * 12),
            (("tree", 12), "b" * 12),
        ]


def test_run_whose_digest_differs_is_explained_by_its_story_at_another_commit() -> None:
    now = next(stories([("single", 1)])).lines
    before = [line.replace("words p1", "woods p1") for line in now]
    with patch.object(digests, "_story_at", return_value=(before, "")):
        told = explained(("single", 1), "c" * 40)
    assert told[0] == "single, seed 1"
    assert any(line.startswith("    - ") and "woods p1" in line for line in told)
    assert any(line.startswith("    + ") and "words p1" in line for line in told)


def test_run_that_is_what_it_was_differs_in_nothing() -> None:
    told = next(stories([("single", 1)]))
    assert list(differing({("single", 1): digest(told.lines)})) == []
    assert list(differing({("single", 1): "0" * 12})) == [(("single", 1), digest(told.lines))]


def test_candidates_have_one_seed_of_each_workload_after_the_other_and_of_each_way() -> None:
    runs = candidates(["tree", "asks"])
    assert runs[:4] == [("tree", 0), ("asks", 0), ("tree", 1_000), ("asks", 1_000)]
    assert len(set(runs)) == len(runs)
    assert {seed // 1_000 for _, seed in runs} == {0, 1, 2, 3}


def test_runs_with_one_fault_have_it_behind_each_kind_of_entry_and_of_each_kind() -> None:
    places = [disturbance(number) for number in range(6 * len(BEHIND_ENTRIES))]
    assert {place.kind for place in places[: len(BEHIND_ENTRIES)]} == set(BEHIND_ENTRIES)
    assert {(place.left, place.what) for place in places} == {
        (left, what) for left in (1, 2) for what in ("kill", "revoke", "drain")
    }
