"""Line differences: right, short, and in the form that people and programs know."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.folders import linediff
from orchestrator.folders.linediff import line_edits, split_lines, unified_diff
from tests.commit_seed import examples

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n"]), max_size=14)


def longest_common(old: list[str], new: list[str]) -> int:
    best = [0] * (len(new) + 1)
    for line in old:
        before = 0
        for index, other in enumerate(new):
            kept = best[index + 1]
            best[index + 1] = before + 1 if line == other else max(best[index + 1], best[index])
            before = kept
    return best[-1]


def rebuilt(old: list[str], new: list[str]) -> list[str]:
    result, position = [], 0
    for edit in line_edits(old, new):
        result += old[position : edit.old_start] + new[edit.new_start : edit.new_end]
        position = edit.old_end
    return result + old[position:]


@settings(max_examples=examples(300), deadline=None)
@given(TEXTS, TEXTS)
def test_edits_lead_from_old_to_new_by_a_shortest_way(old: list[str], new: list[str]) -> None:
    edits = line_edits(old, new)
    assert rebuilt(old, new) == new
    changed = sum(edit.old_end - edit.old_start + edit.new_end - edit.new_start for edit in edits)
    assert changed == len(old) + len(new) - 2 * longest_common(old, new)
    assert all(one.old_end < two.old_start for one, two in pairwise(edits))


@settings(max_examples=examples(100), deadline=None)
@given(TEXTS, TEXTS, st.integers(0, 3))
def test_edits_are_right_where_the_search_gives_up(old: list[str], new: list[str], depth: int) -> None:
    kept, linediff.MAX_SEARCH_DEPTH = linediff.MAX_SEARCH_DEPTH, depth
    try:
        assert rebuilt(old, new) == new
    finally:
        linediff.MAX_SEARCH_DEPTH = kept


def test_equal_texts_have_no_diff() -> None:
    assert unified_diff("a\nb", "a\nb") == ""


def test_changes_share_a_hunk_while_their_contexts_meet() -> None:
    old = "".join(f"{n}\n" for n in range(12))
    near = old.replace("2\n", "two\n", 1).replace("5\n", "five\n", 1)
    assert unified_diff(old, near, 1) == "@@ -2,6 +2,6 @@\n 1\n-2\n+two\n 3\n 4\n-5\n+five\n 6\n"
    far = old.replace("2\n", "two\n", 1).replace("6\n", "six\n", 1)
    assert (
        unified_diff(old, far, 1) == "@@ -2,3 +2,3 @@\n 1\n-2\n+two\n 3\n@@ -6,3 +6,3 @@\n 5\n-6\n+six\n 7\n"
    )


def test_missing_newline_at_the_end_is_marked() -> None:
    assert unified_diff("a\nb", "a\nb\n") == ("@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n")


def test_empty_sides_have_empty_ranges() -> None:
    assert unified_diff("", "a\nb\n") == "@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert unified_diff("a\n", "") == "@@ -1 +0,0 @@\n-a\n"


@settings(max_examples=examples(150), deadline=None)
@given(TEXTS, TEXTS)
def test_lines_added_or_removed_in_a_run_are_the_last_of_it(old: list[str], new: list[str]) -> None:
    for edit in line_edits(old, new):
        if edit.old_start == edit.old_end and edit.new_end < len(new):
            assert new[edit.new_start] != new[edit.new_end]
        if edit.new_start == edit.new_end and edit.old_end < len(old):
            assert old[edit.old_start] != old[edit.old_end]


def test_line_added_to_a_run_is_shown_last_beside_other_changes() -> None:
    assert unified_diff("a\nb\n", "b\na\nb\nb\n", 0) == "@@ -0,0 +1 @@\n+b\n@@ -2,0 +4 @@\n+b\n"
    assert unified_diff("b\na\nb\nb\n", "a\nb\n", 0) == "@@ -1 +0,0 @@\n-b\n@@ -4 +2,0 @@\n-b\n"


def test_insertion_in_a_run_of_equal_lines_is_shown_last() -> None:
    assert unified_diff("f\nend\ng\nend\n", "f\nend\nh\nend\ng\nend\n", 1) == (
        "@@ -2,2 +2,4 @@\n end\n+h\n+end\n g\n"
    )


def test_only_a_newline_ends_a_line() -> None:
    assert split_lines("a\x0cb\u2028c\r\nd") == ["a\x0cb\u2028c\r\n", "d"]


def test_a_rewritten_large_file_costs_less_than_a_second() -> None:
    old = [f"line {n}\n" for n in range(40_000)]
    new = [line if n % 7 else f"other {n}\n" for n, line in enumerate(old)]
    rewritten = [f"{n} of another file\n" for n in range(40_000)]
    started = time.process_time()
    assert rebuilt(old, new) == new
    assert rebuilt(old, rewritten) == rewritten
    assert time.process_time() - started < 3
