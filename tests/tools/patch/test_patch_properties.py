"""Any edit written as a patch gives exactly the edited file; a patch that fails does nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.folders.linediff import line_edits
from orchestrator.tools.apply_patch import Baseline, PatchApplyError, turn_diff, with_plan
from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch
from orchestrator.tools.patch.plan import DiskFiles, PatchCheckError, WritableRoots, plan_patch
from tests.commit_seed import examples
from tests.tools.patch.in_process import apply_plan

# Few different lines, so that blocks repeat; blanks and punctuation, so that passes differ.
LINE = st.sampled_from(
    ["", "a", "a ", " a", "b", "{", "}", "\u201cq\u201d", '"q"', "\t", "-", "+", "@@", "*** x", "\x0c"]
)
FILE = st.lists(LINE, max_size=14)


def as_patch(old: list[str], new: list[str]) -> list[str]:
    """A chunk that keeps, drops and adds every line of the file: its place is never in doubt."""
    lines, position = ["@@"], 0
    for edit in line_edits(old, new):
        lines += [" " + line for line in old[position : edit.old_start]]
        lines += ["-" + line for line in old[edit.old_start : edit.old_end]]
        lines += ["+" + line for line in new[edit.new_start : edit.new_end]]
        position = edit.old_end
    return lines + [" " + line for line in old[position:]]


def joined(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


@settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(old=FILE, new=FILE)
def test_edited_file_written_as_a_patch_comes_out_exactly(
    memory: Callable[..., Any], patch: Callable[..., str], old: list[str], new: list[str]
) -> None:
    if not old and not new:
        return
    files = memory(f=joined(old))
    text = patch("*** Update File: f", *as_patch(old, new))
    plan = plan_patch(parse_patch(text), Path("/w"), files)
    files.put(plan)
    assert files.texts() == {"/w/f": joined(new)}


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(size=st.integers(1, 40), changes=st.sets(st.integers(0, 39), min_size=1, max_size=8))
def test_chunks_with_three_lines_of_context_find_their_places(
    memory: Callable[..., Any], patch: Callable[..., str], size: int, changes: set[int]
) -> None:
    old = [f"line {number % 7} {number}" for number in range(size)]
    new = [f"new {number}" if number in changes else line for number, line in enumerate(old)]
    files = memory(f=joined(old))
    lines = list(small_chunks(old, new))
    if not lines:
        return
    files.put(plan_patch(parse_patch(patch("*** Update File: f", *lines)), Path("/w"), files))
    assert files.texts() == {"/w/f": joined(new)}


def small_chunks(old: list[str], new: list[str]) -> Iterator[str]:
    position = 0
    for edit in line_edits(old, new):
        yield "@@"
        yield from (" " + line for line in old[max(position, edit.old_start - 3) : edit.old_start])
        yield from ("-" + line for line in old[edit.old_start : edit.old_end])
        yield from ("+" + line for line in new[edit.new_start : edit.new_end])
        position = edit.old_end


NAME = st.sampled_from("abcd")
HUNK = st.one_of(
    st.builds(lambda name, text: (f"*** Add File: {name}", f"+{text}"), NAME, st.sampled_from("xy")),
    st.builds(lambda name: (f"*** Delete File: {name}",), NAME),
    st.builds(lambda name, old: (f"*** Update File: {name}", f"-{old}", "+x"), NAME, st.sampled_from("xy")),
    st.builds(lambda name, to: (f"*** Update File: {name}", f"*** Move to: {to}", "+y"), NAME, NAME),
)


@settings(
    max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(
    hunks=[
        ("*** Update File: b", "*** Move to: c", "+y"),
        # On over a file that was there: `c` was neither before nor is it after.
        ("*** Update File: c", "*** Move to: a", "+y"),
    ]
)
@example(
    hunks=[
        ("*** Update File: a", "*** Move to: d", "+y"),
        ("*** Update File: b", "*** Move to: a", "+y"),
        # Its baseline goes home to `a`, which is `b`'s now.
        ("*** Delete File: d",),
    ]
)
@given(hunks=st.lists(HUNK, min_size=1, max_size=6))
def test_hunks_together_do_what_they_do_one_by_one(
    memory: Callable[..., Any], patch: Callable[..., str], hunks: list[tuple[str, ...]]
) -> None:
    together, alone = memory(a="x\n", b="y\n"), memory(a="x\n", b="y\n")
    baselines: dict[str, Baseline] = {}
    failed: int | None = None
    for index, hunk in enumerate(hunks):
        try:
            step = plan_patch(parse_patch(patch(*hunk)), Path("/w"), alone)
        except PatchCheckError:
            failed = index
            break
        baselines = with_plan(baselines, step)
        alone.put(step)
    text = patch(*(line for hunk in hunks for line in hunk))
    if failed is not None:
        with pytest.raises(PatchCheckError) as error:
            plan_patch(parse_patch(text), Path("/w"), together)
        assert error.value.hunk_index == failed
        return
    plan = plan_patch(parse_patch(text), Path("/w"), together)
    together.put(plan)
    assert together.texts() == alone.texts()
    ends = {getattr(change, "move_path", None) for change in plan.changes.values()}
    shown = plan.changes.keys() | ends
    assert shown - {None} == {str(file.path) for file in plan.files}
    for known in (baselines, with_plan({}, plan)):
        diff = turn_diff(known, Path("/w"), alone)
        assert files_after(diff) == changed({"a": "x", "b": "y"}, alone.texts())


def files_after(diff: str) -> set[str]:
    """The names of which a diff says that they are changed, gone or new."""
    names: set[str] = set()
    for part in diff.split("diff --git a/")[1:]:
        old, new = part.split("\n")[0].split(" b/")
        # A file that the task made and moved never was under its first name.
        names |= {new} if "\n--- /dev/null\n" in part else {old, new}
    return names


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    texts = {path.removeprefix("/w/"): text.removesuffix("\n") for path, text in after.items()}
    return {name for name in before.keys() | texts.keys() if before.get(name) != texts.get(name)}


PATCH_LINE = st.sampled_from(
    ["*** Add File: a", "*** Add File: d/e", "*** Delete File: a", "*** Delete File: d", "*** Update File: a",
     "*** Update File: link", "*** Move to: b", "*** Move to: d", "*** Move to: ../out/x",
     "*** Add File: away/x", "*** Add File: .git/x", "*** End of File", "@@", "@@ one",
     "-one", "-two", "+one", "+three", " one", ""]
)  # fmt: skip


@settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines=st.lists(PATCH_LINE, min_size=1, max_size=9))
def test_patch_that_fails_anywhere_leaves_every_file_as_it_was(
    patch: Callable[..., str], everything_below: Callable[[Path], dict[str, Any]], lines: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve() / "w"
        (work / "d").mkdir(parents=True)
        (work.parent / "out").mkdir()
        (work / "a").write_text("one\ntwo\n")
        (work / "link").symlink_to("a")
        (work / "away").symlink_to("../out")
        before = everything_below(work.parent)
        try:
            plan = plan_patch(parse_patch(patch(*lines)), work, DiskFiles())
            apply_plan(plan, WritableRoots((work,)))
        except (PatchSyntaxError, PatchCheckError, PatchApplyError):
            assert everything_below(work.parent) == before
        else:
            expected = {file.target: file.after for file in plan.files}
            found = {path: path.read_bytes() if path.is_file() else None for path in expected}
            assert found == expected
            assert not list((work.parent / "out").iterdir())
