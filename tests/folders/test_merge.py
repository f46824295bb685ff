"""Three-way merges into a folder: what git makes of the contents, whole or not at all."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.folders.build import remove
from orchestrator.folders.git_objects import object_id
from orchestrator.folders.merge import MOST_CONFLICTS, Plan, Side, Step, settle, take_back, write
from orchestrator.folders.names import FILE
from orchestrator.folders.outcomes import (
    ANYWHERE,
    Conflict,
    Conflicted,
    Counts,
    FolderError,
    FolderSnapshot,
    Guard,
    Merged,
    Planned,
)
from orchestrator.folders.stat_cache import Known
from tests.folders.workshop import Bench, Content, content_of, git


class Family:
    """A parent's folder and a child's, which began as the same."""

    def __init__(self, root: Path, start: Mapping[str | bytes, Content]) -> None:
        self.parent = Bench(root)
        self.parent.write(start)
        self.base = self.parent.born().snapshot
        place = self.parent.elsewhere("child")
        self.child = Bench(root / "child", self.parent.bounds)
        assert self.child.folder == place
        assert self.child.copy.adopt((), self.base)
        self.child.at, self.child.packs = self.base, list(self.parent.packs)

    @property
    def theirs(self) -> FolderSnapshot:
        """The child's folder as it is now."""
        self.child.take()
        return self.child.at

    def plan(self) -> Planned | Conflicted:
        return self.parent.copy.plan_merge(self.base, self.theirs, self.child.packs)

    def merge(self) -> Merged | Conflicted:
        planned = self.plan()
        if isinstance(planned, Conflicted):
            return planned
        return self.parent.copy.write_merge(self.base, self.theirs, self.child.packs, planned.digest)


_LINES = b"".join(b"line %d\n" % n for n in range(20))


def test_changes_of_both_sides_to_one_file_are_joined(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a": _LINES, "only/b": b"1", "gone": b"2", "untouched": b"3"})
    family.child.write({"a": _LINES.replace(b"line 3\n", b"LINE 3\n"), "new/deep/c": b"4", "only/b": b"9"})
    (family.child.folder / "gone").unlink()
    family.parent.write({"a": _LINES.replace(b"line 15\n", b"LINE 15\n"), "untouched": b"33"})
    merged = family.merge()
    assert merged == Merged(
        Counts(added=1, modified=2, deleted=1), ("D gone", "M a", "A new/deep/c", "M only/b")
    )
    now = content_of(family.parent.folder)
    both = _LINES.replace(b"line 3\n", b"LINE 3\n").replace(b"line 15\n", b"LINE 15\n")
    assert now == {
        b"a": ("file", both),
        b"new/deep/c": ("file", b"4"),
        b"only/b": ("file", b"9"),
        b"untouched": ("file", b"33"),
    }
    assert family.merge() == Merged(Counts(), ())


def test_conflict_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a": b"1\n", "b": b"1\n", "c": b"\0\1", "d": b"1\n"})
    family.child.write({"a": b"2\n", "b": b"2\n", "c": b"\0\2", "new": b"n"})
    (family.child.folder / "d").unlink()
    family.parent.write({"a": b"3\n", "c": b"\0\3", "d": b"4\n", "new": b"m"})
    (family.parent.folder / "b").unlink()
    before = content_of(family.parent.folder)
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    assert merged.all == 5
    assert {it.path: it.why for it in merged.conflicts} == {
        "a": "the same lines changed on both sides",
        "b": "deleted here, changed there",
        "c": "a binary file, changed on both sides",
        "d": "changed here, deleted there",
        "new": "another file is here already",
    }
    assert content_of(family.parent.folder) == before


def test_ignored_file_in_the_way_is_a_conflict(tmp_path: Path) -> None:
    family = Family(tmp_path, {".gitignore": b"*.local\n"})
    family.child.write({".gitignore": b"", "settings.local": b"theirs"})
    family.parent.write({"settings.local": b"mine, and in no snapshot"})
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    assert merged.conflicts == (Conflict("settings.local", "another file is here already"),)
    assert (family.parent.folder / "settings.local").read_bytes() == b"mine, and in no snapshot"


def test_folder_and_file_that_change_places_are_merged_where_nothing_is_lost(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a/x": b"1", "a/y": b"2", "b": b"3"})
    remove(family.child.folder / "a")
    (family.child.folder / "b").unlink()
    family.child.write({"a": b"file", "b/c/d": b"4"})
    assert isinstance(family.merge(), Merged)
    assert content_of(family.parent.folder) == content_of(family.child.folder)


def test_folder_that_holds_something_of_its_own_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a/x": b"1"})
    remove(family.child.folder / "a")
    family.child.write({"a": b"file"})
    family.parent.write({"a/mine": b"2"})
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    assert merged.conflicts == (Conflict("a", "a folder here, a file there"),)


def test_merge_follows_no_link_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    family = Family(tmp_path / "tree", {"sub/a": b"1"})
    family.child.write({"sub/a": b"2", "sub/b": b"3"})
    remove(family.parent.folder / "sub")
    (family.parent.folder / "sub").symlink_to(outside)
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    assert {it.why for it in merged.conflicts} == {"a file or a link here, where a folder belongs"}
    assert list(outside.iterdir()) == []


def test_modes_and_links_are_merged_by_themselves(tmp_path: Path) -> None:
    family = Family(tmp_path, {"run": _LINES, "link": "run", "other": "run"})
    (family.child.folder / "run").chmod(0o755)
    (family.child.folder / "link").unlink()
    family.child.write({"link": "other"})
    family.parent.write({"run": _LINES + b"more\n"})
    assert isinstance(family.merge(), Merged)
    now = content_of(family.parent.folder)
    assert now[b"run"] == ("program", _LINES + b"more\n")
    assert now[b"link"] == ("link", b"other")
    (family.parent.folder / "other").unlink()
    family.parent.write({"other": "link"})
    (family.child.folder / "other").unlink()
    family.child.write({"other": "nowhere"})
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    assert merged.conflicts[0].why == "a link or another kind of file, changed on both sides"


def test_file_that_was_made_a_program_here_stays_one_when_its_lines_are_merged(tmp_path: Path) -> None:
    family = Family(tmp_path, {"run": _LINES})
    (family.parent.folder / "run").chmod(0o755)
    family.child.write({"run": _LINES + b"more\n"})
    assert isinstance(family.merge(), Merged)
    assert content_of(family.parent.folder)[b"run"] == ("program", _LINES + b"more\n")


def test_file_that_changes_after_the_approval_is_not_written_over(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a": b"1\n", "b": b"1\n"})
    family.child.write({"a": b"2\n", "b": b"2\n"})
    planned = family.plan()
    assert isinstance(planned, Planned)
    family.parent.write({"b": b"2\n"})
    merged = family.parent.copy.write_merge(family.base, family.theirs, family.child.packs, planned.digest)
    assert isinstance(merged, Conflicted)
    assert content_of(family.parent.folder)[b"a"] == ("file", b"1\n")


def test_merge_that_fails_in_the_middle_is_undone(bench: Bench) -> None:
    bench.write({"a/only": b"1", "b": b"1", "z": b"1"})
    before = content_of(bench.folder)
    new = Side(FILE, b"")
    steps = (
        Step(b"a/only", new, None),
        Step(b"b", new, new, b"2"),
        Step(b"new/folder/c", None, new, b"3"),
        Step(b"z/below", None, new, b"4"),
    )
    (bench.root / "work").mkdir()
    with pytest.raises(NotADirectoryError):
        write(Plan(steps, ()), bench.folder, Known(), bench.root / "work")
    assert content_of(bench.folder) == before


def _step(path: bytes, old: bytes | None, new: bytes | None) -> Step:
    before, after = (None if it is None else Side(FILE, object_id("blob", it)) for it in (old, new))
    return Step(path, before, after, new or b"")


# A folder gives way to a file, and files come into folders that are not there yet.
_CHANGING_PLACES = (
    _step(b"a/only", b"1", None),
    _step(b"a", None, b"now a file"),
    _step(b"b", b"1", b"2"),
    _step(b"new/folder/c", None, b"3"),
)


def full_from(monkeypatch: pytest.MonkeyPatch, at: int, *names: str) -> list[str]:
    """Lets each of these functions of `os` fail from the one with this number on; the names of all calls."""
    called: list[str] = []

    def failing(name: str, real: Any) -> Any:
        def fails(*given: Any, **named: Any) -> Any:
            called.append(name)
            if len(called) > at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*given, **named)

        return fails

    for name in names:
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    return called


def test_merge_on_a_disk_that_gets_full_at_any_step_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    """The way back needs no room: a folder that gave way to a file is there again with what it held."""
    for at in itertools.count():
        bench = Bench(tmp_path / str(at))
        bench.write({"a/only": b"1", "b": b"1"})
        before, work = content_of(bench.folder), bench.root / "work"
        work.mkdir()
        with pytest.MonkeyPatch.context() as patched:
            called = full_from(patched, at, "mkdir", "symlink")
            with suppress(OSError):
                write(Plan(_CHANGING_PLACES, ()), bench.folder, Known(), work)
        if len(called) <= at:
            assert content_of(bench.folder)[b"a"] == ("file", b"now a file")
            break
        assert content_of(bench.folder) == before
        assert list(work.iterdir()) == []
    assert at > 3


def test_old_files_are_kept_where_a_merge_cannot_be_taken_back_and_the_next_one_begins_with_that(
    bench: Bench,
) -> None:
    bench.write({"a/only": b"1", "b": b"1"})
    before, work = content_of(bench.folder), bench.root / "work"
    work.mkdir()
    plan = Plan(_CHANGING_PLACES, ())
    with pytest.MonkeyPatch.context() as patched:
        # Behind the one that puts the list of steps in its place, three files are moved.
        full_from(patched, 4, "rename")
        with pytest.raises(FolderError, match=r"could not be taken back yet.*merge again") as caught:
            write(plan, bench.folder, Known(), work)
    assert caught.value.kind == "half"
    assert content_of(bench.folder) != before
    with pytest.MonkeyPatch.context() as patched:
        full_from(patched, 0, "rename")
        with pytest.raises(FolderError, match=r"could not be taken back yet.*merge again") as caught:
            write(Plan((), ()), bench.folder, Known(), work)
    assert caught.value.kind == "half", "nor could the next one take it back"
    assert content_of(bench.folder) != before
    write(Plan((), ()), bench.folder, Known(), work)
    assert content_of(bench.folder) == before
    assert list(work.iterdir()) == []


_TEXT = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=8).map(b"".join)


@settings(max_examples=15, deadline=None)
@given(_TEXT, _TEXT, _TEXT)
def test_contents_are_merged_as_git_merge_file_merges_them(base: bytes, ours: bytes, theirs: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        family = Family(Path(name), {"f": base})
        family.parent.write({"f": ours})
        family.child.write({"f": theirs})
        merged = family.merge()
        for side, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            Path(name, side).write_bytes(content)
        expected = git(Path(name), "merge-file", "-p", "ours", "base", "theirs", fits=tuple(range(128)))
        if b"<<<<<<<" in expected:
            assert isinstance(merged, Conflicted)
            assert (family.parent.folder / "f").read_bytes() == ours
        else:
            assert isinstance(merged, Merged)
            assert (family.parent.folder / "f").read_bytes() == expected


# ── every pair of changes ─────────────────────────────────────────────────────────────────────────

OURS, THEIRS = _LINES.replace(b"line 3\n", b"LINE 3\n"), _LINES.replace(b"line 15\n", b"LINE 15\n")
BOTH = OURS.replace(b"line 15\n", b"LINE 15\n")


def program(folder: Path, name: str) -> None:
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("ours", [None, "lines", "mode", "both"])
@pytest.mark.parametrize("theirs", ["lines", "mode", "both"])
def test_lines_and_mode_of_a_file_are_merged_each_by_itself(
    tmp_path: Path, ours: str | None, theirs: str
) -> None:
    family = Family(tmp_path, {"a": _LINES})
    for side, change, lines in ((family.parent, ours, OURS), (family.child, theirs, THEIRS)):
        if change in ("lines", "both"):
            side.write({"a": lines})
        if change in ("mode", "both"):
            program(side.folder, "a")
    assert isinstance(family.merge(), Merged)
    changed = {(False, False): _LINES, (True, False): OURS, (False, True): THEIRS, (True, True): BOTH}
    content = changed[ours in ("lines", "both"), theirs in ("lines", "both")]
    kind = "program" if "mode" in (ours, theirs) or "both" in (ours, theirs) else "file"
    assert content_of(family.parent.folder) == {b"a": (kind, content)}


def test_mode_that_the_other_side_has_changed_comes_to_a_file_that_git_cannot_merge(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a": b"\0one"})
    family.parent.write({"a": b"\0two"})
    program(family.child.folder, "a")
    assert isinstance(family.merge(), Merged)
    assert content_of(family.parent.folder) == {b"a": ("program", b"\0two")}


@pytest.mark.parametrize("side", ["base", "ours", "theirs"])
def test_link_that_both_sides_have_changed_is_a_conflict_whichever_of_them_it_is(
    tmp_path: Path, side: str
) -> None:
    family = Family(tmp_path, {"a": "to" if side == "base" else b"1\n"})
    for bench, name, content in ((family.parent, "ours", b"2\n"), (family.child, "theirs", b"3\n")):
        (bench.folder / "a").unlink()
        bench.write({"a": "elsewhere" if side == name else content})
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    (conflict,) = merged.conflicts
    assert conflict.why == "a link or another kind of file, changed on both sides"


@pytest.mark.parametrize("count", [MOST_CONFLICTS - 1, MOST_CONFLICTS, MOST_CONFLICTS + 1])
def test_conflicts_are_shown_up_to_a_bound_and_all_are_counted(tmp_path: Path, count: int) -> None:
    names = [f"{n:03}" for n in range(count)]
    family = Family(tmp_path, {"a": b"1\n"})
    family.parent.write(dict.fromkeys(names, b"2\n"))
    family.child.write(dict.fromkeys(names, b"3\n"))
    merged = family.merge()
    assert isinstance(merged, Conflicted)
    assert (len(merged.conflicts), merged.all) == (min(count, MOST_CONFLICTS), count)


@pytest.mark.parametrize("change", ["made", "changed", "taken away", "changed on both sides"])
def test_path_that_the_sandbox_does_not_let_be_written_is_a_conflict_whatever_becomes_of_it(
    tmp_path: Path, change: str
) -> None:
    family = Family(tmp_path, {"kept": b"1\n", "other": b"1\n"} if change != "made" else {"other": b"1\n"})
    family.child.write({"kept": b"2\n", "other": b"2\n"})
    if change == "taken away":
        (family.child.folder / "kept").unlink()
    if change == "changed on both sides":
        family.parent.write({"kept": b"3\n"})
    guard = Guard(kept=("kept",))
    planned = family.parent.copy.plan_merge(family.base, family.theirs, family.child.packs, guard)
    assert isinstance(planned, Conflicted)
    assert [it.path for it in planned.conflicts] == ["kept"]
    assert "the sandbox does not let it be written" in planned.conflicts[0].why


def test_file_comes_where_a_folder_was_that_both_sides_have_emptied(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a/x": b"1", "a/y": b"2"})
    remove(family.child.folder / "a")
    family.child.write({"a": b"file"})
    (family.parent.folder / "a/x").unlink()
    assert isinstance(family.merge(), Merged)
    assert content_of(family.parent.folder) == {b"a": ("file", b"file")}


def test_file_comes_where_a_folder_has_empty_folders_of_its_own(tmp_path: Path) -> None:
    """No snapshot has these: nothing is lost with them."""
    family = Family(tmp_path, {"a/x": b"1", "a/b/y": b"2"})
    remove(family.child.folder / "a")
    family.child.write({"a": b"file"})
    (family.parent.folder / "a/new/er").mkdir(parents=True)
    (family.parent.folder / "a/b/other").mkdir()
    assert isinstance(family.merge(), Merged)
    assert content_of(family.parent.folder) == {b"a": ("file", b"file")}


def test_folder_that_the_other_side_has_stays_where_a_merge_empties_it(tmp_path: Path) -> None:
    family = Family(tmp_path, {"a/b/x": b"1", "a/b/y": b"2"})
    (family.child.folder / "a/b/x").unlink()
    (family.parent.folder / "a/b/y").unlink()
    assert isinstance(family.merge(), Merged)
    assert (family.parent.folder / "a/b").is_dir()


def test_plans_differ_where_a_path_its_content_before_or_its_content_behind_does() -> None:
    one, other = Side(FILE, b"1" * 20), Side(FILE, b"2" * 20)
    pairs = ((one, other), (other, one), (None, one), (one, None), (one, one))
    plans = [Plan((Step(path, *pair),), ()) for path in (b"a", b"b") for pair in pairs]
    assert len({plan.digest for plan in plans}) == len(plans)


# ── broken off ────────────────────────────────────────────────────────────────────────────────────

STEPPED = ("rename", "mkdir", "rmdir", "unlink", "symlink", "link")


def broken_off_at(at: int, plan: Plan, folder: Path, theirs: Known, work: Path) -> bool:
    """Writes a merge in a process that is killed at one of its steps; whether it came to its end."""
    if (pid := os.fork()) == 0:
        done = 0

        def killed(real: Any) -> Any:
            def step(*given: Any, **named: Any) -> Any:
                nonlocal done
                done += 1
                if done > at:
                    os._exit(9)
                return real(*given, **named)

            return step

        for name in STEPPED:
            setattr(os, name, killed(getattr(os, name)))
        try:
            write(plan, folder, theirs, work)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_merge_that_is_killed_at_any_step_is_taken_back_and_a_file_that_was_changed_since_is_kept(
    tmp_path: Path,
) -> None:
    """Folders come where files were and go where files come, new ones lie in new ones."""
    start: dict[str | bytes, Content] = {
        "a/x": b"1",
        "a/y": b"2",
        "b": b"3",
        "c": b"4",
        "deep/er/one": b"5",
        "link": "b",
    }
    for at in itertools.count():
        family = Family(tmp_path / str(at), start)
        child = family.child.folder
        remove(child / "a")
        for name in ("b", "link", "deep/er/one"):
            (child / name).unlink()
        (child / "deep/er").rmdir()
        (child / "deep").rmdir()
        family.child.write(
            {"a": b"file", "b/new/d": b"6", "c": b"7", "link": "c", "new/er/est/e": b"8", "new/f": b"9"}
        )
        before = content_of(family.parent.folder)
        theirs = family.theirs
        copy, packs = family.parent.copy, family.child.packs
        plan, known = copy._merge(family.base, theirs, packs, ANYWHERE)
        folder, work = family.parent.folder, copy._work
        if broken_off_at(at, plan, folder, known, work):
            assert content_of(folder) == content_of(child)
            break
        changed = (folder / "new/f").exists() and at % 2 == 1
        if changed:
            (folder / "new/f").write_bytes(b"mine")
        elif (folder / "c").exists() and (folder / "c").read_bytes() == b"7":
            # Somebody has taken the new file away: the old one comes back all the same.
            (folder / "c").unlink()
        take_back(folder, work)
        assert content_of(folder) == before | ({b"new/f": ("file", b"mine")} if changed else {})
        # A list of steps that was not whole yet says nothing, and is written over by the next merge.
        assert {path.name for path in work.iterdir()} <= {"steps.part"}
    assert at > 20


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_came_in_the_place_of_a_file_or_a_folder_stays_when_a_merge_is_taken_back(
    tmp_path: Path, kind: str
) -> None:
    """Files of the folder come to no other place, and the file that the merge had deleted stays away."""
    mine: Content = {"file": b"mine", "link": "b", "folder": None}[kind]
    for at in itertools.count():
        family = Family(tmp_path / str(at), {"a/x": b"1", "a/er/y": b"2", "b": b"3", "gone": b"4"})
        remove(family.child.folder / "a")
        (family.child.folder / "gone").unlink()
        family.child.write({"b": b"5"})
        plan, known = family.parent.copy._merge(family.base, family.theirs, family.child.packs, ANYWHERE)
        folder, work = family.parent.folder, family.parent.copy._work
        if broken_off_at(at, plan, folder, known, work):
            break
        remove(folder / "a")
        remove(folder / "gone")
        family.parent.write({"a": b"mine", "gone": mine})
        took = content_of(folder)
        take_back(folder, work)
        assert content_of(folder) == {**took, b"b": ("file", b"3")}
    assert at > 8


def test_merge_that_came_to_its_end_is_taken_back_until_it_is_settled(bench: Bench) -> None:
    """A process may be lost between the last file and the word that all are there."""
    bench.write({"a/only": b"1", "b": b"1"})
    before, work = content_of(bench.folder), bench.root / "work"
    work.mkdir()
    plan = Plan(_CHANGING_PLACES, ())
    write(plan, bench.folder, Known(), work)
    assert content_of(bench.folder) != before
    take_back(bench.folder, work)
    assert content_of(bench.folder) == before
    write(plan, bench.folder, Known(), work)
    after = content_of(bench.folder)
    settle(work)
    take_back(bench.folder, work)
    assert (content_of(bench.folder), list(work.iterdir())) == (after, [])


MERGE = """
import sys
from pathlib import Path
from orchestrator.folders.git_objects import object_id
from orchestrator.folders.stat_cache import Known
from orchestrator.folders.merge import Plan, Side, Step, settle, write
from orchestrator.folders.names import FILE
folder, work = map(Path, sys.argv[1:])
old, new = (Side(FILE, object_id("blob", content)) for content in (b"old", b"new"))
write(Plan((Step(b"a", old, new, b"new"),), ()), folder, Known(), work)
print([path.name.startswith(".dendro-merge-") for path in folder.iterdir() if path.is_dir()])
settle(work)
"""


def test_merge_into_a_volume_of_the_same_disk_is_staged_in_the_volume(tmp_path: Path) -> None:
    """A bind mount has the device of what it shows, and no file is renamed into it from beside it."""
    folder, work = tmp_path / "folder", tmp_path / "work"
    for made in (folder, work):
        made.mkdir()
    (folder / "a").write_text("old")
    mounted = ["bwrap", "--dev-bind", "/", "/", "--bind", str(folder), str(folder)]
    done = subprocess.run(
        [*mounted, sys.executable, "-c", MERGE, str(folder), str(work)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stderr.startswith("bwrap:") and "CI" not in os.environ:
        pytest.skip(done.stderr)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[True]\n", "")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "new"}
