"""The recorded conversations' patches give the recorded changes, summaries and diffs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol.wire import written
from orchestrator.tools.apply_patch import Baseline, turn_diff, with_plan
from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch
from orchestrator.tools.patch.plan import (
    DiskFiles,
    PatchCheckError,
    PatchPlan,
    WritableRoots,
    display_root,
    plan_patch,
    refusal_text,
)
from tests.tools.patch.in_process import apply_plan

Recorded = Callable[[str], tuple[list[dict[str, Any]], list[str]]]


def externally_tagged(plan: PatchPlan, root: Path) -> dict[str, Any]:
    """The changes as Codex wrote them: its tag, its name for the workspace."""
    tagged = {}
    for path, change in plan.changes.items():
        fields = {
            key: value.replace(str(root), "@WORKSPACE@") if isinstance(value, str) else value
            for key, value in written(change).items()
            if key != "type"
        }
        tagged[path.replace(str(root), "@WORKSPACE@")] = {change.type: fields}
    return tagged


def test_recorded_patches_give_the_recorded_changes_and_turn_diffs(tree: Path, recorded: Recorded) -> None:
    events, patches = recorded("patch_each")
    begins = [event for event in events if event["type"] == "patch_apply_begin"]
    ends = [event for event in events if event["type"] == "patch_apply_end"]
    diffs = list(dict.fromkeys(event["unified_diff"] for event in events if event["type"] == "turn_diff"))
    baselines: dict[str, Baseline] = {}
    for text, begin, end, diff in zip(patches, begins, ends, diffs, strict=True):
        plan = plan_patch(parse_patch(text), tree, DiskFiles())
        assert externally_tagged(plan, tree) == begin["changes"]
        assert apply_plan(plan, WritableRoots((tree,))) == end["stdout"]
        baselines = with_plan(baselines, plan)
        assert turn_diff(baselines, display_root(tree), DiskFiles()) == diff


def test_recorded_failures_are_failures_with_the_recorded_texts(tree: Path, recorded: Recorded) -> None:
    _, (mismatch, garbage, missing) = recorded("patch_fail")
    with pytest.raises(PatchCheckError) as error:
        plan_patch(parse_patch(mismatch), tree, DiskFiles())
    assert error.value.message.startswith(
        f"Failed to find expected lines in {tree}/a.txt:\nnothing like this\n"
    )
    assert (error.value.file, error.value.hunk_index) == (tree / "a.txt", 0)
    with pytest.raises(PatchSyntaxError) as syntax:
        parse_patch(garbage)
    assert refusal_text(syntax.value) == (
        "apply_patch verification failed: The first line of the patch must be '*** Begin Patch'"
    )
    with pytest.raises(PatchCheckError) as error:
        plan_patch(parse_patch(missing), tree, DiskFiles())
    assert error.value.message.startswith(
        f"Failed to read file to update {tree}/missing.txt: No such file or directory (os error 2)\n"
    )


def test_git_names_the_same_blobs_and_takes_the_turn_diff(tree: Path, patch: Callable[..., str]) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tree)]
    shutil.rmtree(tree / ".git")
    (tree / "tool.sh").write_bytes(b"#!/bin/sh\nexit 0")
    (tree / "tool.sh").chmod(0o755)
    # A patch cannot name it but through the link.
    odd = tree / "odd\n+++b" / "a.txt"
    odd.mkdir(parents=True)
    (odd / "f.txt").write_text("f\n")
    (tree / "link").symlink_to(odd)
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "start"], check=True)
    text = patch(
        "*** Add File: sub/new.txt", "+new", "*** Delete File: README.md",
        "*** Update File: a.txt", "@@", "-two", "+2",
        "*** Update File: tool.sh", "@@", "-exit 0", "+exit 1",
        "*** Update File: link/f.txt", "@@", "-f", "+g",
    )  # fmt: skip
    plan = plan_patch(parse_patch(text), tree, DiskFiles())
    apply_plan(plan, None)
    ours = turn_diff(with_plan({}, plan), tree, DiskFiles())
    subprocess.run([*git, "add", "."], check=True)
    full = [*git, "diff", "--cached", "--full-index", "--no-renames", "HEAD"]
    gits = subprocess.run(full, check=True, capture_output=True, text=True).stdout
    # Git adds an unchanged mode to its index lines; the recordings do not have it.
    unmoded = [line.rsplit(" 100", 1)[0] if line.startswith("index ") else line for line in gits.splitlines()]
    assert ours.splitlines() == unmoded
    subprocess.run([*git, "reset", "-q", "--hard", "HEAD"], check=True)
    subprocess.run([*git, "apply", "-"], input=ours, text=True, check=True)
    assert (tree / "a.txt").read_text() == "one\n2\nthree\n"
    assert (tree / "tool.sh").read_text() == "#!/bin/sh\nexit 1\n"
