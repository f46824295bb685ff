"""How tests are ordered by their cost, which grew, and which `make test` leaves for the night."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commit_seed import chosen
from tests.costs import LEFT, WRITE, drawn, grown, longest_first

ROOT = Path(__file__).parents[1]


def test_each_worker_begins_with_long_tests_and_nothing_is_lost() -> None:
    items = list("abcdefghij")
    costs = [{"c": 9.0, "h": 7.0, "j": 3.0}.get(item, 0.0) for item in items]
    ordered = longest_first(items, costs, 2)
    assert ordered[:5] == ["c", "j", "a", "b", "d"]
    assert ordered[5:] == ["h", "e", "f", "g", "i"]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("long", [0, 1, 4, 7])
def test_any_number_of_workers_and_of_long_tests_has_each_test_once(workers: int, long: int) -> None:
    items = list(range(7))
    costs = [float(number < long) for number in items]
    assert sorted(longest_first(items, costs, workers)) == items


def test_files_that_grew_most_are_named_first() -> None:
    before = {"a": 10.0, "b": 1.0}
    now = {"a": 13.0, "b": 20.0, "c": 5.0, "d": 0.5}
    assert grown(now, before) == [("b", 1.0, 20.0), ("c", 0.0, 5.0), ("a", 10.0, 13.0)]


def test_each_choice_comes_within_as_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in range(3):
        monkeypatch.setattr("tests.commit_seed.base_seed", lambda seed=seed: seed)
        found.add(chosen("a test", 3))
    assert found == {0, 1, 2}


@pytest.mark.parametrize("everything", [False, True])
def test_long_test_runs_with_every_other_commit_and_each_night(
    everything: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv(WRITE, raising=False)
    monkeypatch.setattr("tests.costs.NIGHT", everything)
    ran = []
    for seed in range(4):
        monkeypatch.setattr("tests.commit_seed.base_seed", lambda seed=seed: seed)
        ran.append(drawn(request.node))
    assert ran in ([[True] * 4] if everything else [[True, False] * 2, [False, True] * 2])


def test_what_make_test_leaves_out_runs_in_slices_or_at_night() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^(\w+): setup\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    left = set(re.findall(r"not (\w+)", recipes["test"]))
    assert left == set(LEFT)
    assert " -m " not in recipes["nightly"], "the night leaves nothing out"
    assert "DENDRO_NIGHT=1" in recipes["nightly"]
    assert " -m slice" in recipes["slices"]
    marked = {path for path in (ROOT / "tests").rglob("*.py") if "mark.slice" in path.read_text()}
    looked = [ROOT / folder for folder in re.findall(r" (tests/\w+)", recipes["slices"])]
    assert [path for path in marked if not any(map(path.is_relative_to, looked))] == [Path(__file__)]
    assert re.search(r"^ *part slices .* tests slices$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
