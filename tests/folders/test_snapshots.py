"""Snapshots of a folder: what is in them, which ids they have, and the folders that are made of them."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.folders import copy as copying
from orchestrator.folders.build import clock_ns, remove
from orchestrator.folders.copy import MOST_FOLLOWED, Copy
from orchestrator.folders.outcomes import (
    Bounds,
    Counts,
    Cut,
    FolderError,
    FolderSnapshot,
    Place,
    Search,
    Taken,
    Unchanged,
)
from orchestrator.folders.packs import PackWriter
from orchestrator.folders.scan import Scan
from orchestrator.folders.stat_cache import UNSURE, NewObjects
from orchestrator.folders.store import Objects
from tests.folders.workshop import AT_MS, Bench, Content, content_of, git


def test_copy_makes_elsewhere_what_a_snapshot_saw(bench: Bench) -> None:
    bench.write(
        {
            "a.py": b"print(1)\n",
            "src/run.sh": b"#!/bin/sh\n",
            "src/link": "../a.py",
            "empty/below": None,
            "zero": b"",
        }
    )
    (bench.folder / "src" / "run.sh").chmod(0o755)
    taken = bench.born()
    assert taken.counts == Counts(added=4)
    assert taken.whole
    assert content_of(bench.elsewhere()) == content_of(bench.folder)
    assert content_of(bench.folder)[b"src/run.sh"][0] == "program"


def test_pack_that_is_given_as_a_descriptor_stays_open(bench: Bench, tmp_path: Path) -> None:
    """The one who opened it closes it: closed twice, its number may be another file's by then."""
    bench.write({"a": b"1"})
    taken = bench.born()
    descriptor = os.open(taken.pack, os.O_RDONLY)
    try:
        Copy(Place(tmp_path / "other" / "folder", tmp_path / "other" / "objects"), Bounds()).make(
            [descriptor], taken.snapshot
        )
        assert os.fstat(descriptor).st_size == taken.bytes
    finally:
        os.close(descriptor)


def test_name_that_is_not_utf_8_is_kept_and_quoted(bench: Bench) -> None:
    bench.write({b"caf\xe9.txt": b"x", 'with "quotes"\n': b"y", "Änderung": b"z"})
    taken = bench.born()
    assert set(taken.names) == {'A "caf\\351.txt"', 'A "with \\"quotes\\"\\n"', "A Änderung"}
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


def test_same_content_and_history_have_the_same_ids_on_every_machine(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "two"):
        bench = Bench(tmp_path / name)
        bench.write({"a": b"1", "b/c": b"2"})
        bench.born()
        bench.write({"b/c": b"3"})
        ids.append(bench.taken().snapshot)
    assert ids[0] == ids[1]
    bench.write({"b/c": b"2"})
    assert bench.taken().snapshot not in ids


def test_git_computes_the_ids_that_snapshots_have_and_finds_nothing_wrong(bench: Bench) -> None:
    bench.write({"a": b"1\n", "a.b/c": b"2\n", "a0": b"3\n", "link": "a"})
    bench.born()
    bench.write({"a.b/c": b"2\n" * 2000, "a.b/d/e": b"4\n"})
    taken = bench.taken()
    store = bench.repository()
    git(store, "fsck", "--full", "--strict", taken.snapshot)
    work = bench.root / "work"
    work.mkdir()
    git(bench.root, "init", "-q", str(work))
    for path in bench.folder.iterdir():
        path.rename(work / path.name)
    git(work, "add", "-A")
    assert git(work, "write-tree").decode().strip() == taken.tree
    commit = git(store, "cat-file", "commit", taken.snapshot).decode()
    assert commit.startswith(
        f"tree {taken.tree}\nparent {taken.parent}\nauthor Dendro <dendro@localhost> {AT_MS // 1000}"
    )


def test_unchanged_folder_gives_no_snapshot(bench: Bench) -> None:
    bench.write({"a": b"1", "b/c": b"2"})
    first = bench.born()
    assert bench.take() == Unchanged(first.snapshot)
    (bench.folder / "a").write_bytes(b"1")
    os.utime(bench.folder / "b")
    assert bench.take() == Unchanged(first.snapshot)


def test_counts_and_names_tell_what_changed(bench: Bench) -> None:
    bench.write({"a": b"1", "b/c": b"2", "d": b"3"})
    bench.born()
    bench.write({"a": b"9", "new/e": b"4"})
    (bench.folder / "d").unlink()
    taken = bench.taken()
    assert taken.counts == Counts(added=1, modified=1, deleted=1)
    assert taken.names == ("M a", "D d", "A new/e")
    assert taken.parent != taken.snapshot


def test_change_that_keeps_size_and_modification_time_is_seen(bench: Bench) -> None:
    bench.write({"a": b"one"})
    bench.born()
    bench.take()
    before = (bench.folder / "a").stat()
    (bench.folder / "a").write_bytes(b"two")
    os.utime(bench.folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bench.taken().names == ("M a",)


def test_times_within_the_clocks_grain_of_the_walk_are_not_believed(bench: Bench) -> None:
    bench.write({"d/a": b"1"})
    changed_ns = (bench.folder / "d" / "a").stat().st_ctime_ns
    writer = PackWriter(bench.root / "new")
    for later_ns, believed in ((0, False), (10**7, False), (10**9, True)):
        found = Scan(Bounds(), NewObjects(writer, Objects()), changed_ns + later_ns).root(bench.folder, None)
        below = found.folders["d"]
        assert (below.files["a"].ctime_ns == changed_ns) is believed
        assert (below.files["a"].ctime_ns == UNSURE) is not believed
        assert (below.seen is not None) is believed
    writer.discard()


def test_rules_that_change_in_their_file_alone_are_held_against_every_folder_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder has a name more or less, and all times are old enough to be believed."""
    monkeypatch.setattr(copying, "clock_ns", lambda place: clock_ns(place) + 10**9)
    bench.write({".gitignore": b"*.log\n", "a.log": b"1", "deep/er/b.log": b"2", "deep/er/kept": b"3"})
    bench.write({"own/.gitignore": b"*.tmp\n", "own/er/.gitignore": b"#\n", "own/a.tmp": b"6"})
    bench.write({"own/c.log": b"7", "own/er/d.log": b"8", "own/er/b.tmp": b"9"})
    bench.born()
    bench.write({".gitignore": b"#.log\n"})
    names = bench.taken().names
    assert names == ("M .gitignore", "A a.log", "A deep/er/b.log", "A own/c.log", "A own/er/d.log")
    bench.write({"own/.gitignore": b"#.tmp\n"})
    assert bench.taken().names == ("M own/.gitignore", "A own/a.tmp", "A own/er/b.tmp")
    bench.write({".gitignore": b"*.log\n", "deep/er/c": b"4"})
    (bench.folder / "a.log").write_bytes(b"5")
    assert bench.taken().names == ("M .gitignore", "M a.log", "A deep/er/c"), "what was recorded stays"


def test_another_file_system_in_the_folder_is_left_out_and_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write({"a": b"1", "mounted/b": b"2"})
    there, real = (bench.folder / "mounted").stat().st_ino, os.fstat

    def fstat(descriptor: int) -> Any:
        found = real(descriptor)
        if found.st_ino != there:
            return found
        times = {"st_mtime_ns": found.st_mtime_ns, "st_ctime_ns": found.st_ctime_ns}
        return SimpleNamespace(st_dev=found.st_dev + 1, st_ino=there, st_mode=found.st_mode, **times)

    monkeypatch.setattr(os, "fstat", fstat)
    bench.born()
    assert bench.left() == {"mounted": "another file system"}
    assert set(content_of(bench.elsewhere())) == {b"a"}


def test_file_that_a_living_process_has_mapped_is_read_again(bench: Bench) -> None:
    bench.write({"a": b"0" * 8192, "still": b"1"})
    bench.born()
    with (bench.folder / "a").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = ord("1")
        while clock_ns(bench.copy.place.objects) < os.fstat(file.fileno()).st_ctime_ns + 30_000_000:
            pass  # until the time is one that is believed otherwise
        taken = bench.copy.take(bench.at, AT_MS, live=True)
        assert isinstance(taken, Taken)
        bench.at, bench.packs = taken.snapshot, [*bench.packs, taken.pack]
        before = os.fstat(file.fileno()).st_ctime_ns
        mapped[1] = ord("2")
        assert os.fstat(file.fileno()).st_ctime_ns == before
    assert bench.taken().names == ("M a",)
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


def test_file_and_folder_that_take_each_others_place_are_seen(bench: Bench) -> None:
    bench.write({"a": b"1", "b/c": b"2"})
    bench.born()
    (bench.folder / "a").unlink()
    (bench.folder / "b" / "c").unlink()
    (bench.folder / "b").rmdir()
    bench.write({"a/c": b"2", "b": b"1"})
    assert bench.taken().counts == Counts(added=2, deleted=2)
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


@pytest.mark.parametrize(
    ("rules", "was", "now"),
    [
        (b"build/\n", {"build/x": b"ignored"}, {"build": b"a file"}),
        (b"build\n!build/\n", {"build": b"ignored"}, {"build/x": b"in a folder"}),
    ],
)
def test_name_that_was_ignored_is_judged_anew_where_another_kind_of_entry_has_it(
    bench: Bench, rules: bytes, was: dict[str | bytes, Content], now: dict[str | bytes, Content]
) -> None:
    bench.write({".gitignore": rules, "kept": b"1", **was})
    os.utime(bench.folder, (1, 1))
    bench.born()
    assert set(content_of(bench.elsewhere("before"))) == {b".gitignore", b"kept"}
    remove(bench.folder / "build")
    bench.write(now)
    bench.take()
    (name,) = now
    assert os.fsencode(name) in content_of(bench.elsewhere("after"))


def test_snapshot_that_was_never_recorded_is_covered_by_the_next(bench: Bench) -> None:
    bench.write({"a": b"1"})
    first = bench.born()
    bench.write({"a": b"2"})
    lost = bench.copy.take(first.snapshot, AT_MS)
    assert isinstance(lost, Taken)
    lost.pack.unlink()
    bench.write({"b": b"3"})
    assert bench.taken().counts == Counts(added=1, modified=1)
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


def test_pack_of_a_changed_text_is_small(bench: Bench) -> None:
    text = "".join(f"line {n} says {n * 7919 % 1000}\n" for n in range(400)).encode()
    bench.write({f"folder/file {n}": text + b"%d" % n for n in range(300)})
    bench.born()
    bench.write({"folder/file 7": text.replace(b"line 200", b"LINE 200")})
    taken = bench.taken()
    assert taken.bytes < 1000


def test_whole_pack_follows_thirty_two_others(bench: Bench) -> None:
    bench.write({"keep": b"k" * 100, "gone": b"g"})
    bench.born()
    (bench.folder / "gone").unlink()
    wholes = []
    for number in range(33):
        bench.write({"counter": b"%d\n" % number})
        wholes.append(bench.taken().whole)
    assert wholes.index(True) == 31
    assert len(bench.packs) == 2
    assert content_of(bench.elsewhere()) == content_of(bench.folder)
    bench.write({"gone": b"g"})
    bench.taken()
    assert content_of(bench.elsewhere("later")) == content_of(bench.folder)


def test_next_claim_goes_on_with_the_copy_that_was_left(bench: Bench) -> None:
    bench.write({"a": b"1", "b/c": b"2"})
    bench.born()
    bench.copy.leave()
    bench.copy = Copy(bench.copy.place, bench.bounds)
    assert bench.copy.adopt((), bench.at)
    bench.write({"b/c": b"3"})
    assert bench.taken().names == ("M b/c",)
    assert content_of(bench.elsewhere()) == content_of(bench.folder)
    assert not Copy(bench.copy.place, bench.bounds).adopt((), FolderSnapshot("0" * 40))


def test_made_folder_is_the_copy_of_its_snapshot(bench: Bench) -> None:
    bench.write({"a": b"1", "b/c": b"2"})
    bench.born()
    other = Copy(Place(bench.root / "x" / "folder", bench.root / "x" / "objects"), bench.bounds)
    made = other.make(bench.packs, bench.at)
    assert (made.files, made.bytes) == (2, 2)
    assert isinstance(other.take(bench.at, AT_MS), Unchanged)
    (bench.root / "x" / "folder" / "a").write_bytes(b"9")
    assert isinstance(other.take(bench.at, AT_MS), Taken)
    other.make(bench.packs, bench.at)
    assert content_of(bench.root / "x" / "folder") == content_of(bench.folder)


def test_folder_with_more_files_than_allowed_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_files=20))
    bench.write({f"{n}": b"" for n in range(20)})
    bench.born()
    bench.write({"d/21": b""})
    with pytest.raises(FolderError, match="more than 20 files") as refused:
        bench.take()
    assert refused.value.kind == "too_many_files"
    (bench.folder / "3").unlink()
    assert bench.taken().counts == Counts(added=1, deleted=1)


def test_file_over_the_bound_is_left_out_and_named_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_file=1000, max_bytes=5000))
    bench.write({"small": b"s" * 1000, "large": b"l" * 1001})
    bench.born()
    assert bench.left() == {"large": "larger than workspace.max_file"}
    bench.write({"small": b"t"})
    assert bench.taken().omitted.new == 0
    bench.write({"large": b"l" * 10})
    assert bench.taken().names == ("A large",)
    bench.write({f"{n}": b"x" * 900 for n in range(6)})
    with pytest.raises(FolderError, match="may hold 5,000"):
        bench.take()


def test_files_are_read_from_a_snapshot_up_to_a_bound(bench: Bench) -> None:
    large: dict[str | bytes, Content] = {f"{n}": bytes((n,)) * (2 << 20) for n in range(21)}
    bench.write({**large, "over": b"x" * ((2 << 20) + 1), "small": b"s", "a/b": b""})
    bench.born()
    paths = [*map(str, range(21)), "small", "over", "none", "0/1", "", "../0", "a"]
    found = bench.copy.read_files(bench.at, paths, 2 << 20)
    assert [file.path for file in found] == paths
    read = {f"{n}": bytes((n,)) * (2 << 20) for n in range(20)}
    assert {file.path: file.content for file in found if file.content is not None} == read
    why = {file.path: file.why for file in found if file.content is None}
    assert "more than 41,943,040 bytes, the most at once" in why["20"]
    assert why["over"] == "it has 2,097,153 bytes, and at most 2,097,152 are read"
    assert why[""] == why["a"] == "it is a folder"
    assert all("not among the files of the folder" in why[path] for path in ("none", "0/1", "../0"))


def test_files_are_read_from_a_snapshot_by_links_that_stay_in_it(bench: Bench) -> None:
    """A repository has `CLAUDE.md` as its `AGENTS.md`; a link's own text would be told as instructions."""
    bench.write({
        "CLAUDE.md": b"Be kind.", "AGENTS.md": "./CLAUDE.md", "a/AGENTS.md": "../AGENTS.md", "b": "a",
        "round": "round", "gone": "none", "folder": "a/",
    })  # fmt: skip
    bench.born()
    paths = ["AGENTS.md", "a/AGENTS.md", "b/AGENTS.md", "round", "gone", "folder", "CLAUDE.md/x"]
    found = bench.copy.read_files(bench.at, paths, 100)
    assert [file.content for file in found] == [b"Be kind."] * 3 + [None] * 4


def test_files_of_one_name_are_found_below_folders_also_by_links_that_stay_in_the_snapshot(
    bench: Bench,
) -> None:
    bench.write({
        "s/b/F": b"b", "s/a/F": b"a", "s/a/deep/F": b"deep", "s/in": "../shared", "shared/F": b"shared",
        "s/round": "../s", "s/file": b"", "s/folder/F/x": b"", "s/gone/F": "none", "s/large/F": b"xxxxxxx",
        "t": "s/a", "other/F": b"no",
    })  # fmt: skip
    bench.born()
    found = bench.copy.find_files(bench.at, Search(("s", "t", "none", "s/file"), "F", 1, 100, 100, 6))
    assert {file.path: file.content for file in found.files} == {
        "s/a/F": b"a", "s/b/F": b"b", "s/folder/F": None, "s/gone/F": None, "s/in/F": b"shared",
        "s/large/F": None, "t/F": b"a", "t/deep/F": b"deep",
    }  # fmt: skip
    assert [file.path for file in found.files][:3] == ["s/a/F", "s/b/F", "s/folder/F"]
    assert {file.path: file.why for file in found.files}["s/folder/F"] == "it is a folder"
    assert not found.cut


def test_search_without_end_stops_at_its_bounds(bench: Bench) -> None:
    bench.write({"s/round": ".", "s/also": ".", "s/F": b"", **{f"t/{n}/F": b"" for n in range(5)}})
    bench.born()
    endless = bench.copy.find_files(bench.at, Search(("s", "t"), "F", 50, 1_000, 10_000, 6))
    assert endless.cut == (Cut("s", "entries"),)
    assert len(endless.files) == 334 + 5, "each folder has its own entries"
    many = bench.copy.find_files(bench.at, Search(("t", "s"), "F", 4, 100, 3, 6))
    assert ([file.path for file in many.files], many.cut) == (
        ["t/0/F", "t/1/F", "t/2/F"],
        (Cut("t", "files"),),
    )


def test_pack_that_decays_on_this_machine_is_noticed(bench: Bench) -> None:
    bench.write({"a": os.urandom(5000)})
    bench.born()
    kept = next((bench.copy.place.objects / "packs").glob("*.pack"))
    kept.with_suffix(".objects").write_bytes(b"")
    assert content_of(bench.elsewhere()) == content_of(bench.folder)
    again = Copy(bench.copy.place, bench.bounds)
    assert not again.adopt((), bench.at)
    assert again.adopt(bench.packs, bench.at)
    data = bytearray(kept.read_bytes())
    data[2000] ^= 1
    kept.unlink()
    kept.write_bytes(data)
    with pytest.raises(FolderError) as decayed:
        Copy(bench.copy.place, bench.bounds).make(bench.packs, bench.at)
    assert decayed.value.kind == "damaged"


_NAMES = st.sampled_from(["a", "b", "dir", "caf\udce9"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_CONTENT = st.one_of(
    st.binary(max_size=40), st.just(b"line\n" * 50), st.sampled_from(["a", "b/dir", "dir"]), st.none()
)
_OPERATIONS = st.one_of(
    st.tuples(st.just("write"), _PATHS, _CONTENT),
    st.tuples(st.just("remove"), _PATHS, st.none()),
    st.tuples(st.just("program"), _PATHS, st.none()),
    st.tuples(st.just("rename"), _PATHS, _PATHS),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(_OPERATIONS, max_size=4), min_size=1, max_size=5))
def test_any_folder_is_made_as_it_was_after_any_changes(
    rounds: list[list[tuple[str, str, Content]]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        bench.folder.mkdir()
        tree = bench.born().tree
        for number, operations in enumerate(rounds):
            for what, path, more in operations:
                with suppress(OSError):
                    _change(bench, what, path, more)
            taken = bench.take()
            tree = taken.tree if isinstance(taken, Taken) else tree
            fresh = Copy(Place(bench.folder, bench.root / f"fresh {number}"), bench.bounds)
            assert fresh.born(None, "HEAD", AT_MS).tree == tree
        assert content_of(bench.elsewhere()) == content_of(bench.folder)


def _change(bench: Bench, what: str, path: str, more: Content) -> None:
    target = bench.folder / path
    match what:
        case "write":
            if target.is_symlink():
                target.unlink()
            bench.write({path: more})
        case "remove" if target.is_dir() and not target.is_symlink():
            remove(target)
        case "remove":
            target.unlink()
        case "program" if not target.is_symlink():
            target.chmod(target.stat().st_mode ^ 0o100 if target.is_file() else 0o755)
        case "rename":
            assert isinstance(more, str)
            target.rename(bench.folder / more)


def test_next_keeper_goes_on_from_a_snapshot_that_a_killed_one_had_adopted(bench: Bench) -> None:
    bench.write({"a": b"1\n"})
    stored = bench.born()
    bench.copy.make(bench.packs, stored.snapshot)
    bench.write({"b": b"2\n"})
    unsaved = bench.taken()
    place, after = bench.copy.place, Copy(bench.copy.place, bench.bounds)
    after.make([stored.pack, unsaved.pack], unsaved.snapshot)
    assert after.adopt([stored.pack], stored.snapshot)
    # The keeper is killed: all that is left of it is on the disk.
    taken = Copy(place, bench.bounds).take(stored.snapshot, 5)
    assert isinstance(taken, Taken)
    assert taken.parent == stored.snapshot


def test_folder_that_goes_back_to_what_is_stored_stores_again_what_was_unsaved(bench: Bench) -> None:
    """Its keeper took a snapshot that never reached the store: the packs are here, and nowhere else."""
    bench.write({"a": b"1\n"})
    stored = bench.born()
    bench.write({"b": b"2\n"})
    unsaved = bench.taken()
    after = Copy(bench.copy.place, bench.bounds)
    assert after.adopt((), unsaved.snapshot)
    (bench.copy.place.objects / "last").unlink()
    assert after.adopt([stored.pack], stored.snapshot)
    taken = after.take(stored.snapshot, 5)
    assert isinstance(taken, Taken)
    bench.packs, bench.at = [stored.pack, taken.pack], taken.snapshot
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


def test_first_snapshot_that_is_of_no_folder_passes_over_the_one_that_stands_there(bench: Bench) -> None:
    bench.write({"of another claim": b"1\n"})
    taken = bench.copy.born(None, "", AT_MS, of_folder=False)
    assert (taken.counts, taken.names) == (Counts(), ())
    assert (bench.folder / "of another claim").exists()
    bench.copy.make([taken.pack], taken.snapshot)
    assert list(bench.folder.iterdir()) == []


@pytest.mark.parametrize("more", [0, 1])
def test_search_takes_as_many_files_and_looks_at_as_many_entries_as_it_may(bench: Bench, more: int) -> None:
    bench.write({"s/F": b"", "s/1/F": b"", "s/2/F": b"", "t/F": b""})
    bench.born()
    # Below `s` are its file, its two folders and a file in each of them.
    for files, entries, bound in ((4 - more, 100, "files"), (100, 5 - more, "entries")):
        found = bench.copy.find_files(bench.at, Search(("s", "t"), "F", 1, entries, files, 6))
        if not more:
            assert ([file.path for file in found.files], found.cut) == (
                ["s/F", "s/1/F", "s/2/F", "t/F"],
                (),
            )
        elif bound == "files":
            assert ([file.path for file in found.files], found.cut) == (
                ["s/F", "s/1/F", "s/2/F"],
                (Cut("t", "files"),),
            )
        else:
            assert found.cut == (Cut("s", "entries"),)
            assert [file.path for file in found.files] == ["s/F", "s/1/F", "t/F"]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_search_goes_as_deep_as_it_may_below_each_of_its_folders(bench: Bench, depth: int) -> None:
    paths = ["s/F", "s/a/F", "s/a/b/F", "s/a/b/c/F"]
    bench.write({"deep/s/F": b"", **dict.fromkeys(paths, b"")})
    bench.born()
    found = bench.copy.find_files(bench.at, Search(("s", "deep"), "F", depth, 100, 100, 6))
    below = ["deep/s/F"] if depth else []
    assert [file.path for file in found.files] == [*paths[: depth + 1], *below]


@pytest.mark.parametrize("more", [0, 1])
def test_links_on_the_way_to_a_file_are_followed_up_to_their_bound(bench: Bench, more: int) -> None:
    last = MOST_FOLLOWED + more
    links: dict[str | bytes, Content] = {f"l{n}": f"l{n - 1}" for n in range(2, last + 1)}
    bench.write({"file": b"x", "l1": "file", **links})
    bench.born()
    (found,) = bench.copy.read_files(bench.at, (f"l{last}",), 100)
    assert found.content == (None if more else b"x")


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("kind", ["files", "links", "empty folders"])
def test_files_links_and_empty_folders_of_a_snapshot_are_counted_alike(
    tmp_path: Path, kind: str, more: int
) -> None:
    content: Content = {"files": b"", "links": "a", "empty folders": None}[kind]
    bench = Bench(tmp_path, Bounds(max_files=4))
    bench.write({"a": b"", "d/e/f": b"", **{f"{kind} {number}": content for number in range(2)}})
    bench.born()
    bench.write({f"d/{number}": content for number in range(more)})
    (bench.folder / "a").unlink()
    bench.write({"b": content})
    if more:
        with pytest.raises(FolderError, match="more than 4 files"):
            bench.take()
    else:
        assert bench.taken().counts.deleted == 1
