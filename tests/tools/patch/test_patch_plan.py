"""Contents of a plan, and patches that it refuses, naming file and hunk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol.wire import written
from orchestrator.tools.apply_patch import turn_diff, with_plan
from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import MOST_LINES, DiskFiles, PatchCheckError, PatchPlan, plan_patch

CWD = Path("/w")
Make = Callable[..., Any]


@pytest.fixture
def planned(memory: Make, patch: Callable[..., str]) -> Callable[..., PatchPlan]:
    def plan(*lines: str, **contents: str) -> PatchPlan:
        return plan_patch(parse_patch(patch(*lines)), CWD, memory(**contents))

    return plan


@pytest.fixture
def refused(planned: Make) -> Callable[..., PatchCheckError]:
    def refuse(*lines: str, **contents: str) -> PatchCheckError:
        with pytest.raises(PatchCheckError) as error:
            planned(*lines, **contents)
        return error.value

    return refuse


def told(plan: PatchPlan) -> dict[str, dict[str, Any]]:
    """The changes as events carry them."""
    return {path: written(change) for path, change in plan.changes.items()}


def test_plan_tells_each_kind_of_change_as_the_wire_has_it(planned: Make) -> None:
    plan = planned(
        "*** Add File: new.txt", "+x", "*** Update File: a.txt", "-one", "+1",
        "*** Delete File: b.txt", "*** Update File: c.txt", "*** Move to: sub/d.txt", "-c", "+d",
        a_txt="one\n", b_txt="gone\n", c_txt="c\n",
    )  # fmt: skip
    assert told(plan) == {
        "/w/new.txt": {"type": "add", "content": "x\n"},
        "/w/a.txt": {"type": "update", "unified_diff": "@@ -1 +1 @@\n-one\n+1\n", "move_path": None},
        "/w/b.txt": {"type": "delete", "content": "gone\n"},
        "/w/c.txt": {
            "type": "update",
            "unified_diff": "@@ -1 +1 @@\n-c\n+d\n",
            "move_path": "/w/sub/d.txt",
        },
    }
    assert [(str(file.path), file.kind, file.after) for file in plan.files] == [
        ("/w/new.txt", "add", b"x\n"),
        ("/w/a.txt", "update", b"1\n"),
        ("/w/b.txt", "delete", None),
        ("/w/c.txt", "update", None),
        ("/w/sub/d.txt", "add", b"d\n"),
    ]


def test_summary_lists_added_then_modified_then_deleted_as_the_patch_names_them(planned: Make) -> None:
    plan = planned(
        "*** Delete File: ./b.txt", "*** Update File: /w/a.txt", "-one", "+1",
        "*** Add File: x/../new.txt", "+x", "*** Update File: c.txt", "*** Move to: d.txt", "-c", "+d",
        a_txt="one\n", b_txt="gone\n", c_txt="c\n",
    )  # fmt: skip
    assert plan.summary == (
        "Success. Updated the following files:\nA x/../new.txt\nM /w/a.txt\nM d.txt\nD ./b.txt\n"
    )
    assert set(plan.changes) == {"/w/b.txt", "/w/a.txt", "/w/new.txt", "/w/c.txt"}


def test_later_hunk_sees_what_an_earlier_one_leaves(planned: Make) -> None:
    plan = planned(
        "*** Update File: a.txt", "-one", "+two", "*** Update File: a.txt", "-two", "+three",
        "*** Add File: n", "+x", "*** Update File: n", "-x", "+y", a_txt="one\n",
    )  # fmt: skip
    assert told(plan) == {
        "/w/a.txt": {"type": "update", "unified_diff": "@@ -1 +1 @@\n-one\n+three\n", "move_path": None},
        "/w/n": {"type": "add", "content": "y\n"},
    }


def test_file_added_and_deleted_again_leaves_no_trace(planned: Make) -> None:
    plan = planned("*** Add File: n", "+x", "*** Delete File: n", "*** Add File: m", "+x")
    assert list(plan.changes) == ["/w/m"]
    assert len(plan.files) == 1


def test_file_moved_twice_is_one_move(planned: Make) -> None:
    plan = planned(
        "*** Update File: a", "*** Move to: b", "-x", "+y",
        "*** Update File: b", "*** Move to: c", "-y", "+z",
        a="x\n",
    )  # fmt: skip
    diff = "@@ -1 +1 @@\n-x\n+z\n"
    assert told(plan) == {"/w/a": {"type": "update", "unified_diff": diff, "move_path": "/w/c"}}
    assert [str(file.path) for file in plan.files] == ["/w/a", "/w/c"]


def test_file_moved_and_moved_back_is_an_update(planned: Make) -> None:
    plan = planned(
        "*** Update File: a", "*** Move to: b", "-x", "+y",
        "*** Update File: b", "*** Move to: a", "-y", "+z",
        a="x\n",
    )  # fmt: skip
    assert told(plan)["/w/a"] == {
        "type": "update",
        "unified_diff": "@@ -1 +1 @@\n-x\n+z\n",
        "move_path": None,
    }
    assert len(plan.files) == 1


def test_file_added_and_moved_at_once_is_added_where_it_ends(planned: Make) -> None:
    plan = planned("*** Add File: n", "+x", "*** Update File: n", "*** Move to: m", "-x", "+y")
    assert told(plan) == {"/w/m": {"type": "add", "content": "y\n"}}
    assert plan.summary == "Success. Updated the following files:\nA n\nM m\n"


def test_two_files_moved_to_one_place_leave_the_second_there(planned: Make) -> None:
    plan = planned(
        "*** Update File: a", "*** Move to: c", "-x", "+1",
        "*** Update File: b", "*** Move to: c", "-y", "+2",
        a="x\n", b="y\n",
    )  # fmt: skip
    assert told(plan) == {
        "/w/a": {"type": "delete", "content": "x\n"},
        "/w/b": {"type": "update", "unified_diff": "@@ -1 +1 @@\n-y\n+2\n", "move_path": "/w/c"},
    }


def test_file_moved_away_and_written_anew_is_an_update_beside_an_addition(planned: Make) -> None:
    plan = planned(
        "*** Update File: a", "*** Move to: b", "-x", "+1", "*** Add File: a", "+new", a="x\n"
    )  # fmt: skip
    assert {path: change["type"] for path, change in told(plan).items()} == {"/w/a": "add", "/w/b": "add"}
    assert [(file.after, file.moved_from) for file in plan.files] == [(b"new\n", None), (b"1\n", None)]


def test_file_moved_onto_its_own_path_is_an_update(planned: Make) -> None:
    plan = planned("*** Update File: a", "*** Move to: ./a", "-x", "+y", a="x\n")
    assert [(file.kind, file.after) for file in plan.files] == [("update", b"y\n")]


def test_move_whose_end_is_written_over_is_a_deletion_and_an_addition(planned: Make) -> None:
    plan = planned(
        "*** Update File: a", "*** Move to: b", "-x", "+y", "*** Add File: b", "+new", a="x\n"
    )  # fmt: skip
    assert told(plan) == {
        "/w/a": {"type": "delete", "content": "x\n"},
        "/w/b": {"type": "add", "content": "new\n"},
    }


def test_add_over_a_file_keeps_its_mode_and_is_told_as_an_addition(
    tree: Path, patch: Callable[..., str]
) -> None:
    (tree / "a.txt").chmod(0o755)
    plan = plan_patch(parse_patch(patch("*** Add File: a.txt", "+x")), tree, DiskFiles())
    assert told(plan) == {f"{tree}/a.txt": {"type": "add", "content": "x\n"}}
    assert plan.files[0].mode == 0o755


def test_patch_without_hunks_modifies_nothing(refused: Make) -> None:
    error = refused()
    assert (error.message, error.file, error.hunk_index) == ("No files were modified.", None, None)


def test_mismatch_names_file_hunk_and_chunk(refused: Make) -> None:
    error = refused(
        "*** Add File: n", "+x", "*** Update File: a.txt", "@@", "-one", "+1", "@@", " two", "-nope",
        a_txt="one\ntwo\n",
    )  # fmt: skip
    assert error.message == (
        "Failed to find expected lines in /w/a.txt:\ntwo\nnope\n"
        "Nothing was written: hunk 2 of 2 (Update File: a.txt, chunk 2 of 2) does not apply."
    )
    assert (error.file, error.hunk_index) == (Path("/w/a.txt"), 1)


def test_missing_context_is_named_with_the_file(refused: Make) -> None:
    error = refused("*** Update File: a", "@@ def f", "-x", a="x\n")
    assert error.message.startswith("Failed to find context 'def f' in /w/a\n")


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        (("*** Update File: no", "-x"), "Failed to read file to update /w/no: No such file or directory"),
        (("*** Delete File: no",), "Failed to delete file /w/no: No such file or directory"),
        (("*** Delete File: sub",), "Failed to delete file /w/sub: Is a directory"),
        (("*** Update File: sub", "-x"), "Failed to read file to update /w/sub: Is a directory"),
        (("*** Add File: sub", "+x"), "Failed to write file /w/sub: Is a directory"),
        (("*** Add File: a/b/c", "+x"), "Failed to write file /w/a/b/c: Not a directory"),
        (("*** Update File: a", "*** Move to: sub", "-x"), "Failed to write file /w/sub: Is a directory"),
        (
            ("*** Add File: n", "+x", "*** Add File: n/m", "+x"),
            "Failed to write file /w/n/m: Not a directory",
        ),
        (("*** Delete File: a", "*** Delete File: a"), "Failed to delete file /w/a: No such file"),
        (("*** Delete File: a", "*** Update File: a", "-x"), "Failed to read file to update /w/a: No such"),
        (("*** Add File: n", "+\ud800"), "Failed to write file /w/n: the text is not valid Unicode"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    lines: tuple[str, ...], start: str, patch: Callable[..., str], memory: Make
) -> None:
    files = memory(a="x\n", **{"sub/file": "x\n"})
    with pytest.raises(PatchCheckError) as error:
        plan_patch(parse_patch(patch(*lines)), CWD, files)
    assert error.value.message.startswith(start)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 300])
def test_unusable_name_is_refused_on_the_disk(tree: Path, patch: Callable[..., str], name: str) -> None:
    with pytest.raises(PatchCheckError, match="Failed to"):
        plan_patch(parse_patch(patch(f"*** Add File: {name}", "+x")), tree, DiskFiles())


def test_file_that_is_no_text_can_be_deleted_and_replaced_but_not_updated(
    tree: Path, patch: Callable[..., str]
) -> None:
    (tree / "bin").write_bytes(b"\xff\x00")
    with pytest.raises(PatchCheckError, match="is not valid UTF-8"):
        plan_patch(parse_patch(patch("*** Update File: bin", "-x")), tree, DiskFiles())
    gone = plan_patch(parse_patch(patch("*** Delete File: bin")), tree, DiskFiles())
    assert told(gone)[f"{tree}/bin"] == {"type": "delete", "content": "\ufffd\0"}


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_pipe_or_socket_in_a_files_place_is_refused_and_not_waited_for(
    tree: Path, patch: Callable[..., str], kind: int
) -> None:
    os.mknod(tree / "odd", kind | 0o600)
    for lines in (("*** Update File: odd", "-x"), ("*** Add File: odd", "+x"), ("*** Delete File: odd",)):
        with pytest.raises(PatchCheckError, match="Not a regular file"):
            plan_patch(parse_patch(patch(*lines)), tree, DiskFiles())


def test_two_names_of_one_file_are_one_file(tree: Path, patch: Callable[..., str]) -> None:
    (tree / "here").symlink_to(".")
    (tree / "link.txt").symlink_to("a.txt")
    text = patch(
        "*** Update File: a.txt", "-one", "+1", "*** Update File: here/a.txt", "-1", "-two", "+12",
        "*** Update File: link.txt", "-12", "+3",
    )  # fmt: skip
    plan = plan_patch(parse_patch(text), tree, DiskFiles())
    assert [(file.target, file.after) for file in plan.files] == [(tree / "a.txt", b"3\nthree\n")]


def test_deleting_a_symlink_means_the_link(tree: Path, patch: Callable[..., str]) -> None:
    (tree / "link.txt").symlink_to("a.txt")
    text = patch("*** Delete File: link.txt", "*** Add File: link.txt", "+own")
    plan = plan_patch(parse_patch(text), tree, DiskFiles())
    assert [(file.target, file.after) for file in plan.files] == [(tree / "link.txt", b"own\n")]


def test_moving_a_symlink_is_refused(tree: Path, patch: Callable[..., str]) -> None:
    (tree / "link.txt").symlink_to("a.txt")
    text = patch("*** Update File: link.txt", "*** Move to: b.txt", "-one", "+1")
    with pytest.raises(PatchCheckError, match="is a symbolic link to"):
        plan_patch(parse_patch(text), tree, DiskFiles())


def test_symlink_loop_is_refused(tree: Path, patch: Callable[..., str]) -> None:
    (tree / "x").symlink_to("y")
    (tree / "y").symlink_to("x")
    for lines in (("*** Update File: x", "-a"), ("*** Add File: x", "+a")):
        with pytest.raises(PatchCheckError, match="Too many levels of symbolic links"):
            plan_patch(parse_patch(patch(*lines)), tree, DiskFiles())


@pytest.mark.parametrize(
    "lines",
    [
        ("*** Update File: many", "@@", "-q"),
        ("*** Add File: many", "+x"),
        ("*** Update File: one", "*** Move to: many", "@@", "+x"),
    ],
)
def test_file_of_too_many_lines_is_changed_by_no_patch_and_may_be_deleted(
    lines: tuple[str, ...], tree: Path, patch: Callable[..., str]
) -> None:
    """Lines cost memory, each of them hundreds of bytes: a file of newlines would fill the worker's."""
    (tree / "many").write_bytes(b"\n" * (MOST_LINES + 1))
    (tree / "one").write_text("one\n")
    with pytest.raises(PatchCheckError, match="more than 1,000,000 lines; change it by a command"):
        plan_patch(parse_patch(patch(*lines)), tree, DiskFiles())
    plan = plan_patch(parse_patch(patch("*** Delete File: many")), tree, DiskFiles())
    assert [file.after for file in plan.files] == [None]
    assert "Binary files differ" in turn_diff(with_plan({}, plan), tree, Emptied())


class Emptied(DiskFiles):
    """A disk without files."""

    def read(self, path: Path) -> None:
        return None
