"""The accumulated diff of a task, over many patches and other people's changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.tools.apply_patch import Baseline, turn_diff, with_plan
from orchestrator.tools.patch.plan import DiskFiles, PatchPlan, display_root
from tests.tools.patch.in_process import apply_plan

Plan = Callable[..., PatchPlan]
Task = Callable[..., str]


@pytest.fixture
def task(tree: Path, plan_on_disk: Plan) -> Task:
    """Applies one patch more, with baselines that went through JSON; answers with the diff."""
    stored = ["{}"]

    def patch(*lines: str) -> str:
        baselines = {path: Baseline(**fields) for path, fields in json.loads(stored[0]).items()}
        if lines:
            plan = plan_on_disk(*lines)
            apply_plan(plan, None)
            baselines = with_plan(baselines, plan)
        plain = {path: dataclasses.asdict(baseline) for path, baseline in baselines.items()}
        stored[0] = json.dumps(plain)
        return turn_diff(baselines, tree, DiskFiles())

    return patch


def headers(diff: str) -> list[str]:
    kinds = ("diff", "new", "deleted", "old", "rename", "similarity", "---", "+++", "Binary")
    return [line for line in diff.splitlines() if line.startswith(kinds)]


def test_file_changed_back_disappears_from_the_diff(task: Task) -> None:
    assert task("*** Update File: a.txt", "-one", "+1") != ""
    assert task("*** Update File: a.txt", "-1", "+one") == ""
    assert task("*** Add File: n", "+x") != ""
    assert task("*** Delete File: n") == ""


def test_changes_by_others_are_seen_in_files_that_were_touched(tree: Path, task: Task) -> None:
    task("*** Update File: a.txt", "-one", "+1")
    (tree / "a.txt").write_text("1\ntwo\nthree\nfour\n")
    (tree / "README.md").write_text("not ours\n")
    diff = task()
    assert "+four\n" in diff
    assert "README" not in diff


def test_files_are_sorted_by_path(task: Task) -> None:
    diff = task("*** Add File: z", "+x", "*** Update File: a.txt", "-one", "*** Add File: b/c", "+x")
    assert [line for line in diff.splitlines() if line.startswith("diff")] == [
        "diff --git a/a.txt b/a.txt",
        "diff --git a/b/c b/b/c",
        "diff --git a/z b/z",
    ]


def test_moved_file_is_one_diff_from_old_name_to_new(task: Task) -> None:
    diff = task("*** Update File: a.txt", "*** Move to: b.txt", "-one", "+1")
    assert headers(diff) == ["diff --git a/a.txt b/b.txt", "--- a/a.txt", "+++ b/b.txt"]
    diff = task("*** Update File: b.txt", "*** Move to: c.txt", "-1", "+one")
    assert headers(diff) == [
        "diff --git a/a.txt b/c.txt",
        "similarity index 100%",
        "rename from a.txt",
        "rename to c.txt",
    ]
    assert task("*** Update File: c.txt", "*** Move to: a.txt", "-one", "+one") == ""


def test_move_over_another_file_is_a_deletion_and_an_update(task: Task) -> None:
    diff = task("*** Update File: a.txt", "*** Move to: README.md", "-one", "+1")
    assert headers(diff) == [
        "diff --git a/README.md b/README.md",
        "--- a/README.md",
        "+++ b/README.md",
        "diff --git a/a.txt b/a.txt",
        "deleted file mode 100644",
        "--- a/a.txt",
        "+++ /dev/null",
    ]


def test_move_to_where_the_task_has_deleted_a_file_leaves_what_that_file_was(task: Task) -> None:
    task("*** Delete File: README.md")
    diff = task("*** Update File: a.txt", "*** Move to: README.md", "-one", "+1")
    assert headers(diff)[:3] == ["diff --git a/README.md b/README.md", "--- a/README.md", "+++ b/README.md"]
    assert headers(diff)[3:5] == ["diff --git a/a.txt b/a.txt", "deleted file mode 100644"]


def test_moved_file_that_is_deleted_is_a_deletion_under_its_old_name(task: Task) -> None:
    task("*** Update File: a.txt", "*** Move to: b.txt", "-one", "+1")
    diff = task("*** Delete File: b.txt")
    assert headers(diff) == [
        "diff --git a/a.txt b/a.txt",
        "deleted file mode 100644",
        "--- a/a.txt",
        "+++ /dev/null",
    ]


def test_file_put_where_another_was_moved_from_is_an_update_and_the_move_an_addition(task: Task) -> None:
    task("*** Update File: a.txt", "*** Move to: b.txt", "-one", "+1")
    diff = task("*** Add File: a.txt", "+one", "+two")
    assert headers(diff) == [
        "diff --git a/a.txt b/a.txt",
        "--- a/a.txt",
        "+++ b/a.txt",
        "diff --git a/b.txt b/b.txt",
        "new file mode 100644",
        "--- /dev/null",
        "+++ b/b.txt",
    ]
    assert "-three\n" in diff


def test_new_file_that_is_moved_stays_one_new_file(task: Task) -> None:
    task("*** Add File: n", "+x")
    diff = task("*** Update File: n", "*** Move to: m", "-x", "+y")
    assert headers(diff) == ["diff --git a/n b/m", "new file mode 100644", "--- /dev/null", "+++ b/m"]
    assert task("*** Delete File: m") == ""


def test_executable_and_changed_modes_are_told(tree: Path, task: Task) -> None:
    (tree / "a.txt").chmod(0o755)
    diff = task("*** Delete File: a.txt", "*** Update File: README.md", "-hello", "+bye")
    assert "deleted file mode 100755" in diff
    (tree / "README.md").chmod(0o755)
    assert "old mode 100644\nnew mode 100755\nindex " in task()
    (tree / "README.md").write_text("hello\n")
    modes = "diff --git a/README.md b/README.md\nold mode 100644\nnew mode 100755\n"
    assert task().startswith(modes + "diff --git a/a.txt"), "of a content that is back nothing is told"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"text\0with a NUL\n"])
def test_files_that_are_no_text_differ_without_a_body(tree: Path, task: Task, content: bytes) -> None:
    (tree / "bin").write_bytes(content)
    diff = task("*** Delete File: bin")
    assert headers(diff) == [
        "diff --git a/bin b/bin",
        "deleted file mode 100644",
        "--- a/bin",
        "+++ /dev/null",
        "Binary files differ",
    ]


def test_symlink_is_shown_as_git_shows_it(tree: Path, task: Task) -> None:
    (tree / "link").symlink_to("a.txt")
    assert task("*** Delete File: link").endswith("@@ -1 +0,0 @@\n-a.txt\n\\ No newline at end of file\n")


def test_empty_file_has_headers_only(tree: Path, task: Task) -> None:
    assert task("*** Add File: empty") == (
        "diff --git a/empty b/empty\nnew file mode 100644\n"
        "index 0000000000000000000000000000000000000000..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\n"
    )


def test_file_outside_of_the_root_is_named_in_full(tree: Path, task: Task) -> None:
    (tree.parent / "other" / "x").write_text("x\n")
    diff = task("*** Update File: ../other/x", "-x", "+y")
    assert diff.startswith(f"diff --git a/{tree.parent}/other/x b/{tree.parent}/other/x\n")


def test_root_named_by_a_symlink_gives_the_same_diff(tree: Path, plan_on_disk: Plan) -> None:
    (tree.parent / "alias").symlink_to("w")
    plan = plan_on_disk("*** Update File: a.txt", "-one")
    baselines = with_plan({}, plan)
    apply_plan(plan, None)
    diff = turn_diff(baselines, tree, DiskFiles())
    assert diff.startswith("diff --git a/a.txt b/a.txt\n")
    assert turn_diff(baselines, tree.parent / "alias", DiskFiles()) == diff


def test_display_root_is_the_work_tree_else_the_folder_itself(tree: Path) -> None:
    (tree / "sub" / "deep").mkdir(parents=True)
    assert display_root(tree / "sub" / "deep") == tree
    assert display_root(tree.parent / "other") == tree.parent / "other"


@pytest.mark.parametrize("kind", ["folder", "file", "link", "empty", "empty below a repository"])
def test_display_root_is_the_nearest_work_tree_and_no_folder_that_a_sandbox_left(
    tree: Path, kind: str
) -> None:
    inner = tree / "inner"
    (inner / "deep").mkdir(parents=True)
    match kind:
        case "folder":
            (inner / ".git").mkdir()
            (inner / ".git/HEAD").symlink_to("refs/heads/main")
        case "file":
            (inner / ".git").write_text("gitdir: ../.git/worktrees/inner\n")
        case "link":
            (inner / ".git").symlink_to("../.git")
        case "empty":
            (inner / ".git").mkdir()
        case _:
            (inner / "deep/.git").mkdir()
            (inner / ".git").write_text("gitdir: ../.git/worktrees/inner\n")
    assert display_root(inner / "deep") == (tree if kind == "empty" else inner)
