"""Bounds of a patch: exactly at each of them it is applied, and beyond it is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.protocol.commands import AddFile, FileChange, UpdateFile
from orchestrator.tools.patch import plan, writer
from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import DiskFiles, PatchCheckError, PatchPlan, plan_patch, shown, weight
from tests.tools.patch.in_process import apply_plan

Patch = Callable[..., str]


def planned(tree: Path, text: str) -> PatchPlan:
    return plan_patch(parse_patch(text), tree, DiskFiles())


@pytest.mark.parametrize("more", [0, 1])
def test_patch_has_as_many_hunks_as_it_may(
    tree: Path, patch: Patch, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(plan, "MOST_FILES", 3)
    text = patch(*(f"*** Add File: n{number}" for number in range(3 + more)))
    if not more:
        assert len(planned(tree, text).files) == 3
        return
    with pytest.raises(PatchCheckError, match="at most 3 files, this one changes 4; send it in parts"):
        planned(tree, text)


READING: dict[str, tuple[str, ...]] = {
    "update": ("*** Update File: {}", "-x", "+y"),
    "delete": ("*** Delete File: {}",),
    "add over": ("*** Add File: {}", "+y"),
    "move": ("*** Update File: {}", "*** Move to: moved-{}", "-x", "+y"),
    "move over": ("*** Update File: small", "*** Move to: {}", "+y"),
}


@pytest.mark.parametrize("kind", READING)
@pytest.mark.parametrize("more", [0, 1])
def test_files_of_a_patch_are_read_up_to_their_bound_together(
    tree: Path, patch: Patch, monkeypatch: pytest.MonkeyPatch, kind: str, more: int
) -> None:
    """Bytes count, of each file once: a later hunk sees what an earlier one has left."""
    (tree / "small").write_text("")
    (tree / "first").write_text("x\né\n")
    (tree / "second").write_text("x\n" + "b" * (4 + more))
    monkeypatch.setattr(plan, "MOST_BYTES", 11)
    lines = [line.format("second") for line in READING[kind]]
    again = [] if kind in ("delete", "move") else ["*** Delete File: second"]
    text = patch("*** Update File: first", "-x", "+y", "*** Update File: first", "-y", "+z", *lines, *again)
    if not more:
        assert planned(tree, text).files[0].after == "z\né\n".encode()
        return
    with pytest.raises(PatchCheckError, match="at most 11 bytes together"):
        planned(tree, text)


@pytest.mark.parametrize("kind", ["update", "add over", "move", "move over"])
@pytest.mark.parametrize("more", [0, 1])
def test_file_that_a_patch_changes_has_as_many_lines_as_it_may(
    tree: Path, patch: Patch, monkeypatch: pytest.MonkeyPatch, kind: str, more: int
) -> None:
    (tree / "small").write_text("")
    (tree / "f").write_text("x\n" * (3 + more))
    monkeypatch.setattr(plan, "MOST_LINES", 3)
    text = patch(*(line.format("f") for line in READING[kind]))
    if not more:
        assert planned(tree, text).files
        return
    with pytest.raises(PatchCheckError, match="more than 3 lines; change it by a command"):
        planned(tree, text)


@pytest.mark.parametrize("kind", ["update", "delete", "add over", "move", "move over"])
@pytest.mark.parametrize("more", [0, 1])
def test_file_that_a_patch_reads_has_as_many_bytes_as_it_may(
    tree: Path, patch: Patch, monkeypatch: pytest.MonkeyPatch, kind: str, more: int
) -> None:
    (tree / "small").write_text("")
    (tree / "f").write_text("x\n" + "é" + "b" * more)
    monkeypatch.setattr(writer, "MOST_BYTES", 4)
    text = patch(*(line.format("f") for line in READING[kind]))
    if not more:
        apply_plan(planned(tree, text), None)
        return
    with pytest.raises(PatchCheckError, match="File too large for a patch"):
        planned(tree, text)


def test_folder_in_the_place_of_a_file_that_the_patch_takes_away_is_refused_before_anything_is_written(
    tree: Path, patch: Patch
) -> None:
    with pytest.raises(PatchCheckError, match=r"a\.txt/n: Not a directory"):
        planned(tree, patch("*** Delete File: a.txt", "*** Add File: a.txt/n", "+x"))


# ── what events carry ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("letter", ["n", "é", "文", "\udce9"])
@pytest.mark.parametrize("more", [0, 1])
def test_events_show_files_by_the_bytes_of_their_paths_in_the_patches_order(
    monkeypatch: pytest.MonkeyPatch, letter: str, more: int
) -> None:
    size = len(letter.encode("utf-8", "surrogatepass"))
    changes: dict[str, FileChange] = {
        f"{mark}{letter * 40}": AddFile(content="x") for mark in ("c", "a", "b")
    }
    each = 1 + 40 * size + plan._FILE_BYTES + len("addx")
    monkeypatch.setattr(plan, "SHOWN_BYTES", 2 * each - more)
    told, left_out = shown(changes)
    assert [path[0] for path in told] == (["c"] if more else ["c", "a"])
    assert len(told) + left_out == 3


@pytest.mark.parametrize("letter", ["n", "é", "文"])
def test_text_of_a_file_counts_by_its_bytes_up_to_those_of_a_reference(letter: str) -> None:
    size = len(letter.encode())
    short, long = letter * 20, letter * 5_000
    fixed = 2 * 4 + plan._FILE_BYTES
    assert weight({"é/": {"content": short}}) == 2 * 3 + plan._FILE_BYTES + 20 * size
    assert weight({"path": {"content": long, "origin": short, "mode": None}}) == fixed + 256 + 20 * size
    assert weight({letter * 10: {}, "b": {}}) == 2 * (10 * size + 1) + 2 * plan._FILE_BYTES


@pytest.mark.parametrize("more", [0, 1, 1_234])
def test_long_text_is_cut_with_a_word_about_the_rest(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(plan, "TEXT_CHARS", 5)
    text = "é" * (5 + more)
    expected = text if not more else f"ééééé\n[… {more:,} more characters]\n"
    told, left_out = shown({
        "a": AddFile(content=text),
        "b": UpdateFile(unified_diff=text, move_path=None),
    })  # fmt: skip
    assert left_out == 0
    added, updated = told.values()
    assert isinstance(added, AddFile)
    assert isinstance(updated, UpdateFile)
    assert (added.content, updated.unified_diff) == (expected, expected)
