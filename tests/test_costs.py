"""How tests are ordered by their cost, which grew, and which `make test` leaves for the night."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import cast

import pytest

from tests.commit_seed import chosen
from tests.costs import ALONE_S, LEFT, TABLE, TURNS, WHOLE, grown, in_turns, left_by, longest_first, no_tests

ROOT = Path(__file__).parents[1]


def test_each_worker_begins_with_long_tests_and_nothing_is_lost() -> None:
    items = list("abcdefghij")
    costs = [{"c": 9.0, "h": 7.0, "j": 3.0}.get(item, 0.0) for item in items]
    ordered = longest_first(items, costs, items, 2)
    assert ordered[:5] == ["c", "a", "b", "d", "e"]
    assert ordered[5:] == ["h", "j", "f", "g", "i"]


def test_tests_that_share_something_stay_together_behind_their_long_ones() -> None:
    items = ["a1", "b1", "a2", "c1", "b2", "c2", "a3", "d1"]
    costs = [{"a2": 5.0, "b2": 4.0, "b1": 2.0}.get(item, 0.0) for item in items]
    ordered = longest_first(items, costs, [item[0] for item in items], 2)
    assert ordered == ["b2", "b1", "c1", "c2", "a2", "a1", "a3", "d1"]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("long", [0, 1, 4, 7])
@pytest.mark.parametrize("each", [1, 2, 7])
def test_any_number_of_workers_and_of_long_tests_has_each_test_once(
    workers: int, long: int, each: int
) -> None:
    items = list(range(7))
    costs = [float(number < long) for number in items]
    groups = [str(number // each) for number in items]
    assert sorted(longest_first(items, costs, groups, workers)) == items


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


class _Item:
    """A test, of which the choice looks at the name and the marks."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def _ran(items: list[_Item], turns: list[dict[str, float]], number: int) -> set[str]:
    left = left_by(cast("list[pytest.Item]", items), turns, number)
    return {item.nodeid for item in items} - {item.nodeid for item in left}


def test_long_test_runs_with_one_commit_in_as_many_as_there_are_turns_and_a_short_one_with_each() -> None:
    items = [_Item(f"tests/a/test_a.py::{name}") for name in ("one", "two", "three", "short")]
    one, two, three, short = (item.nodeid for item in items)
    turns = [{one: 2.0}, {two: 9.0}, {three: 4.0}]
    assert [_ran(items, turns, number) - {short} for number in range(7, 11)] == [{two}, {three}, {one}, {two}]
    assert all(short in _ran(items, turns, number) for number in range(3))


def test_file_that_has_only_long_tests_runs_its_shortest_when_no_other_has_its_turn() -> None:
    items = [_Item(f"tests/a/test_a.py::{name}") for name in ("brief", "lengthy")]
    brief, lengthy = (item.nodeid for item in items)
    turns = [{lengthy: 9.0}, {brief: 2.0}, {}]
    assert [_ran(items, turns, number) for number in range(3)] == [{lengthy}, {brief}, {brief}]


def test_slices_of_a_file_take_turns_beside_its_other_tests() -> None:
    items = [_Item(f"tests/a/test_a.py::{name}", "slice") for name in ("lengthy", "brief")]
    items.append(_Item("tests/a/test_a.py::short"))
    lengthy, brief, short = (item.nodeid for item in items)
    turns = [{lengthy: 9.0}, {brief: 2.0}, {}]
    assert [_ran(items, turns, number) - {short} for number in range(3)] == [{lengthy}, {brief}, {brief}]


def test_file_whose_shortest_test_takes_ten_seconds_has_its_turn_alone() -> None:
    item = _Item("tests/a/test_a.py::lengthy")
    assert [_ran([item], [{}, {item.nodeid: ALONE_S}, {}], number) for number in range(3)] == [
        set(),
        {item.nodeid},
        set(),
    ]


def test_way_through_a_subject_and_what_is_about_the_repository_run_with_each_commit() -> None:
    items = [
        _Item("tests/a/test_a.py::way", "always"),
        _Item("tests/a/test_a.py::other"),
        _Item("tests/test_pages.py::page"),
    ]
    way, other, page = (item.nodeid for item in items)
    turns = [{}, {way: 5.0, other: 6.0, page: 7.0}, {}]
    assert _ran(items, turns, 0) == {way, page}
    assert _ran(items, turns, 1) == {way, other, page}


def test_long_test_keeps_its_turn_and_a_new_one_takes_that_with_fewest_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.costs.TURNS", 4)
    before = [{"a::one": 3.0, "b::gone": 9.0}, {}, {}, {}]
    tests = {"a::one": 1.0, "a::two": 5.0, "a::three": 2.0, "a::four": 1.0, "a::five": 1.0, "b::new": 4.0}
    assert in_turns(tests, before) == [
        {"a::one": 1.0, "a::four": 1.0},
        {"a::two": 5.0},
        {"b::new": 4.0, "a::five": 1.0},
        {"a::three": 2.0},
    ]


def test_each_long_test_of_the_table_has_one_turn_and_the_turns_are_of_one_length() -> None:
    turns = json.loads(TABLE.read_text())["turns"]
    assert len(turns) == TURNS
    assert len({name for turn in turns for name in turn}) == sum(map(len, turns))
    took = [sum(turn.values()) for turn in turns]
    assert max(took) < 1.5 * min(took), "renumber them: `make costs` without `turns` in the table"


def test_what_make_test_leaves_out_runs_in_slices_or_at_night() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^(\w+): setup\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    left = set(re.findall(r"not (\w+)", recipes["test"]))
    assert left == set(LEFT)
    assert " -m " not in recipes["nightly"], "the night leaves nothing out"
    assert "DENDRO_NIGHT=1" in recipes["nightly"]
    assert ' -m "slice and not night"' in recipes["slices"]
    marked = {path for path in (ROOT / "tests").rglob("*.py") if "mark.slice" in path.read_text()}
    looked = [ROOT / folder for folder in re.findall(r" (tests/\w+)", recipes["slices"])]
    assert [path for path in marked if not any(map(path.is_relative_to, looked))] == [Path(__file__)]
    assert re.search(r"^ *part slices .* tests slices$", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_names_that_no_test_has_are_told_of_a_run_of_the_whole_suite_alone() -> None:
    there = [f"tests/a/test_{number}.py::test_it" for number in range(WHOLE)]
    names = [there[0], "tests/a/test_0.py::test_it[renamed]", "tests/gone/test_more.py::test_it"]
    assert no_tests(names, there) == {*names[1:]}
    assert no_tests(names, there[1:]) == set()
