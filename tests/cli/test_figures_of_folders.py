"""Figures and names that commands for portable folders print: up to a number, and how many more there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.checkout import _show_conflicts, _show_names
from orchestrator.cli.diff import NAMES_SHOWN, _show_entries, _show_figures
from orchestrator.folders.outcomes import (
    Conflict,
    Conflicted,
    Counts,
    Difference,
    FileStat,
    FolderSnapshot,
    Merged,
    Planned,
)
from orchestrator.views.workspaces import FolderPast, Moment

NOTHING: Any = None
ODD = "\x1b[2J"


@pytest.mark.parametrize("files", [0, 1, NAMES_SHOWN, NAMES_SHOWN + 1, 40])
@pytest.mark.parametrize("named", [0, 1, NAMES_SHOWN, NAMES_SHOWN + 1])
def test_entry_that_changed_a_folder_is_shown_with_some_names_and_the_number_of_the_others(
    files: int, named: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if named > files:
        return
    names = tuple(f"M {number}{ODD}" for number in range(named))
    moments = (
        Moment(7, FolderSnapshot("s0"), ()),
        Moment(120, FolderSnapshot("s1"), (), files, names, 86_400_000),
    )
    _show_entries(FolderPast(NOTHING, moments))
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("  7  1970-01-01")
    assert first.endswith("  it began so")
    told = last.split("  ", 2)[2]
    if not files:
        assert told == "it began so"
        return
    shown = min(named, NAMES_SHOWN)
    assert told.count("M ") == shown
    assert (f"and {files - shown} more" in told) is (files > shown)
    assert "\x1b" not in told


@pytest.mark.parametrize(("listed", "counts"), [(2, Counts(1, 1, 0)), (2, Counts(1, 2, 3)), (0, Counts())])
def test_figures_of_all_files_are_summed_and_those_that_are_not_listed_are_counted(
    listed: int, counts: Counts, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [FileStat(f"a{ODD}", 1_200, 3), FileStat("b", 0, 0, binary=True)][:listed]
    _show_figures(Difference("", False, counts, 1_234, 56, tuple(files)))
    lines = capsys.readouterr().out.splitlines()
    total = counts.added + counts.modified + counts.deleted
    if listed:
        assert lines[0].split("  ")[-2].strip() == "+1,200 −3"
        assert lines[1].strip() == "binary  b"
    assert (f"and {total - listed} files more" in lines) is (total > listed)
    assert lines[-1] == f"+1,234 −56 in {total} files"
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("kind", [Planned, Merged])
@pytest.mark.parametrize(("named", "counts"), [(2, Counts(1, 1, 0)), (2, Counts(1, 2, 3)), (0, Counts())])
def test_files_of_a_merge_are_named_and_those_without_room_are_counted(
    kind: type, named: int, counts: Counts
) -> None:
    names = tuple(f"A {number}{ODD}" for number in range(named))
    found = Planned("d", counts, names) if kind is Planned else Merged(counts, names)
    said: list[str] = []
    _show_names(found, said.append)
    total = counts.added + counts.modified + counts.deleted
    assert len(said) == named + (total > named)
    assert total <= named or said[-1] == f"  and {total - named} more"
    assert "\x1b" not in "".join(said)


@pytest.mark.parametrize("all", [1, 2, 9])
def test_conflicts_of_a_merge_are_named_with_their_reasons_and_the_others_counted(
    all: int, capsys: pytest.CaptureFixture[str]
) -> None:
    conflicts = tuple(Conflict(f"f{number}{ODD}", "why") for number in range(min(all, 2)))
    _show_conflicts(Conflicted(conflicts, all), Path("/w"))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, lines[0]) == ("", f"/w: nothing was written, {all} conflict{'s' if all > 1 else ''}")
    assert sum(line.endswith(": why") for line in lines) == len(conflicts)
    assert (f"  and {all - 2} more" in lines) is (all > 2)
    assert "dendro checkout" in lines[-1]
    assert "\x1b" not in err
