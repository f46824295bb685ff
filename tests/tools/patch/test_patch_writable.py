"""Which paths of a plan are refused, wherever their names pretend to be."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import DiskFiles, PatchPlan, WritableRoots, outside, plan_patch

Plan = Callable[..., PatchPlan]


def test_paths_below_a_root_are_ours(tree: Path, plan_on_disk: Plan) -> None:
    plan = plan_on_disk("*** Update File: a.txt", "-one", "*** Add File: new/deep.txt", "+x")
    assert outside(plan, WritableRoots((tree,))) == ()


def test_without_roots_given_everything_is_permitted(plan_on_disk: Plan) -> None:
    assert outside(plan_on_disk("*** Add File: /elsewhere/x", "+x"), None) == ()


def test_without_any_root_nothing_is_permitted(tree: Path, plan_on_disk: Plan) -> None:
    plan = plan_on_disk("*** Update File: a.txt", "-one")
    assert outside(plan, WritableRoots(())) == (tree / "a.txt",)


@pytest.mark.parametrize("name", ["../other/x", "sub/../../other/x", "/etc/x", "../w2/x"])
def test_path_that_climbs_out_is_refused(tree: Path, plan_on_disk: Plan, name: str) -> None:
    plan = plan_on_disk(f"*** Add File: {name}", "+x")
    assert outside(plan, WritableRoots((tree,))) == (plan.files[0].path,)


def test_both_ends_of_a_move_are_judged(tree: Path, plan_on_disk: Plan) -> None:
    away = plan_on_disk("*** Update File: a.txt", "*** Move to: ../other/a.txt", "-one")
    assert outside(away, WritableRoots((tree,))) == (tree.parent / "other/a.txt",)
    here = plan_on_disk("*** Update File: ../other/secret.txt", "*** Move to: b.txt", "-secret", "+x")
    assert outside(here, WritableRoots((tree,))) == (tree.parent / "other/secret.txt",)


def test_symlinked_folder_counts_where_it_leads(tree: Path, plan_on_disk: Plan) -> None:
    (tree / "link").symlink_to("../other")
    (tree / "deep").mkdir()
    (tree / "deep" / "link").symlink_to("../link")
    for name in ("link/new.txt", "deep/link/a/b/new.txt"):
        plan = plan_on_disk(f"*** Add File: {name}", "+x")
        assert outside(plan, WritableRoots((tree,))) == (tree / name,)
        assert outside(plan, WritableRoots((tree, tree.parent / "other"))) == ()


def test_symlinked_file_counts_where_it_leads_unless_it_is_deleted(tree: Path, plan_on_disk: Plan) -> None:
    (tree / "link.txt").symlink_to("../other/secret.txt")
    (tree / "dangling.txt").symlink_to("../other/new.txt")
    update = plan_on_disk("*** Update File: link.txt", "-secret", "+x")
    assert outside(update, WritableRoots((tree,))) == (tree / "link.txt",)
    created = plan_on_disk("*** Add File: dangling.txt", "+x")
    assert outside(created, WritableRoots((tree,))) == (tree / "dangling.txt",)
    assert outside(plan_on_disk("*** Delete File: link.txt"), WritableRoots((tree,))) == ()


def test_dots_after_a_symlink_mean_the_folder_beside_it(tree: Path, plan_on_disk: Plan) -> None:
    (tree / "link").symlink_to("../other")
    plan = plan_on_disk("*** Add File: link/../new.txt", "+x")
    assert plan.files[0].target == tree / "new.txt"
    assert outside(plan, WritableRoots((tree,))) == ()


def test_root_may_itself_be_named_by_a_symlink(tree: Path, patch: Callable[..., str]) -> None:
    (tree.parent / "alias").symlink_to("w")
    alias = tree.parent / "alias"
    plan = plan_patch(parse_patch(patch("*** Update File: a.txt", "-one")), alias, DiskFiles())
    assert outside(plan, WritableRoots((alias,))) == ()
    assert outside(plan, WritableRoots((tree,))) == ()
    assert list(plan.changes) == [f"{alias}/a.txt"]


def test_read_only_folder_inside_a_root_is_refused(tree: Path, plan_on_disk: Plan) -> None:
    (tree / "keep").mkdir()
    (tree / "alias").symlink_to("keep")
    plan = plan_on_disk(
        "*** Add File: keep/x", "+x", "*** Add File: alias/y", "+x", "*** Add File: keeper", "+x"
    )
    for named in ("keep", "alias"):
        roots = WritableRoots((tree,), (tree / named,))
        assert outside(plan, roots) == (tree / "keep/x", tree / "alias/y")


@pytest.mark.parametrize("name", [".git/hooks/pre-commit", ".git/config2", "sub/../.git/x", "alias/x"])
def test_git_folder_of_a_root_is_refused(tree: Path, plan_on_disk: Plan, name: str) -> None:
    (tree / "alias").symlink_to(".git")
    plan = plan_on_disk(f"*** Add File: {name}", "+x")
    assert outside(plan, WritableRoots((tree,))) == (plan.files[0].path,)


def test_git_folder_behind_a_symlink_is_refused_under_its_own_name(tree: Path, plan_on_disk: Plan) -> None:
    (tree / ".git").rename(tree / "store")
    (tree / ".git").symlink_to("store")
    plan = plan_on_disk("*** Add File: store/hooks/x", "+x", "*** Delete File: .git")
    assert outside(plan, WritableRoots((tree,))) == (tree / "store/hooks/x", tree / ".git")


def test_git_folder_is_refused_before_it_exists(tree: Path, patch: Callable[..., str]) -> None:
    bare = tree.parent / "bare"
    bare.mkdir()
    for name in (".git", ".git/config"):
        plan = plan_patch(parse_patch(patch(f"*** Add File: {name}", "+x")), bare, DiskFiles())
        assert outside(plan, WritableRoots((bare,))) == (bare / name,)


def test_worktrees_git_folders_are_refused_wherever_they_are(tree: Path, patch: Callable[..., str]) -> None:
    (tree / ".git" / "config").unlink()
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tree)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-qm", "x", "--allow-empty"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", "../wt"], check=True)
    worktree = tree.parent / "wt"
    names = [".git", "../w/.git/worktrees/wt/HEAD2", "../w/.git/hooks/pre-commit", "../w/fine.txt"]
    text = patch(*(line for name in names for line in (f"*** Add File: {name}", "+x")))
    plan = plan_patch(parse_patch(text), worktree, DiskFiles())
    refused = outside(plan, WritableRoots((worktree, tree.parent)))
    assert refused == tuple(file.path for file in plan.files[:3])


@pytest.mark.parametrize(
    "content", [b"gitdir: elsewhere\n", b"gitdir:elsewhere", b"gitdir: ../w/elsewhere\n\n"]
)
def test_pointer_file_protects_what_it_names(tree: Path, plan_on_disk: Plan, content: bytes) -> None:
    shutil.rmtree(tree / ".git")
    (tree / ".git").write_bytes(content)
    plan = plan_on_disk("*** Add File: elsewhere/hooks/x", "+x", "*** Add File: fine", "+x")
    assert outside(plan, WritableRoots((tree,))) == (tree / "elsewhere/hooks/x",)


@pytest.mark.parametrize("content", [b"", b"gitdir:", b"gitdir: a\0b", b"\xff\xfe", b"nonsense"])
def test_broken_pointer_file_is_still_protected_itself(
    tree: Path, plan_on_disk: Plan, content: bytes
) -> None:
    shutil.rmtree(tree / ".git")
    (tree / ".git").write_bytes(content)
    plan = plan_on_disk("*** Delete File: .git", "*** Add File: fine", "+x")
    assert outside(plan, WritableRoots((tree,))) == (tree / ".git",)


@pytest.mark.parametrize("name", ["dendro.toml", "sub/deep/dendro.toml", "link.toml", "linked/dendro.toml"])
def test_a_configuration_file_that_is_there_is_refused_however_deep_and_by_whatever_name(
    tree: Path, plan_on_disk: Plan, name: str
) -> None:
    (tree / "link.toml").symlink_to("away/dendro.toml")
    (tree / "linked").mkdir()
    (tree / "linked/dendro.toml").symlink_to("../away/any")
    new = plan_on_disk(f"*** Add File: {name}", '+sandbox_mode = "danger-full-access"')
    assert outside(new, WritableRoots((tree,))) == ()
    assert outside(new, WritableRoots((tree,), (new.files[0].target,))) == (tree / name,)
    new.files[0].target.parent.mkdir(parents=True, exist_ok=True)
    new.files[0].target.write_text('sandbox_mode = "read-only"\n')
    over = plan_on_disk(f"*** Add File: {name}", '+sandbox_mode = "danger-full-access"')
    assert outside(over, WritableRoots((tree,))) == (tree / name,)


def test_a_configuration_file_is_refused_as_source_and_as_target_of_a_move(
    tree: Path, plan_on_disk: Plan
) -> None:
    (tree / "dendro.toml").write_text("x = 1\n")
    onto = plan_on_disk("*** Update File: a.txt", "*** Move to: dendro.toml", "-one", "+x")
    assert outside(onto, WritableRoots((tree,))) == (tree / "dendro.toml",)
    away = plan_on_disk("*** Update File: dendro.toml", "*** Move to: b.toml", "-x = 1", "+x = 2")
    assert outside(away, WritableRoots((tree,))) == (tree / "dendro.toml",)
    gone = plan_on_disk("*** Delete File: dendro.toml")
    assert outside(gone, WritableRoots((tree,))) == (tree / "dendro.toml",)
